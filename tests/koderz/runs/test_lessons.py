"""What an experiment taught is recorded as its suite tells it, and projected into memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.testing import a_model
from koderz.types import Lesson, Message, Sampling, Task, Verdict
from tests.koderz.world import Run, begun, planned, resumed


def at_the_second(messages: Sequence[Message], sampling: Sampling) -> str:
    return "GOOD" if len(messages) > 2 else "BAD"


def learning(folder: Path, monkeypatch: pytest.MonkeyPatch, lesson: Any, *, then: Any = None) -> Run:
    async def go() -> Run:
        plan = await planned(folder, 1, mode="iterative", max_iterations=3)
        suite = type(plan.suite)
        monkeypatch.setattr(suite, "lesson", lesson, raising=False)
        run = await begun(plan, a_model(at_the_second))
        if then:
            monkeypatch.setattr(suite, "lesson", then)
            run = await resumed(run.folder, plan, a_model("GOOD"), faults=True)
        return run

    return asyncio.run(go())


def taught(_: object, task: Task, verdicts: Sequence[Verdict]) -> Lesson:
    return Lesson(verdicts[0].cause, f"{task.id}: {' then '.join(one.verdict for one in verdicts)}")


def broken(*_: object) -> Lesson:
    raise ValueError("no lesson")


def test_lesson_of_a_suite_is_in_the_record_of_its_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (outcome,) = learning(tmp_path, monkeypatch, taught).of("experiment")

    assert outcome.success
    assert (outcome.lesson_cause, outcome.lesson) == ("assertion", "T/0: failed then passed")


def test_lesson_that_fails_is_a_fault_and_a_retry_makes_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = learning(tmp_path, monkeypatch, broken, then=taught)

    (fault,) = run.of("fault")
    assert fault.reason == "the suite's lesson raised ValueError: no lesson"
    (outcome,) = run.of("experiment")
    assert outcome.lesson == "T/0: failed then passed"
    assert len(run.of("call")) == 2
