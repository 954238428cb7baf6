"""A command of a system in a few lines: it has all that `koderz benchmark` does around a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import typer

from koderz.cli.front import Front, add_resume_commands, run_options
from koderz.cli.groups import PanelCommand
from koderz.errors import KoderzError
from tests.conftest import Done, Shell
from tests.toys import installed

app = typer.Typer(rich_markup_mode=None)


@app.command(name="run", cls=PanelCommand)
@run_options(suite="toy", solver="toy", toy_helper="simulated")
def backwards(front: Front, count: Annotated[int, typer.Argument(help="How many words.")] = 2) -> None:
    """Say the first COUNT words backwards."""
    front.run(range(count))


add_resume_commands(app)


@pytest.fixture
def front(
    koderz: Shell,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[Any, Done]]:
    """Runs the command where the packages are installed: its exit code, and what it printed."""
    toys = installed(tmp_path_factory.mktemp("toys"))["PYTHONPATH"]
    monkeypatch.syspath_prepend(toys.partition(os.pathsep)[0])
    monkeypatch.chdir(koderz.folder)
    for name, value in koderz.environment().items():
        monkeypatch.setenv(name, value)

    def call(*arguments: object) -> tuple[Any, Done]:
        code = app([str(argument) for argument in arguments], standalone_mode=False)
        printed = capsys.readouterr()
        return code, Done(printed.out, printed.err)

    return call


def test_front_command_runs_its_suite_and_solver(front: Any, koderz: Shell) -> None:
    code, done = front("run", 3, "--model", "simulated", "--toy-hints", 2)

    summary = koderz.summary()
    assert (code, summary["status"], summary["planned"]) == (0, "complete", 3)
    assert (summary["config"]["suite"], summary["config"]["toy_hints"]) == ("toy", 2)
    assert "BENCHMARK SUMMARY SAVED" in done.out


def test_front_command_prints_its_plan_and_json(front: Any, koderz: Shell) -> None:
    _, planned = front("run", "--model", "simulated", "--dry-run")
    assert "Suite: toy (six words)" in planned.out
    assert not koderz.results.exists()

    _, done = front("run", 1, "--model", "simulated", "--json")
    assert json.loads(done.out)["planned"] == 1


def test_dry_run_asks_a_sample_and_keeps_it(front: Any, koderz: Shell) -> None:
    _, done = front("run", 5, "--model", "simulated", "--dry-run", "--sample", 2)

    summary = koderz.summary()
    first, head, *plan = done.out.splitlines()
    assert first == f"SAMPLE: 2 of 5 tasks cost $0.0000, kept as run {summary['run_id']}"
    assert head == "PLAN (nothing else is asked, nothing else is written)"
    assert (summary["planned"], summary["status"], summary["config"]["tags"]) == (2, "complete", ["dry-run"])
    assert any(line.startswith("Likely figures: by 2 experiments of 1 run with the same model") for line in plan)
    assert "SAMPLE" not in front("run", 5, "--model", "simulated", "--dry-run")[1].out


def test_sample_without_a_dry_run_is_refused(front: Any) -> None:
    with pytest.raises(KoderzError, match="it goes with --dry-run"):
        front("run", 5, "--model", "simulated", "--sample", 3)


def test_front_command_has_its_options_in_the_help(front: Any) -> None:
    _, done = front("run", "--help")

    assert "\nSolver toy:\n" in done.out
    assert "[count]" in done.out
    assert "Suite: toy" in front("run", "--model", "simulated", "--solver", "zero-shot", "--dry-run")[1].out


def test_front_command_resumes_with_what_is_on_record(front: Any, koderz: Shell) -> None:
    code, _ = front("run", 1, "--model", "simulated", "--simulated-fault-rate", 1, "--quiet")
    assert code == 3
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    plan = journal.read_bytes().splitlines(keepends=True)[0]
    journal.write_bytes(plan.replace(b'"simulated_fault_rate":1.0', b'"simulated_fault_rate":0.0'))

    code, _ = front("resume", "latest", "--quiet", "--trust-config")

    assert (code, koderz.summary()["status"]) == (0, "complete")
