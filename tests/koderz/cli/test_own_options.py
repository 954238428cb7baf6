"""A solver of somebody else's package with options of its own: flags, help, koderz.toml, variables, record, resume."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conftest import Done, Shell
from tests.koderz.cli.conftest import Command
from tests.koderz.world import write_tasks
from tests.toys import installed

RUN = ("benchmark", 0, 1, "--model", "simulated", "--dataset", "tasks.jsonl")
TOY = ("--solver", "toy", "--toy-helper", "simulated")


@pytest.fixture
def toys(koderz: Shell, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment in which the package is found, and a task to try it on."""
    write_tasks(koderz.folder, 1)
    return installed(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def toy(command: Command, toys: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command where the package is installed."""
    monkeypatch.syspath_prepend(toys["PYTHONPATH"].partition(os.pathsep)[0])
    return command


def hints(koderz: Shell) -> list[str]:
    """What hints were asked for in the only run there is: `plain hint 1`."""
    calls = [line for line in koderz.journal() if line["kind"] == "call" and line["purpose"] == "hint"]
    return [call["messages"][0]["content"].partition(":")[0].removeprefix("Give ") for call in calls]


def plan(done: Done) -> dict[str, Any]:
    import orjson

    config: dict[str, Any] = orjson.loads(done.out)["config"]
    return config


@pytest.mark.slow
def test_package_solver_runs_and_resumes_with_its_options(koderz: Shell, toys: Mapping[str, str]) -> None:
    koderz(*RUN, *TOY, "--toy-hints", 2, "--toy-styles", "plain", "odd", "--quiet", env=toys)
    asked = ["plain hint 1", "plain hint 2", "odd hint 1", "odd hint 2"]
    assert hints(koderz) == asked
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])

    koderz("benchmark", "resume", "latest", "--quiet", env=toys)

    assert hints(koderz) == asked
    config = koderz.summary()["config"]
    assert (config["toy_hints"], config["toy_styles"], config["toy_helper"]) == (2, ["plain", "odd"], "simulated")


def test_solver_options_have_a_heading_in_the_help(toy: Command) -> None:
    shown = toy("benchmark", "--solver", "toy", "--help").out

    assert "\nSolver toy:\n" in shown
    assert "--toy-hints N" in shown
    assert "Styles of the hints. Default: plain." in shown
    assert "--toy" not in toy("benchmark", "--help").out


@pytest.mark.parametrize("how", [("--toy_hints", 3), ("--toy-hints=3",), ("--toy_hints=3",)])
def test_solver_flags_may_be_spelled_with_underscores(toy: Command, how: tuple[Any, ...]) -> None:
    assert plan(toy(*RUN, *TOY, *how, "--dry-run", "--json"))["toy_hints"] == 3


@pytest.mark.parametrize(
    "how",
    [("--toy-styles", "a", "b"), ("--toy_styles", "a", "--toy-styles", "b"), ("--toy-styles=a", "--toy-styles", "b")],
)
def test_list_option_takes_words_or_the_flag_again(toy: Command, how: tuple[Any, ...]) -> None:
    assert plan(toy(*RUN, *TOY, *how, "--dry-run", "--json"))["toy_styles"] == ["a", "b"]


def test_solver_options_are_a_table_of_koderz_toml(toy: Command, koderz: Shell) -> None:
    text = '[solver]\nname = "toy"\n[solver.toy]\ntoy-hints = 4\ntoy_styles = ["a", "b"]\ntoy-helper = "simulated"\n'
    (koderz.folder / "koderz.toml").write_text(text)

    config = plan(toy(*RUN, "--trust-config", "--dry-run", "--json", env={"KODERZ_TOY_STYLES": "c,d"}))

    assert (config["solver"], config["toy_hints"], config["toy_styles"]) == ("toy", 4, ["c", "d"])


def test_model_named_by_a_table_needs_trust(toy: Command, koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").write_text('[solver.toy]\ntoy-helper = "openai/gpt-4o"\n')

    said = toy(*RUN, "--solver", "toy", "--dry-run", code=2).err

    assert "toy-helper: this could spend money" in said
    toy(*RUN, "--dry-run")  # without it nobody is asked


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (("--solver", "toy", "--toy-hnts", 3), "", "No such option: --toy-hnts"),
        (("--toy-hints", 3), "", "No such option: --toy-hints"),
        (("--solver", "toy", "--toy-hints", 10), "", "--toy-hints: invalid value 10; it must be between 0 and 9"),
        (("--solver", "tooy"), "", "there is no solver 'tooy'"),
        (("--solver", "toy"), "[solver.toy]\ntoy-hnts = 3\n", "no such setting; did you mean toy-hints?"),
        (("--solver", "toy"), "[solver.toy]\nseed = 3\n", "seed: there is no such setting"),
        (("--solver", "toy"), "[solver.toi]\n", "there is no solver 'toi'; did you mean toy?"),
        ((), "[suite.humanevil]\n", "there is no suite 'humanevil'; did you mean humaneval?"),
        ((), "[solver]\ntoy = 3\n", "write [solver.toy]"),
    ],
)  # fmt: skip
def test_unknown_option_is_one_error_with_the_nearest(
    toy: Command, koderz: Shell, arguments: tuple[Any, ...], text: str, said: str
) -> None:
    (koderz.folder / "koderz.toml").write_text(text)

    assert said in toy(*RUN, *arguments, "--dry-run", code=2).err.replace("\n", " ")


def test_parameter_may_be_given_by_solver_arg(toy: Command, koderz: Shell) -> None:
    toy(*RUN, *TOY, "--solver-arg", "toy_hints=0", "--quiet")

    assert hints(koderz) == []


def test_suite_and_engine_may_have_options_of_their_own(toy: Command, koderz: Shell) -> None:
    chosen = ("benchmark", "--suite", "toy", "--engine", "toy", "--model", "simulated")
    shown = toy(*chosen, "--help").out
    assert "\nSuite toy:\n" in shown
    assert "\nEngine toy:\n" in shown
    (koderz.folder / "koderz.toml").write_text('[suite.toy]\ntoy-words = 1\n[engine.toy]\ntoy-motto = "slowly"\n')

    done = toy(*chosen, "--limit", 6, "--toy-words", 2)

    assert "note: slowly" in done.err
    assert koderz.summary()["planned"] == 2
    toy(*chosen, 0, 3, "--dry-run", code=2)  # of one word


def test_option_without_effect_says_what_it_is_for(toy: Command) -> None:
    said = toy(*RUN, "--gpu", "L4", "--dry-run", code=2).err
    assert said.endswith("koderz: --gpu has no effect here: only the engine modal reads it\n")
    said = toy(*RUN, "--docker-image", "python:3.12-slim", "--dry-run", code=2).err
    assert said.endswith("koderz: --docker-image has no effect here: only the sandboxes docker or podman read it\n")


@pytest.mark.parametrize(
    "way", [("--model", "toy/a"), ("--model", "simulated", "--model=toy/a"), ("-m", "toy/a", "--mode", "zero-shot")]
)
def test_model_options_of_a_package_have_their_own_heading(toy: Command, way: tuple[str, ...]) -> None:
    shown = toy("benchmark", "run", *way, "--help").out

    assert "Model toy:" in shown
    assert "--toy-reply TEXT" in shown
    assert "--toy-reply" not in toy("benchmark", "run", "--help").out


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a flag", "a table", "a matrix"])
def test_package_models_answer_and_resume_with_their_options(koderz: Shell, toys: Mapping[str, str], how: str) -> None:
    model, table = {
        "a flag": (("--model", "toy/a", "--toy-reply", "hello"), ""),
        "a table": ((), '[model]\nname = "toy/a"\n[model.toy]\ntoy-reply = "hello"\n'),
        "a matrix": (("--matrix", "arms.toml", "--toy-reply", "hello"), ""),
    }[how]
    (koderz.folder / "koderz.toml").write_text(table)
    (koderz.folder / "arms.toml").write_text('[[arms]]\nsolver = "zero-shot"\nmodel = "toy/a"\n')
    run = (*RUN[:3], *RUN[5:], "--trust-config", *(() if how == "a matrix" else ("--mode", "zero-shot")), "--quiet")
    koderz(*run, *model, env=toys)
    assert koderz.journal()[0]["config"]["toy_reply"] == "hello"
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])

    koderz("benchmark", "resume", "latest", "--quiet", "--trust-config", env=toys)

    replies = [line["reply"] for line in koderz.journal() if line["kind"] == "call"]
    assert replies == ["a says hello"]


def test_own_file_is_run_whole_without_a_range(command: Command, koderz: Shell) -> None:
    rows = [f'{{"id": "q{n}", "input": "1 + {n}?", "target": "{n + 1}"}}' for n in range(7)]
    (koderz.folder / "q.jsonl").write_text("\n".join(rows))
    asked = ("benchmark", "--suite", "qa", "--model", "simulated", "--dry-run")

    assert "Tasks: 7 (q0 … q6)" in command(*asked, env={"KODERZ_DATASET": "q.jsonl"}).out
    assert "say which tasks" in command(*asked, code=2, env={"KODERZ_DATASET": ""}).err
