"""Every suite that reads rows carries their clusters from the file to the intervals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from koderz.errors import KoderzError
from koderz.runs.prepare import prepare
from koderz.suites import SUITES
from koderz.suites.suite import SuiteSource
from koderz.testing import a_journal
from koderz_tracker.records import Experiment, Plan
from koderz_tracker.summary import summarize
from tests.koderz.suites.datasets import CANARY, JUDGED, ROWS
from tests.koderz.systems.questions import sets
from tests.tracker.builders import experiment_id

ONE_TASK = {"completion", "serving"}
"""The suites whose only task is of no file."""

OF_OPTIMIZERS = {"datasets"}
"""The suite whose rows are items within a task; its clusters are those of `test_clusters_of_test_items`."""

CLUSTERS = ["a", "a", "b", "b", "b", "b"]


def written(folder: Path, suite: str, rows: Sequence[Mapping[str, Any]], column: str) -> Path:
    """The dataset with a cluster for each row."""
    rows = [{**each, column: cluster} for each, cluster in zip(rows, CLUSTERS, strict=True)]
    if suite == "rollouts":
        for number, each in enumerate(rows):
            place = folder / "tasks" / f"t{number}"
            place.mkdir(parents=True)
            script = {"path": "test_it.py", "rubric_id": "a", "content": "def test_it(): pass"}
            meta = {name: value for name, value in each.items() if name != column}
            meta |= {
                "metadata": {column: each[column]},
                "evaluation": {"rubrics": [{"id": "a"}], "test_scripts": [script]},
                "repo": {"git_url": "."},
            }
            (place / "tb_meta.json").write_text(json.dumps(meta))
        return folder / "tasks"
    path = folder / "task" / "validation.jsonl"
    path.parent.mkdir()
    return sets.write_rows(path, *rows)


def planned(folder: Path, suite: str, column: str, **settings: Any) -> Plan:
    """The record of a plan over the rows."""
    path = written(folder, suite, [ROWS[suite](number) for number in range(6)], column)
    named = {"cluster_column": column} if column != "cluster" else {}
    given = {
        "suite": suite,
        "dataset": path,
        "local_model": "simulated",
        "results": folder / "results",
        **(CANARY if suite == "browsecomp-plus" else {}),
        **(JUDGED if suite == "simpleqa" else {}),
        **named,
        **settings,
    }
    return asyncio.run(prepare(given, None, environ={"XDG_STATE_HOME": str(folder)})).record


def ended(plan: Plan) -> Iterator[Experiment]:
    """An experiment of each task."""
    for number, task in enumerate(plan.tasks):
        yield Experiment(
            experiment_id=experiment_id(number),
            problem_id=task,
            solver=plan.arms[0].solver,
            arm=plan.arms[0].name,
            sample=0,
            success=bool(number % 2),
            verdict="passed" if number % 2 else "failed",
            model="m",
            score=number % 2,
        )


def methods(value: Any) -> Iterator[str]:
    """All that is called `interval_method` below a value."""
    if isinstance(value, Mapping):
        yield from (text for name, text in value.items() if name == "interval_method" and isinstance(text, str))
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from methods(each)


def test_every_suite_of_rows_is_tried() -> None:
    assert ROWS.keys() == SUITES.keys() - ONE_TASK - OF_OPTIMIZERS
    lacking = [name for name in (*ROWS, *OF_OPTIMIZERS) if not hasattr(SUITES.options_of(name), "cluster_column")]
    assert not lacking


@pytest.mark.parametrize("suite", ROWS)
def test_clusters_of_rows_reach_every_interval(suite: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, suite, "mine")
    assert plan.clusters == CLUSTERS

    found = summarize(a_journal(tmp_path / "run", *ended(plan), plan=replace(plan, until_decided=None)))
    assert [result.cluster for result in found.results] == CLUSTERS
    (arm,) = found.arms.values()
    assert arm.summary.clusters == 2
    assert str(arm.summary.success_rate_interval_method).endswith("in 2 clusters")
    assert all("in 2 clusters" in str(mean.interval_method) for mean in arm.summary.measures.values())
    assert all("clusters" in method for method in methods([found.parts, arm.more]))


@pytest.mark.parametrize("suite", ROWS)
def test_clusters_are_a_field_of_rows(suite: str, tmp_path: Path) -> None:
    assert planned(tmp_path, suite, "cluster").clusters == CLUSTERS


@pytest.mark.parametrize("suite", ROWS)
def test_column_of_clusters_that_no_row_has_is_named(suite: str, tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="'elsewhere' is missing"):
        planned(tmp_path, suite, "mine", cluster_column="elsewhere")


@pytest.mark.parametrize("suite", ["ruler", "oolong", "browsecomp-plus", "koderz-perf-mini"])
def test_column_of_clusters_is_refused_where_tasks_are_generated(suite: str) -> None:
    options = SUITES.options_of(suite)
    assert options

    with pytest.raises(KoderzError, match="--cluster-column names a column of a file of rows"):
        SUITES.load(suite).load(SuiteSource(None, options(cluster_column="mine")))
