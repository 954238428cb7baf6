"""Completions of what faults left out: Manski's bounds, by any measure that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import koderz
from koderz.analysis.completion import completed, with_faults_failed
from koderz.analysis.measures import SUCCESS, measure_named
from koderz.analysis.pairs import Side
from koderz.analysis.runs import Run
from tests.koderz.analysis import builders

SCORE = {"name": "score", "direction": "higher", "unit": "share"}


def fault(task: str, sample: int = 0, **more: Any) -> dict[str, Any]:
    given = {"arm": "zero-shot", "solver": "zero-shot", "sample": sample, "reason": "gone", "cause": "unreachable"}
    return {"experiment_id": f"exp_{task}_{sample}", "problem_id": task, **given, **more}


def scored(folder: Path, scores: dict[str, float], name: str, **more: Any) -> Run:
    rows = [builders.row(task, score > 0.5, score=score, latency=score) for task, score in scores.items()]
    return builders.run(folder, [], name, results=rows, summary={}, run_id=name.removesuffix(".json"), **more)


def test_completion_of_a_score_goes_to_its_bounds(tmp_path: Path) -> None:
    tasks = [f"T/{i}" for i in range(40)]
    a = scored(tmp_path, dict.fromkeys(tasks, 0.5), "a.json", measures=[SCORE])
    b = scored(tmp_path, dict.fromkeys(tasks[:30], 0.9), "b.json", measures=[SCORE], faults=[*map(fault, tasks[30:])])
    few = scored(tmp_path, dict.fromkeys(tasks[:38], 0.9), "c.json", measures=[SCORE], faults=[*map(fault, tasks[38:])])

    found = koderz.compare(a, b, measure="score")
    assert found.completion is not None
    assert found.completion.differences == pytest.approx((0.75 * 0.9 - 0.5, 0.75 * 0.9 + 0.25 - 0.5))
    assert (found.significant, koderz.compare(a, few, measure="score").significant) == (True, True)
    worse = scored(
        tmp_path, dict.fromkeys(tasks[:30], 0.6), "d.json", measures=[SCORE], faults=[*map(fault, tasks[30:])]
    )
    held = koderz.compare(a, worse, measure="score")
    assert held.p_value is not None
    assert held.p_value < 0.001
    assert not held.significant
    assert held.verdict.startswith("No claim in score: +0.1")


def test_completion_of_a_measure_without_bounds_claims_nothing(tmp_path: Path) -> None:
    tasks = [f"T/{i}" for i in range(40)]
    a = scored(tmp_path, dict.fromkeys(tasks, 0.5), "a.json")
    b = scored(tmp_path, dict.fromkeys(tasks[:39], 0.9), "b.json", faults=[fault(tasks[39])])

    found = koderz.compare(a, b, measure="latency")

    assert found.verdict.endswith("1 fault of B (T/39) could turn it, since the measure has no bounds.")
    other = scored(tmp_path, dict.fromkeys(tasks[:39], 0.9), "c.json", faults=[fault("X/0")])
    assert koderz.compare(a, other, measure="latency").significant  # a fault on a task that A doesn't have
    assert koderz.compare(a, other, measure="latency").completion is None


def test_completion_takes_samples_of_a_task_with_their_faults(tmp_path: Path) -> None:
    a = builders.run(tmp_path, {f"T/{i}": [False, False] for i in range(12)}, "a.json")
    b = builders.run(
        tmp_path, {f"T/{i}": [True] for i in range(12)}, "b.json", faults=[fault(f"T/{i}", 1) for i in range(12)]
    )

    found = koderz.compare(a, b)

    assert found.completion is not None
    assert found.completion.differences == pytest.approx((50.0, 100.0))
    assert found.significant
    assert koderz.compare(a, b, faults="fail").difference == pytest.approx(50.0)


def test_completion_of_unpaired_runs_takes_all_of_their_faults(tmp_path: Path) -> None:
    a = builders.run(tmp_path, {f"A/{i}": [i % 2 == 0] for i in range(30)}, "a.json")
    b = builders.run(
        tmp_path, {f"B/{i}": [True] for i in range(30)}, "b.json", faults=[fault(f"B/{i}") for i in range(30, 60)]
    )

    found = koderz.compare(a, b)

    assert found.p_value is not None
    assert found.p_value < 0.001
    assert not found.significant
    assert found.completion is not None
    assert found.completion.differences == pytest.approx((0.0, 50.0))


def test_completion_leaves_out_faults_on_tasks_that_stand_apart(tmp_path: Path) -> None:
    run = builders.run(tmp_path, [True] * 4, faults=[fault("T/4", apart=True), fault("T/5")])
    side = Side(run, "zero-shot")

    assert run.arms["zero-shot"].summary.success_rate_bounds == (80.0, 100.0)
    worst = completed(side, SUCCESS, best=False)
    assert worst is not None
    assert [result.problem_id for result in worst.results if not result.success] == ["T/5"]
    failed = with_faults_failed(run)
    assert [each["problem_id"] for each in failed.faults] == ["T/4"]
    assert failed.summary.success_rate == 80.0
    assert measure_named("latency", [failed])
    assert len(Side(failed, "zero-shot").values(measure_named("latency", [failed]))) == 4


def test_completion_of_several_arms_is_corrected_for_all(tmp_path: Path) -> None:
    outcomes = {"x": [False] * 20, "y": [True] * 7 + [False] * 13, "z": [True] * 6 + [False] * 13}
    arms = {name: builders.arm(given) for name, given in outcomes.items()}
    document = {key: value for key, value in builders.document().items() if key not in ("results", "summary")}
    lost = [fault("T/19", arm="z", solver="z")]
    path = builders.write(tmp_path / "run.json", {**document, "mode": "m", "arms": arms, "faults": lost})

    found = koderz.compare(path)

    assert found.arms["y"].completion is None
    assert found.arms["z"].completion is not None
    assert found.arms["z"].completion.p_holm >= found.arms["z"].completion.p_value
