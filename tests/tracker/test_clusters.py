"""Tasks of one cluster resemble each other: rates and means know it, and say in how many clusters they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koderz.analysis.reader import read_summary
from koderz.testing import a_journal, a_plan
from koderz_tracker.breakdown import mean_of
from koderz_tracker.rates import pass_at_k_interval
from koderz_tracker.records import Measure
from koderz_tracker.results import count_of, grouped, members, pass_at_k_in
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.summary import Figures, figures, summarize
from tests.tracker.builders import judged

ONE = "none: all 12 tasks are of one cluster"


def recorded(folder: Path, clusters: list[str], passes: list[bool]) -> Path:
    of = a_plan(len(passes), clusters=clusters)
    records = [judged(task, passed, score=float(passed)) for task, passed in enumerate(passes)]
    return a_journal(folder, *records, plan=of)


def test_clusters_group_tasks_and_leave_the_others_alone() -> None:
    clusters = {"a": "text", "c": "text", "d": "a"}  # a cluster may be called like a task

    assert members("abcd", clusters) == [["a", "c"], ["b"], ["d"]]
    assert grouped({"a": [1, 2], "b": [3], "c": [4]}, clusters) == [[1, 2, 4], [3]]
    assert (count_of("abcd", clusters), count_of("ab", clusters), count_of("", clusters)) == (3, None, None)


def test_clusters_widen_the_interval_of_a_rate(tmp_path: Path) -> None:
    passes = [text % 2 == 0 for text in range(6) for _ in range(10)]  # all ten questions about a text, or none
    found = summarize(recorded(tmp_path, [f"text {n // 10}" for n in range(60)], passes)).summary
    alone = figures([*summarize(recorded(tmp_path / "alone", [], passes)).results])

    assert (found.success_rate, found.clusters, alone.clusters) == (50.0, 6, None)
    assert found.success_rate_interval_method == "Wilson, in 6 clusters"
    assert width(found) > 1.9 * width(alone)
    assert found.measures["score"].interval_method == "Wilson, in 6 clusters"
    assert "(Wilson, in 6 clusters)" in found.interval_text


def test_clusters_leave_no_interval_where_there_is_one(tmp_path: Path) -> None:
    found = summarize(recorded(tmp_path, ["text"] * 12, [True, False] * 6)).summary

    assert (found.clusters, found.success_rate_interval, found.success_rate_interval_method) == (1, None, ONE)
    assert (found.measures["score"].interval, found.measures["score"].interval_method) == (None, ONE)
    assert found.interval_text == "no interval: all 12 tasks are of one cluster"
    cost = Measure(name="cost", direction="lower")
    assert mean_of({"a": [1.0], "b": [2.0]}, cost, {"a": "x", "b": "x"}).interval is None


def test_clusters_of_the_summary_are_read_back(tmp_path: Path) -> None:
    path, written = write_summary(recorded(tmp_path, ["a", "a", "b", ""], [True, True, False, True]))

    document = json.loads(path.read_bytes())
    assert [result.get("cluster") for result in document["results"]] == ["a", "a", "b", None]
    assert document["summary"]["clusters"] == 3
    assert read_summary(path).summary.success_rate_interval == written.summary.success_rate_interval


def test_clusters_are_missing_from_older_files(tmp_path: Path) -> None:
    path, written = write_summary(recorded(tmp_path, [], [True, True, False, True]))

    document = json.loads(path.read_bytes())
    del document["summary"]["clusters"]
    assert all("cluster" not in result for result in document["results"])
    path.write_text(json.dumps(document))
    read = read_summary(path).summary
    assert read.clusters is None
    assert read.success_rate_interval == pytest.approx(written.summary.success_rate_interval)


def test_clusters_are_those_of_pass_at_k_and_speed_ups_too() -> None:
    clusters = {"a": "numpy", "b": "numpy", "c": "pandas"}
    passes = {"a": [True, False], "b": [True, True], "c": [False, False]}

    alone, method = pass_at_k_in(passes, {}, 2)
    assert (alone, method) == pass_at_k_interval([*passes.values()], 2)
    grouped, method = pass_at_k_in(passes, clusters, 2)
    assert grouped
    assert (method or "").endswith("in 2 clusters")
    assert pass_at_k_in({"a": [True], "b": [True]}, clusters, 1) == (None, "none: all 2 tasks are of one cluster")


def width(found: Figures) -> float:
    low, high = found.success_rate_interval or (0.0, 0.0)
    return high - low
