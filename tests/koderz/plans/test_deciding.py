"""The plan of a run that stops once it is decided: by which measure, between which bounds, in which order."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.plans.plan import Plan
from koderz.runs.prepare import prepare
from koderz.runs.session import begin
from koderz_tracker.records import Plan as Record
from koderz_tracker.records import decode, encode
from koderz_tracker.stopping import decide_pairs

SUITE = """
from koderz.extend import Headline, Measure, Suite, Task, Verdict

class Rated(Suite):
    name, source = "rated", "here"
    tasks = tuple(
        Task(f"R/{{n}}", f"Rate {{n}}", None, digest=str(n), cluster="{cluster}" and str(n // 2)) for n in range(40)
    )
    measures = (Measure("{name}", "{direction}", "{unit}"{bounds}),)
    headline = Headline("{name}", passed="")

    async def judge(self, task, answer, context):
        stars = 4.0 if "good" in answer.text else 2.0
        return Verdict("failed", "rated", metrics={{"{name}": stars}})

    def simulate(self, messages, sampling):
        return "good" if len(messages) == 1 else "bad"

async def rated(task, ask, judge):
    return await judge(task, await ask(task.messages))

async def same(task, ask, judge):
    return await rated(task, ask, judge)

async def twice(task, ask, judge):
    return await judge(task, await ask((*task.messages, *task.messages)))
"""
SOLVERS = ("rate.py:rated", "rate.py:twice")


def plan(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    unit: str = "stars",
    bounds: str = ", bounds=(1, 5)",
    direction: str = "higher",
    cluster: str = "",
    **settings: Any,
) -> Plan:
    """A plan of two solvers over a suite that is summed up by stars."""
    monkeypatch.chdir(folder)
    own = {"name": "stars", "unit": unit, "bounds": bounds, "direction": direction, "cluster": cluster}
    (folder / "rate.py").write_text(SUITE.format(**own))
    given = {"suite": "rate.py:Rated", "solvers": SOLVERS, "local_model": "simulated", "until_decided": "first"}
    environ = {"XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    return asyncio.run(prepare({**given, **settings}, range(40), environ=environ))


def test_decision_maps_scores_from_the_bounds_that_the_suite_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(tmp_path, monkeypatch)
    record = decode(encode(made.record))
    assert isinstance(record, Record)
    assert record.measures[0].bounds == (1.0, 5.0)
    found = asyncio.run(begin(made)).summary.decision

    assert found
    assert (found["outcome"], found["measure"], found["a"], found["b"]) == ("shown", "stars", "rated", "twice")
    assert (found["difference"], found["a_mean"], found["b_mean"]) == (-2, 4, 2)
    low, high = found["interval"]
    assert -4 <= low < -2 < high < 0
    assert found["tasks"] == decide_pairs([-0.5] * 40).tasks  # half of the range at each


def test_decision_calls_scores_within_a_margin_of_their_own_unit_similar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(tmp_path, monkeypatch, solvers=(SOLVERS[0], "rate.py:same"), margin=1.5, min_tasks=30)
    found = asyncio.run(begin(made)).summary.decision

    assert found
    assert (found["outcome"], found["margin"], found["difference"]) == ("similar", 1.5, 0)
    assert all(abs(limit) <= 1.5 for limit in found["interval"])


def test_decision_counts_a_cluster_of_tasks_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(tmp_path, monkeypatch, cluster="pairs")
    assert made.record.until_decided
    units = decide_pairs([-0.5] * 20).tasks
    order = [int(task[2:]) // 2 for task in made.record.until_decided.order]
    assert order[::2] == order[1::2]
    assert made.record.until_decided.largest == 2
    found = asyncio.run(begin(made)).summary.decision

    assert found
    assert (found["outcome"], found["tasks"], len(found["path"])) == ("shown", 2 * units, units)


@pytest.mark.parametrize(("unit", "bounds"), [("s", ""), ("stars", "")])
def test_plan_refuses_to_decide_by_a_measure_without_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, bounds: str
) -> None:
    with pytest.raises(KoderzError, match=f"--until-decided: stars, in {unit}, has no bounds"):
        plan(tmp_path, monkeypatch, unit=unit, bounds=bounds)


@pytest.mark.parametrize("bounds", ["(5, 1)", "(0, float('inf'))"])
def test_plan_refuses_bounds_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: str) -> None:
    with pytest.raises(KoderzError, match="its bounds have to be two numbers, the lower one first"):
        plan(tmp_path, monkeypatch, bounds=f", bounds={bounds}")


def test_plan_records_the_bounds_of_measures_that_have_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measures = [json.loads(encode(plan(tmp_path, monkeypatch).record))["measures"]]

    assert measures == [
        [{"name": "stars", "direction": "higher", "unit": "stars", "two_valued": False, "bounds": [1, 5]}]
    ]
