"""Records for tests, with as little said as a test cares about; `a_journal` makes a run of them."""

from __future__ import annotations

from typing import Any

from koderz.testing.factories import RUN as RUN
from koderz_tracker.records import Attempt, Call, Experiment, Fault


def experiment_id(task: int, solver: str = "zero-shot", sample: int = 0) -> str:
    return f"exp_{(task << 16) + (sample << 4) + (solver == 'iterative') + 0xAB00000000000000:016x}"


def call(task: int, number: int = 1, *, solver: str = "zero-shot", text: str = "hello", **more: Any) -> Call:
    given: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "reply": f"reply {number}",
        "tokens_in": 7,
        "tokens_out": 3,
        "cost": 0.25,
        "key": f"ask:{task}/{number}",
        **more,
    }
    return Call(
        experiment_id=experiment_id(task, solver, given.pop("sample", 0)),
        call=number,
        purpose="attempt",
        model="m",
        **given,
    )


def attempt(task: int, number: int = 1, *, solver: str = "zero-shot", verdict: str = "failed", **more: Any) -> Attempt:
    given = {"key": f"judge:{task}/{number}", "call": number, **more}
    return Attempt(
        experiment_id=experiment_id(task, solver),
        problem_id=f"T/{task}",
        solver=solver,
        arm=solver,
        sample=0,
        number=number,
        verdict=verdict,
        **given,
    )


def judged(task: int, success: bool = True, *, solver: str = "zero-shot", sample: int = 0, **more: Any) -> Experiment:
    given = {
        "model": "m",
        "verdict": "passed" if success else "failed",
        "cause": "" if success else "assertion",
        "iterations": 1,
        "calls": 1,
        "cost": 0.25,
        "tokens_in": 7,
        "tokens_out": 3,
        "latency": 0.5,
        **more,
    }
    return Experiment(
        experiment_id=experiment_id(task, solver, sample),
        problem_id=f"T/{task}",
        solver=solver,
        arm=solver,
        sample=sample,
        success=success,
        **given,
    )


def fault(task: int, *, solver: str = "zero-shot", sample: int = 0, **more: Any) -> Fault:
    given = {"reason": "gone", "cause": "unreachable", **more}
    return Fault(
        experiment_id=experiment_id(task, solver, sample),
        problem_id=f"T/{task}",
        solver=solver,
        arm=solver,
        sample=sample,
        **given,
    )
