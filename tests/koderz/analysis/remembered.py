"""Runs in a memory store for tests, as the sink writes them, with as little said as a test cares about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from koderz_tracker.memory import Draft
from koderz_tracker.memory.store import Filter, Store
from tests.koderz.analysis.builders import row

Ends = Sequence[bool | str | None]
"""The ends of tasks T/0, T/1, …: whether each passed, its cause, or None for a fault."""


def run_id(number: int) -> str:
    return f"bench_{number:08x}_20260131_{number:06d}"


def experiment(run: str, arm: str, task: int, sample: int = 0) -> str:
    return "exp_" + hashlib.sha256(f"{run} {arm} {task} {sample}".encode()).hexdigest()[:16]


def remember(
    store: Store,
    number: int,
    arms: Mapping[str, Ends],
    *,
    model: str = "m",
    minute: int = 0,
    ended: bool = True,
    own: Mapping[str, Any] | None = None,
    **summary: Any,
) -> str:
    """A run of these arms, or what it has become by `minute`; `own`: more metadata of its experiments."""
    run, time = run_id(number), f"2026-02-01T12:{minute:02d}:00.000000"
    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    faults, drafts = [], []
    for arm, ends in arms.items():
        for task, end in enumerate(ends):
            own_id = experiment(run, arm, task)
            named = {"experiment_id": own_id, "problem_id": f"T/{task}", "arm": arm, "sample": 0}
            passed = None if end is None else end is True
            cause = end if isinstance(end, str) else "unreachable" if end is None else "" if passed else "assertion"
            facts = {**named, "solver": arm, "success": passed, "cause": cause, "model": model, "cost": 0.01}
            if end is None:
                faults.append({**facts, "reason": "gone"})
            else:
                more = {"arm": arm, "solver": arm, "model": model, "cause": cause}
                results[arm].append(row(f"T/{task}", passed is True) | named | more)
            simulated = model == "simulated"
            common = {"benchmark_run_id": run, "suite": "humaneval", "simulated": simulated, "iterations": 1}
            state = "fault" if end is None else "completed"
            drafts.append(
                Draft(
                    key=own_id,
                    title=f"Experiment {own_id}",
                    content=f"T/{task}",
                    tags=["result", own_id, f"T/{task}", state, run],
                    metadata={**common, **facts, "verdict": "passed" if passed else "failed", **(own or {})},
                    created_at=time,
                    updated_at=time,
                )
            )
    document = {
        "run_id": run,
        "mode": "comparative" if len(arms) > 1 else next(iter(arms)),
        "start_time": "2026-01-31T12:00:00.000000",
        "config": {"local_model": model, "suite": "humaneval", "temperature": 0.0},
        "arms": {arm: {"results": rows} for arm, rows in results.items()},
        "faults": faults,
        "planned": sum(map(len, arms.values())),
        "simulated": model == "simulated",
        "environment": {"dataset_digest": "d"},
        **summary,
    }
    if ended:
        end = f"2026-02-01T12:{minute:02d}:30.000000"
        text = json.dumps(document)
        title, tags = f"Benchmark Run {run}", ["benchmark_run", run]
        drafts.append(
            Draft(key=run, title=title, content=text, importance="critical", tags=tags, created_at=time, updated_at=end)
        )
    store.remember(drafts)
    return run


def forget_run(store: Store, run: str) -> None:
    """Takes a run and its experiments out of the store, as no command does."""
    store.delete(store.select(Filter(tags=[run])))
