"""A system's headline: the figure that stands for an arm, how it is averaged, and whether experiments pass at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from koderz.analysis.catalogue import row_of_summary
from koderz.analysis.compare import compare_runs
from koderz.analysis.difficulty import ranking_blocks, rankings
from koderz.analysis.measures import headline_measure, summed_up
from koderz.analysis.pairs import sides_of
from koderz.analysis.runs import Run, load_summary
from koderz.errors import KoderzError
from koderz.suites import checked_measures
from koderz.suites.suite import Suite
from koderz.types import Headline, Measure
from koderz_tracker.breakdown import mean_of
from tests.koderz.analysis.builders import document, row, write

SPEEDS = {"name": "speed", "direction": "higher", "unit": "times"}
BY_SPEED: dict[str, Any] = {"measures": [SPEEDS], "headline": {"measure": "speed", "passed": "opt"}}
BY_SCORE: dict[str, Any] = {
    "measures": [{"name": "score", "direction": "higher", "unit": "share"}],
    "headline": {"measure": "score", "passed": ""},
}


def of_arms(folder: Path, arms: dict[str, list[dict[str, Any]]], name: str = "run.json", **more: Any) -> Path:
    whole = {key: value for key, value in document(**more).items() if key not in ("results", "summary")}
    stated = {
        arm: {
            "results": rows,
            "summary": {"total_problems": len(rows), "successes": sum(each["success"] for each in rows)},
        }
        for arm, rows in arms.items()
    }
    return write(folder / name, {**whole, "arms": stated})


def perf(folder: Path) -> Run:
    """A baseline, of which nothing but that it is as fast as itself is known, and two arms of patches."""
    arms = {
        "baseline": [row(task, True) for task in ("T/0", "T/1")],
        "slow": [row("T/0", False, metrics={"speed": 1.0}), row("T/1", True, metrics={"speed": 1.5})],
        "fast": [row("T/0", True, metrics={"speed": 2.0}), row("T/1", False, metrics={"speed": 8.0})],
    }
    return load_summary(of_arms(folder, arms, **BY_SPEED))


def test_ratios_read_from_a_file_have_the_geometric_mean(tmp_path: Path) -> None:
    found = perf(tmp_path).arms["fast"].summary.measures["speed"]

    assert found.mean == pytest.approx(4.0)  # the arithmetic one is 5


def test_average_of_a_measure_is_the_declared_one() -> None:
    values = {"T/0": [1.0], "T/1": [4.0], "T/2": [100.0]}
    means = {
        how: mean_of(values, Measure("m", "lower", average=how)).mean
        for how in ("", "arithmetic", "geometric", "median")
    }

    assert means == pytest.approx({"": 35.0, "arithmetic": 35.0, "geometric": 400 ** (1 / 3), "median": 4.0})


def test_run_without_a_headline_is_summed_up_by_success(tmp_path: Path) -> None:
    run = load_summary(write(tmp_path / "old.json", document()))

    assert (headline_measure(run).name, run.headline.passed, run.headline.panels) == ("success", "passed", None)
    (arm,) = row_of_summary((tmp_path / "old.json").read_bytes(), {}).arms
    assert (arm.rate, arm.average) == (50.0, None)


def test_list_has_the_average_of_the_headline(tmp_path: Path) -> None:
    arms = {"a": [row("T/0", False, score=0.25), row("T/1", False, score=0.75)]}
    path = of_arms(tmp_path, arms, **BY_SCORE)
    stored = msgspec.json.decode(path.read_bytes())
    stored["arms"]["a"]["summary"]["measures"] = {"score": {"mean": 0.5, "interval": [0.1, 0.9]}}

    found = row_of_summary(msgspec.json.encode(stored), {})

    assert found.arms[0].average is not None
    assert summed_up(found.arms[0].average.mean, found.arms[0].average.measure) == "score 0.5"
    assert (found.headline.passed, found.rate) == ("", -1.0)


def test_leaderboard_ranks_by_the_headline_those_that_have_it(tmp_path: Path) -> None:
    run = perf(tmp_path)

    board = compare_runs([str(run.path)], tmp_path).document()
    by_success = compare_runs([str(run.path)], tmp_path, measure="success").document()

    assert [(each["arm"], round(each["mean"], 6)) for each in board["leaderboard"]] == [
        ("fast", 4.0),
        ("slow", round(1.5**0.5, 6)),
    ]
    assert len(by_success["leaderboard"]) == 3
    assert board["notes"][0] == f"Left out, since they have no speed: {run.name} baseline."


def test_arm_without_the_headline_is_no_baseline_of_others(tmp_path: Path) -> None:
    found = compare_runs([str(perf(tmp_path).path)], tmp_path, arm="fast").document()

    assert (found["a"]["arm"], found["b"]["arm"]) == ("slow", "fast")
    assert found["measure"].name == "success"


def test_comparison_uses_the_headline_where_nothing_passes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        of_arms(tmp_path, {"only": [row("T/0", False, score=0.5)]}, f"{name}.json", **BY_SCORE)

    found = compare_runs([str(tmp_path / "a.json"), str(tmp_path / "b.json")], tmp_path).document()

    assert found["measure"].name == "score"


def test_problems_of_each_suite_are_ranked_for_themselves(tmp_path: Path) -> None:
    coded = load_summary(write(tmp_path / "code.json", document([True, False])))
    rows = [row("labels", False, score=0.25), row("sums", False, score=0.5)]
    config = {"local_model": "m", "suite": "datasets"}
    searched = load_summary(of_arms(tmp_path, {"none": rows}, "search.json", config=config, **BY_SCORE))
    sides = [*sides_of(coded), *sides_of(searched), *sides_of(perf(tmp_path / "perf"))]

    found = {ranking.suite: ranking for ranking in rankings(sides[:2])}
    told = "\n".join(map(str, ranking_blocks(rankings(sides[1:2]), 20)))

    assert [each.problem_id for each in found["humaneval"].problems] == ["T/1", "T/0"]
    assert [(each.problem_id, each.mean) for each in found["datasets"].problems] == [("labels", 0.25), ("sums", 0.5)]
    assert "Success rate" not in told
    assert "solved" not in told
    by_success = rankings(sides[:2], "success")
    assert {ranking.measure.name for ranking in by_success} == {"success"}


def test_headline_has_to_name_a_measure_of_its_suite() -> None:
    class Own(Suite):
        measures = (Measure("score", "higher"),)
        headline = Headline("speed")

    with pytest.raises(KoderzError, match="the headline names the measure 'speed'"):
        checked_measures(Own())
