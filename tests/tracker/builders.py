"""Records and runs for tests, with as little said as a test cares about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from koderz_tracker.records import Arm, Attempt, Call, Experiment, Fault, Plan, Record
from koderz_tracker.tracker import Tracker

RUN = "bench_0a1b2c3d_20260131_120000"


def plan(tasks: int = 3, *, solvers: Sequence[str] = ("zero-shot",), run_id: str | None = RUN, **more: Any) -> Plan:
    """Tasks T/0, T/1, …"""
    given = {
        "mode": "comparative" if len(solvers) > 1 else solvers[0],
        "samples": 1,
        "config": {"local_model": "m"},
        "environment": {"python": "3.11"},
        **more,
    }
    model = given["config"].get("local_model", "m")
    arms = [Arm(name=solver, solver=solver, models={"main": model}) for solver in solvers]
    return Plan(run_id=run_id, arms=arms, tasks=[f"T/{i}" for i in range(tasks)], **given)


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


async def recorded(results: Path, *records: Record, of: Plan | None = None) -> Path:
    """The folder of a run that holds these records after its plan."""
    of = of or plan()
    with Tracker.create(results, of.run_id or experiment_id(0), of) as tracker:
        for record in records:
            await tracker.record(record)
    return tracker.folder
