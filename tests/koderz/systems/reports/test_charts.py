"""The report's charts: which points a line joins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from koderz.analysis.measures import SUCCESS
from koderz.systems.reports.charts import against_cost, trend
from koderz.systems.reports.view import View
from tests.koderz.analysis.builders import Outcomes, run

SHORT: Outcomes = {"T/0": [True], "T/1": [False]}
LONG: Outcomes = {"T/0": [True], "T/1": [False], "T/2": [True]}


def view(folder: Path, *runs: tuple[Outcomes, dict[str, Any]]) -> View:
    """Runs in the order of time, one a day, each an hour after the last."""
    return View.of(
        [
            run(
                folder,
                outcomes,
                f"{number}.json",
                run_id=f"bench_0000000{number}_2026010{number + 1}_120000",
                start_time=f"2026-01-0{number + 1}T12:00:00.000000",
                **more,
            )
            for number, (outcomes, more) in enumerate(runs)
        ]
    )


def test_trend_joins_only_runs_on_the_same_tasks(tmp_path: Path) -> None:
    found = view(tmp_path, (SHORT, {}), (LONG, {}), (SHORT, {}), (LONG, {}))

    plot = trend(found.judged)

    places = [(mark.x, mark.y) for mark in plot.marks]
    assert [list(line) for _, line in plot.lines] == [[places[0], places[2]], [places[1], places[3]]]


def test_trend_joins_no_runs_on_two_versions_of_a_dataset(tmp_path: Path) -> None:
    old, new = ({"environment": {"dataset_digest": digest}} for digest in ("a", "b"))
    found = view(tmp_path, (SHORT, old), (SHORT, new), (SHORT, new))

    assert [len(line) for _, line in trend(found.judged).lines] == [1, 2]


def test_line_against_cost_joins_only_arms_on_the_same_tasks(tmp_path: Path) -> None:
    cheap, dear = ({"model": name, "cost": cost} for name, cost in (("cheap", 0.001), ("dear", 0.1)))
    better: Outcomes = {"T/0": [True], "T/1": [True]}
    alone = view(tmp_path / "alone", (SHORT, cheap), (LONG, dear))
    both = view(tmp_path / "both", (SHORT, cheap), (better, dear), (LONG, {"model": "other", "cost": 0.01}))

    assert not against_cost(alone.judged, SUCCESS, priced=True).lines
    ((_, line),) = against_cost(both.judged, SUCCESS, priced=True).lines
    assert {y for _, y in line} == {50.0, 100.0}
