"""A run of patches in GSO's form: its parser finds the same statuses, and the same times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koderz.analysis.story import Story, StoryStep
from koderz.errors import KoderzError
from koderz.systems.patches.formats import gso
from koderz.systems.patches.gso import read_predictions, status_of, times_of
from koderz_tracker import records

RUN = "bench_0a1b2c3d_20260131_120000"


def planned(**more: Any) -> records.Plan:
    arms = [
        records.Arm(name=name, solver=solver, models={"main": "org/m"})
        for name, solver in (("human", "patch:human"), ("agent", "patching"))
    ]
    return records.Plan(
        run_id=RUN,
        arms=arms,
        tasks=["a"],
        config={"clock": "cpu"},
        **{"mode": "perf", "samples": 1, "environment": {}, **more},
    )


def block(base: float, agent: float, human: float) -> dict[str, Any]:
    times = {"base": base, "agent": agent, "human": human, "again": base}
    work = {leg: {"first": {"cpu": each, "wall": 9.0}, "second": {"cpu": 2 * each}} for leg, each in times.items()}
    return {"legs": {leg: {"work": each} for leg, each in work.items()}}


def story(status: str, task: str = "a", arm: str = "agent", fault: str = "", sample: int = 0) -> Story:
    of: dict[str, Any] = {
        "experiment_id": "exp_0",
        "problem_id": task,
        "solver": {"human": "patch:human"}.get(arm, "patching"),
        "arm": arm,
        "sample": sample,
    }
    program = "" if status == "empty_patch" else "--- a\n"
    attempt = records.Attempt(
        **of,
        number=1,
        call=None,
        verdict="failed",
        program=program,
        metrics={"blocks": 2.0},
        facts={"status": status},
    )
    made = {"block/1": block(1.0, 0.5, 0.4), "block/2": block(1.1, 0.6, 0.5), "block/3": block(9.0, 9.0, 9.0)}
    ended: Any = (
        records.Fault(**of, reason=fault, cause=fault.partition(":")[0])
        if fault
        else records.Experiment(**of, success=False, verdict="failed", cause="", iterations=1)
    )
    steps = () if fault else (StoryStep(None, attempt, (), ()),)
    return Story("exp_0", task, of["solver"], arm, sample, steps, ended, (), made)


@pytest.mark.parametrize("status", ["passed", "test_failed", "patch_failed"])
def test_log_tells_the_verdict(status: str, tmp_path: Path) -> None:
    gso([(planned(), story(status)), (planned(), story("passed", arm="human"))], tmp_path)
    (log,) = tmp_path.rglob("test_output.txt")
    assert log.parent == tmp_path / "logs" / "run_evaluation" / RUN / "org__m" / "a"
    assert status_of(log.read_text()) == status
    if status == "passed":
        assert times_of(log.read_text()) == {
            "base": [[1.0, 1.1], [2.0, 2.2]],
            "patch": [[0.5, 0.6], [1.0, 1.2]],
            "commit": [[0.4, 0.5], [0.8, 1.0]],
            "main": None,
        }


def test_moved_work_is_among_the_times(tmp_path: Path) -> None:
    told = story("passed")
    attempt = told.steps[0].attempt
    assert attempt
    attempt.facts["hack"] = "moved"
    for name in ("block/1", "block/2"):
        for leg, whole in {"base": 5.0, "agent": 4.5, "human": 3.0}.items():
            found = told.made[name]["legs"][leg]
            found["cpu"] = whole
            found["work"] = {"first": {"cpu": whole - 2, "wall": whole, "total": whole - 2}}
    told.made["block/2"]["legs"]["agent"]["work"]["first"] = {"cpu": 0.25, "wall": 0.5, "total": 0.5}
    gso([(planned(), told)], tmp_path)
    (log,) = tmp_path.rglob("test_output.txt")
    assert times_of(log.read_text())["patch"] == [[2.5, 1.25]]


def test_log_is_written_for_evaluations_and_broken_tasks_alone(tmp_path: Path) -> None:
    told = [
        story("empty_patch", "a"),
        story("", "b", fault="noise: too much"),
        story("", "c", fault="base_failed: it is"),
    ]
    gso([(planned(), each) for each in told], tmp_path)
    (log,) = tmp_path.rglob("test_output.txt")
    assert (log.parent.name, status_of(log.read_text())) == ("c", "base_failed")
    (found,) = read_predictions(tmp_path / "predictions.jsonl")
    assert {name: each["model_patch"] for name, each in found.items()} == {"a": "", "b": "", "c": ""}


def test_samples_are_files_of_predictions_by_separate_models(tmp_path: Path) -> None:
    gso([(planned(samples=2), story("passed", sample=sample)) for sample in (0, 1)], tmp_path)
    for sample in (0, 1):
        (row,) = map(json.loads, (tmp_path / f"predictions_run_{sample}.jsonl").read_text().splitlines())
        assert row == {"instance_id": "a", "model_patch": "--- a\n", "model_name_or_path": f"org/m-run_{sample}"}
        assert (tmp_path / f"logs/run_evaluation/{RUN}/org__m-run_{sample}/a/test_output.txt").exists()


def test_run_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="no run of koderz perf"):
        gso([(planned(mode="iterative"), story("passed"))], tmp_path)
