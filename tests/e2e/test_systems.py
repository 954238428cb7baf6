"""A sixth system, installed as somebody else's package by one entry point: it has every door that koderz' own have."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import toys
from tests.conftest import Shell

ALOUD = ("--suite", "toy", "--solver", "toy-aloud", "--model", "simulated")


@pytest.fixture
def installed(tmp_path: Path) -> Mapping[str, str]:
    return toys.installed(tmp_path)


def test_system_of_a_package_has_commands_of_its_own(koderz: Shell, installed: Mapping[str, str]) -> None:
    assert "toys       Play with words." in koderz("--help", env=installed).out
    assert "Toy/0" not in koderz("toys", "play", "--book", "b", "--quiet", env=installed).err
    assert (koderz.folder / "b" / "book.txt").read_text() == "Toy/2\nToy/4\nToy/5\n"

    shown = koderz("toys", "play", "--help", env=installed).out
    assert "--toy-loudness" in shown
    assert "--toy-words" in shown

    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    (koderz.folder / "b" / "book.txt").unlink()
    koderz("benchmark", "resume", "latest", "--quiet", env=installed)
    assert (koderz.folder / "b" / "book.txt").read_text() == "Toy/2\nToy/4\nToy/5\n"
    ends = [line["experiment_id"] for line in koderz.journal() if line["kind"] == "experiment"]
    assert len(ends) == len({*ends}) == 6


def test_system_of_a_package_names_its_options(koderz: Shell, installed: Mapping[str, str]) -> None:
    shown = koderz("benchmark", "run", *ALOUD, "--help", env=installed).out
    for heading, flag in (("Suite toy:", "--toy-words"), ("Solver toy-aloud:", "--toy-loudness")):
        assert heading in shown
        assert flag in shown

    (koderz.folder / "koderz.toml").write_text("[solver.toy-aloud]\ntoy-loudness = 3\n")
    koderz("benchmark", 0, 2, *ALOUD, "--toy-words", 3, "--quiet", env=installed)
    config = koderz.journal()[0]["config"]
    assert (config["toy_words"], config["toy_loudness"]) == (3, 3)
    assert koderz.summary()["results"][0]["metrics"]["loudness"] == 3.0


def test_system_of_a_package_presents_its_runs(koderz: Shell, installed: Mapping[str, str]) -> None:
    done = koderz("benchmark", 0, 2, *ALOUD, env=installed)
    run = koderz.summary()["run_id"]

    assert f"All was said in {run}" in done.out
    assert "Toy/1 was said" in done.err
    assert koderz.summary()["letters"] == {"toy-aloud": {"wrong": 14.0}}
    assert run in koderz("benchmark", "list", env=installed).out
    assert run in koderz("benchmark", "show", "latest", env=installed).out
    koderz("benchmark", "report", "latest", "-o", "page.html", env=installed)
    assert "Letters of 2 words." in (koderz.folder / "page.html").read_text()
    exported = koderz("benchmark", "export", "latest", "--format", "replies", env=installed).out
    assert exported == f"{run} Toy/0 stressed\n{run} Toy/1 drawer\n"


def test_system_of_a_package_compares_its_runs(koderz: Shell, installed: Mapping[str, str]) -> None:
    for _ in range(2):
        koderz("benchmark", 0, 2, *ALOUD, "--quiet", env=installed)
    names = sorted(path.stem for path in koderz.results.glob("bench_*.json"))

    compared = ("benchmark", "compare", *names, "--allow-simulated")
    assert f"Equally loud: {', '.join(names)}" in koderz(*compared, env=installed).out
    assert json.loads(koderz(*compared, "--json", env=installed).out)["loud"] == names


def test_system_of_a_package_makes_solvers_by_the_beginning_of_a_name(
    koderz: Shell, installed: Mapping[str, str]
) -> None:
    line = ("benchmark", 0, 1, "--suite", "toy", "--model", "simulated", "--quiet", "--solver", "toy-times-3")
    koderz(*line, env=installed)

    assert [line["kind"] for line in koderz.journal()].count("call") == 3
    assert "toy-times-*" not in koderz("benchmark", 0, 1, "--solver", "nobody", env=installed, code=2).err


def test_doctor_looks_at_what_the_system_of_a_package_needs(koderz: Shell, installed: Mapping[str, str]) -> None:
    def toys_in(env: Mapping[str, str]) -> dict[str, str]:
        found = json.loads(koderz("doctor", "--json", env=env, code=(0, 1)).out)
        return next(each for each in found if each["what"] == "toys")

    assert toys_in(installed)["detail"] == "six words"
    stuck = toys_in({**installed, "TOY_CLOSED": "broken"})
    assert (stuck["state"], stuck["detail"]) == ("broken", "its check failed: OSError: the box is stuck")


def test_completion_offers_names_of_the_systems_of_packages(koderz: Shell, installed: Mapping[str, str]) -> None:
    def offered(*words: str) -> list[str]:
        line = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "_KODERZ_COMPLETE": "complete_bash"}
        return koderz(env={**installed, **line}).out.split()

    assert offered("koderz", "benchmark", "run", "--suite", "toy") == ["toy", "toy-session", "toy-timed"]
    assert offered("koderz", "benchmark", "run", "--solver", "toy") == ["toy", "toy-aloud"]
    assert offered("koderz", "benchmark", "run", "--sink", "letter") == ["letter-file"]
    assert offered("koderz", "toy") == ["toys"]


def test_entry_points_of_single_things_need_no_system(koderz: Shell, tmp_path: Path) -> None:
    env = toys.installed(tmp_path, toys.SINGLE)
    line = ("benchmark", 0, 3, "--suite", "toy", "--solver", "toy", "--model", "toy/a", "--role", "helper=simulated")
    koderz(*line, "--toy-hints", 0, "--quiet", env=env)

    summary = koderz.summary()
    assert summary["letters"]["toy"]["wrong"] > 0
    assert list(koderz.results.glob("bench_*/letters.txt"))
    exported = koderz("benchmark", "export", "latest", "--format", "replies", env=env).out
    assert exported.startswith(f"{summary['run_id']} Toy/0 ")


BROKEN = {
    "import nowhere": "ModuleNotFoundError: No module named 'nowhere'",
    "from koderz.settings.systems import System\nSYSTEM = System(name='acme', suits={})": (
        "System has no member `suits`; did you mean `suites`?"
    ),
    "SYSTEM = 1": "TypeError: it is no koderz.extend.System",
    "1 +": "SyntaxError: ",
}


@pytest.mark.parametrize("text", BROKEN, ids=["import", "member", "value", "syntax"])
def test_doctor_says_why_a_system_is_left_out(koderz: Shell, tmp_path: Path, text: str) -> None:
    env = toys.installed(tmp_path, {"koderz.systems": {"toys": "toy_system:SYSTEM", "acme": "acme_koderz:SYSTEM"}})
    (Path(env["PYTHONPATH"].partition(os.pathsep)[0]) / "acme_koderz.py").write_text(text)

    shown = koderz("--help", env=env)
    assert "toys       Play with words." in shown.out
    assert not shown.err
    koderz("benchmark", 0, 1, *ALOUD, "--quiet", env=env)

    found = json.loads(koderz("doctor", "--json", env=env, code=1).out)
    (finding,) = (each for each in found if each["what"] == "system acme")
    assert finding["state"] == "broken"
    assert finding["detail"].startswith(f"acme_koderz:SYSTEM can't be loaded: {BROKEN[text]}")
    assert "\n" not in finding["detail"]
