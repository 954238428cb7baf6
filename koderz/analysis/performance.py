"""What patches come to over the tasks of a run: how often one is good enough, and how many times as fast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tracker.parts import Part
from tracker.rates import mean_interval, pass_at_k

if TYPE_CHECKING:
    from tracker.records import Plan
    from tracker.summary import Result

_SPEEDUPS = ("speedup_base", "speedup_human")


class PerfPart(Part):
    """Opt@K, the share that passed, and geometric means of speed-ups, with 95 % intervals over tasks."""

    def of_arm(self, plan: Plan, arm: str, results: Sequence[Result]) -> Mapping[str, Any]:
        """A task that has no experiment in the arm counts as one whose patches are not good enough."""
        by_task: dict[str, list[Result]] = {}
        for result in results:
            by_task.setdefault(result.problem_id, []).append(result)
        if not by_task:
            return {}
        passed = [[float(each.facts.get("status") == "passed") for each in found] for found in by_task.values()]
        opts = [[each.success for each in found] for found in by_task.values()]
        opts += [[False] * max(map(len, opts))] * len(_without(plan, arm))
        told: dict[str, Any] = {"opt_at_k": dict(_opt_at_k(opts)), "passed": _told(passed)}
        reviewed = [result.facts["quadrant"] for result in results if "quadrant" in result.facts]
        if reviewed:
            told["quadrants"] = {name: reviewed.count(name) for name in ("Q1", "Q2", "Q3", "Q4")}
        for name in _SPEEDUPS:
            logs = [
                [math.log(v) for each in found if (v := (each.metrics or {}).get(name))] for found in by_task.values()
            ]
            if logs := [[fmean(each)] for each in logs if each]:
                told[name] = {key: _exp(value) for key, value in _told(logs).items()}
        return told


def _without(plan: Plan, arm: str) -> list[str]:
    if plan.cells is None:
        return []
    having = {cell.task for cell in plan.cells if cell.arm == arm}
    return [task for task in plan.tasks if task not in having]


def _opt_at_k(opts: Sequence[Sequence[bool]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """For each K up to the fewest samples, the share of tasks of which one of K patches is good enough."""
    for k in range(1, min(map(len, opts)) + 1):
        yield str(k), _told([[pass_at_k(len(each), sum(each), k)] for each in opts])


def _told(values: Sequence[Sequence[float]]) -> dict[str, Any]:
    found = mean_interval(values)
    return {"value": fmean(map(fmean, values)), "interval": list(found[0]) if found else None}


def _exp(value: Any) -> Any:
    if value is None:
        return None
    return [math.exp(each) for each in value] if isinstance(value, list) else math.exp(value)


PERF = PerfPart()
