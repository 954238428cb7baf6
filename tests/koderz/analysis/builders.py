"""Summary files and runs for tests of the analysis, with as little said as a test cares about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from koderz.analysis.judged import Labelled
from koderz.analysis.runs import Run, load_summary

RUN = "bench_0a1b2c3d_20260131_120000"
OTHER = "bench_0a1b2c3e_20260131_130000"

Outcomes = Sequence[bool] | Mapping[str, Sequence[bool]]


def row(problem: str, success: bool, sample: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "experiment_id": "exp_" + hashlib.sha256(f"{problem} {sample}".encode()).hexdigest()[:16],
        "problem_id": problem,
        "success": success,
        "iterations": 1,
        "cost": 0.01,
        "sample": sample,
        "verdict": "passed" if success else "failed",
        "cause": "" if success else "assertion",
        **more,
    }


def rows(outcomes: Outcomes, **more: Any) -> list[dict[str, Any]]:
    """One row a task T/0, T/1, … with one outcome each, or the samples of each named task."""
    named = outcomes if isinstance(outcomes, Mapping) else {f"T/{i}": [passed] for i, passed in enumerate(outcomes)}
    return [row(task, passed, sample, **more) for task, all_ in named.items() for sample, passed in enumerate(all_)]


def arm(outcomes: Outcomes, **more: Any) -> dict[str, Any]:
    results = rows(outcomes, **more)
    wins = sum(row["success"] for row in results)
    rate = 100 * wins / len(results) if results else 0.0
    return {
        "results": results,
        "summary": {"total_problems": len(results), "successes": wins, "success_rate": rate},
    }


def document(
    outcomes: Outcomes = (True, False), *, model: str = "m", cost: float = 0.01, **more: Any
) -> dict[str, Any]:
    """A summary in single mode."""
    return {
        "run_id": RUN,
        "mode": "zero-shot",
        "start_time": "2026-01-31T12:00:00.000000",
        "end_time": "2026-01-31T12:01:00.000000",
        "duration_seconds": 60.0,
        "config": {"local_model": model, "suite": "humaneval"},
        **arm(outcomes, cost=cost),
        **more,
    }


def comparative(zero_shot: Outcomes, iterative: Outcomes, **more: Any) -> dict[str, Any]:
    base = {name: value for name, value in document().items() if name not in ("results", "summary")}
    return {**base, "mode": "comparative", "zero_shot": arm(zero_shot), "iterative": arm(iterative), **more}


def calibration(labels: int, failed: int, false_passes: int) -> dict[str, Any]:
    """The figures of a judge by drawn labels, which passes so many of those that people fail, and errs nowhere else."""
    from koderz.systems.publishing.agreement import corrected

    items = [Labelled(str(n), float(n >= failed or n < false_passes), {"": float(n >= failed)}) for n in range(labels)]
    return {
        "judge": "j",
        "items": labels,
        "drawn": True,
        "sensitivity": {"share": 1.0, "items": labels - failed},
        "specificity": {"share": 1 - false_passes / failed, "items": failed},
        "corrected": asdict(corrected({"other": [1.0]}, items, drawn=True)),
        "rectifier": {"mean": -false_passes / labels, "variance": 0.001},
        "labelled": [[[each.judged, each.label]] for each in items],
        "clusters": None,
    }


def write(path: Path, summary: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary))
    return path


def run(folder: Path, outcomes: Outcomes, name: str = "run.json", **more: Any) -> Run:
    """A run with these outcomes, as read from a file."""
    return load_summary(write(folder / name, document(outcomes, **more)))
