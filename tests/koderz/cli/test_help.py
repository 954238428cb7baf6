"""Help: short and whole, and its examples."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence

import pytest

from koderz.cli.groups import examples_in
from tests.conftest import Shell
from tests.koderz.cli.conftest import Command
from tests.koderz.cli.test_options import ALL, options_of

NAMES = [name for name in ALL if name not in ("benchmark run", "judge run")]  # shown by their groups
ALONE = {"benchmark": "benchmark run", "judge": "judge run"}
NARROW = {"COLUMNS": "80"}


def words_of(name: str) -> Sequence[str]:
    return name.split() if name != "koderz" else ()


def examples_of(name: str) -> list[str]:
    return examples_in(ALL[name].help)[1]


@pytest.mark.parametrize("name", NAMES)
def test_help_is_short_and_ends_with_examples(command: Command, name: str) -> None:
    lines = command(*words_of(name), "--help", env=NARROW).out.splitlines()
    found = examples_of(ALONE.get(name, name))

    assert len(lines) <= 64
    assert max(len(line) for line in lines[: lines.index("Examples:")]) <= 80
    assert lines[lines.index("Examples:") :] == ["Examples:", *(f"  {example}" for example in found)]


@pytest.mark.parametrize("name", NAMES)
def test_help_all_has_every_option_and_ends_with_examples(command: Command, name: str) -> None:
    out = command(*words_of(name), "--help-all", env=NARROW).out
    shown = {flag for line in out.splitlines() for flag in re.findall(r"--[\w-]+", line) if line.startswith("  ")}
    found = examples_of(ALONE.get(name, name))

    assert {flag for param in options_of(ALONE.get(name, name)) for flag in param.opts if flag[:2] == "--"} <= shown
    assert out.endswith("\n".join(["\nExamples:", *(f"  {example}" for example in found), ""]))


def test_command_keeps_no_options_of_an_earlier_call() -> None:
    command = ALL["suites export"]
    before = list(command.params)
    command.main(["ruler", "--help-all"], standalone_mode=False)

    assert command.params == before


@pytest.mark.parametrize("name", list(ALL))
def test_help_has_one_to_four_examples_of_commands(name: str) -> None:
    found = examples_of(ALONE.get(name, name))

    assert 1 <= len(found) <= 4
    assert max(map(len, found)) <= 78
    assert name == "koderz" or any(example.startswith(f"koderz {name.removesuffix(' run')}") for example in found)


ELSEWHERE = {
    "koderz ui": "it serves until Ctrl-C",
    "koderz judge serve": "it serves until Ctrl-C",
    "koderz memory serve": "it serves until its client disconnects",
    "koderz mcp serve": "it serves until its client disconnects",
    "koderz wasm": "the image takes a minute, and the manager serves until Ctrl-C",
    "koderz modal": "it takes an account at Modal",
    "koderz perf serve-bench": "it takes a server",
    "koderz perf opt-at-k": "it takes GSO's images",
    "koderz perf run --mode": "it measures for minutes",
    "koderz perf check": "it measures for minutes",
    "koderz helps": "it takes a skill and tasks, or a minute",
    "koderz rollouts regrade": "it takes rows of SWE-bench",
    "koderz rollouts audit": "it tries each exploit on each task",
    "koderz benchmark calibrate": "it takes labels of people",
    "koderz benchmark cancel": "it takes a run in batches",
    "koderz benchmark import": "it is of another model's samples",
    "koderz run 3 --model": "it takes a key",
    "koderz suites add": "it takes a file of tasks",
    "koderz sync latest --sink mlflow": "it makes a database of MLflow's, which takes half a minute",
}
"""The examples that need what a test of help can't have, and why. They are parsed, and run by the tests of those."""

PLANNED = ("benchmark", "decide", "optimize")
"""The commands whose examples are planned alone where they name a model of somebody's."""

GATES = ("koderz benchmark compare", "koderz compare", "koderz judge", "koderz run", "koderz doctor", "koderz verify")
"""The examples whose exit code says what they found."""

EVERY = sorted({example for name in ALL for example in examples_of(name)})


@pytest.mark.parametrize("example", EVERY)
def test_help_examples_are_commands_that_parse(example: str) -> None:
    words = shlex.split(example)[1:]
    context = ALL["koderz"].make_context("koderz", words)
    while rest := [*context._protected_args, *context.args]:
        name, command, words = context.command.resolve_command(context, rest)
        context = command.make_context(name, words, parent=context)

    assert not hasattr(context.command, "commands")


@pytest.mark.slow
def test_help_examples_work(koderz: Shell) -> None:
    env: Mapping[str, str] = {
        "OPENAI_API_KEY": "sk-test-4f9a",
        "KODERZ_MODEL": "simulated",
        "KODERZ_SINKS": "json,memory",
    }
    begun = "koderz rollouts run"  # before what the other examples mean by `latest`
    koderz("rollouts", "run", env=env)
    for seed in (0, 1):
        koderz("benchmark", 0, 5, "--mode", "comparative", "--seed", seed, "--quiet", "--wait", env=env)
    koderz("benchmark", "export", "latest", "--format", "jsonl", "--arm", "iterative", "-o", "samples.jsonl")
    (koderz.folder / "program.py").write_text("def truncate_number(number: float) -> float:\n    return number % 1.0\n")
    koderz("memory", "export", "-o", "memories.json", env=env)

    first, last = "koderz rollouts sample", "koderz optimize results"  # what makes files, and what is of a run
    for example in sorted(EVERY, key=lambda each: (not each.startswith(first), each.startswith(last), each)):
        if example != begun and not example.startswith(tuple(ELSEWHERE)):
            words = shlex.split(example)[1:]
            more = ["--dry-run"] if words[0] in PLANNED and re.search("openai/|gpt-", example) else []
            code = (0, 1, 3) if example.startswith(GATES) else 0
            koderz(*words, *more, env=env, code=code)
            if example == "koderz rollouts sample tasks":
                tasks = koderz.folder / "tasks"
                for name in ("median", "slugs"):  # one of the tasks is enough
                    shutil.rmtree(tasks / name)
                (tasks / "sample.toml").write_text('name = "sample"\n[[tasks]]\nprepared_dir = "greeting"\n')


@pytest.mark.parametrize("name", NAMES)
def test_help_speaks_of_tasks(command: Command, name: str) -> None:
    """`problem` stays in names alone: --problem, --problems, --problems-file, problem_id, benchmark problems."""
    out = command(*words_of(name), "--help-all", env=NARROW).out
    text = re.sub(
        r"--problems?(-file)?\b|problem_id|^  problems  |koderz benchmark problems|export, problems\.",
        "",
        out,
        flags=re.MULTILINE,
    )

    assert not re.search(r"\bproblems?\b", text, re.IGNORECASE)


def test_help_of_benchmark_begins_with_what_is_asked(command: Command) -> None:
    out = command("benchmark", "--help", env=NARROW).out
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", out, re.MULTILINE)

    assert options[:5] == ["--suite", "--solver", "--dataset", "--tasks", "--limit"]
    assert "Solver:" not in out


def test_tasks_is_a_second_name_of_problems(command: Command) -> None:
    plan = command("benchmark", "--tasks", "3,HumanEval/7", "--model", "simulated", "--dry-run", "--json").out

    assert json.loads(plan)["config"]["problems"] == ["HumanEval/3", "HumanEval/7"]
