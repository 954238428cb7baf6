"""Why attempts failed, and what iterating fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.analysis.failures import Cause, Failures, failures_of, unrecovered
from koderz.analysis.pairs import Side
from koderz.analysis.runs import load_run
from koderz.testing import a_journal, a_plan
from koderz_tracker.records import Record
from tests.koderz.analysis import builders
from tests.tracker import builders as journals


def recorded(folder: Path, *records: Record) -> Failures:
    plan = a_plan(arms=("iterative",))
    return failures_of(Side(load_run(a_journal(folder, *records, plan=plan)), "iterative"))


def attempt(task: int, number: int, cause: str) -> Record:
    verdict = "failed" if cause else "passed"
    return journals.attempt(task, number, solver="iterative", verdict=verdict, cause=cause)


def judged(task: int, success: bool, iterations: int, cause: str = "") -> Record:
    return journals.judged(task, success, solver="iterative", iterations=iterations, cause=cause)


def test_attempts_are_grouped_by_cause_and_what_was_fixed_is_counted(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        attempt(0, 1, "syntax"),
        attempt(0, 2, ""),
        judged(0, True, 2),
        attempt(1, 1, "syntax"),
        attempt(1, 2, "assertion"),
        attempt(1, 3, "assertion"),
        judged(1, False, 3, "assertion"),
    )

    assert found.from_attempts
    assert found.causes == [
        Cause(cause="assertion", attempts=2, experiments=1, fixed=0, ended=1),
        Cause(cause="syntax", attempts=2, experiments=2, fixed=1, ended=0),
    ]
    assert [cause.cause for cause in found.never_fixed] == ["assertion"]
    assert unrecovered(found, 8) == "assertion errors"
    assert found.solved_at == {2: 1}
    assert found.cost_per_solved_task == pytest.approx(0.5)
    assert found.tokens_to_solution == 10


def test_failures_count_a_rescored_attempt_by_its_last_verdict(tmp_path: Path) -> None:
    found = recorded(tmp_path, attempt(0, 1, "wall"), attempt(0, 1, "assertion"), judged(0, False, 1, "assertion"))

    assert found.causes == [Cause(cause="assertion", attempts=1, experiments=1, fixed=None, ended=1)]


def test_attempts_of_an_experiment_without_an_end_are_not_counted(tmp_path: Path) -> None:
    assert recorded(tmp_path, attempt(0, 1, "syntax")).causes == []


def test_failures_without_a_journal_know_the_ends_alone(tmp_path: Path) -> None:
    run = builders.run(tmp_path, [True, False, False])

    found = failures_of(Side(run, "zero-shot"))

    assert not found.from_attempts
    assert found.causes == [Cause(cause="assertion", attempts=None, experiments=2, fixed=None, ended=2)]
    assert found.never_fixed == []
    assert found.cost_per_solved_task == pytest.approx(0.03)


def test_cost_per_solution_without_solutions_is_absent(tmp_path: Path) -> None:
    none = failures_of(Side(builders.run(tmp_path, []), "zero-shot"))

    assert (none.cost_per_solved_task, none.tokens_to_solution, none.causes) == (None, None, [])
