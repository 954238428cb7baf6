"""The files of a run of rollouts while it goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest

from koderz.systems.rollouts.results import files
from koderz_tracker import records
from koderz_tracker.summary import Summary
from koderz_tracker.tracker import Tracker

NAME, STAMP = "bench_00000000_20260101_000000", "20260101__00-00-00"
RUNS = [f"exp_{number:016x}" for number in range(1, 5)]


def about_files(folder: Path) -> dict[str, object]:
    return {
        "output": str(folder / "data"),
        "data": "data",
        "name": "nightly",
        "stamp": STAMP,
        "config": "nightly.toml",
        "runs": {run: {"task_id": "one", "task_dir": "tasks/one"} for run in RUNS},
        "tasks": {"one": {"title": "", "notes": "", "repo_info": {}}},
    }


def ended(run: str) -> records.Experiment:
    return records.Experiment(
        experiment_id=run,
        problem_id="one",
        solver="nop",
        arm="nop",
        sample=0,
        model="",
        success=False,
        verdict="failed",
        score=0.0,
    )


def test_tasks_that_were_left_out_are_listed(tmp_path: Path) -> None:
    left_out = [{"id": "broken", "why": "not TOML"}]
    plan = records.Plan(
        run_id=NAME,
        mode="rollouts",
        arms=[records.Arm(name="nop", solver="nop", models={})],
        tasks=["one"],
        samples=1,
        config={},
        environment={},
        details={"suite": {"left_out": left_out}},
    )

    async def write() -> None:
        with Tracker.create(tmp_path, NAME, plan):
            files.RolloutFiles(tmp_path / NAME, about_files(tmp_path)).write(cast("Summary", None))

    asyncio.run(write())
    listed = tmp_path / f"data/rollouts/nightly/{STAMP}/left-out.json"
    assert json.loads(listed.read_bytes()) == left_out


def test_lists_are_written_sparingly_and_whole_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = records.Plan(
        run_id=NAME,
        mode="rollouts",
        arms=[records.Arm(name="nop", solver="nop", models={})],
        tasks=["one"],
        samples=4,
        config={},
        environment={},
    )
    now = 100.0

    def clock() -> float:  # by which each writing of the lists takes a second
        nonlocal now
        now += 0.5
        return now

    monkeypatch.setattr("koderz.systems.rollouts.results.files.monotonic", clock)

    def listed() -> int:
        manifest = tmp_path / f"data/rollouts/nightly/{STAMP}/manifest.json"
        return len(json.loads(manifest.read_bytes())["results"])

    async def go() -> list[int]:
        nonlocal now
        seen = []
        with Tracker.create(tmp_path, NAME, plan) as tracker:
            written = files.RolloutFiles(tmp_path / NAME, about_files(tmp_path))
            for run, later in zip(RUNS, (0, 0, 30, 0), strict=True):
                now += later
                await tracker.record(ended(run))
                written.take(ended(run))
                seen.append(listed())
            written.write(cast("Summary", None))  # which it doesn't look at
            return [*seen, listed()]

    assert asyncio.run(go()) == [1, 1, 3, 3, 4]
    assert len([*(tmp_path / "data/runs").iterdir()]) == 4
