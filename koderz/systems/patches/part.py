"""The summary's figures of patches over the tasks of a run: Opt@K and speed-ups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from koderz_tracker.parts import Part
from koderz_tracker.rates import mean_interval, pass_at_k, rate_interval
from koderz_tracker.results import Clusters, clusters_in, interval_in, pass_at_k_in

if TYPE_CHECKING:
    from koderz_tracker.records import Plan
    from koderz_tracker.results import Result

_SPEEDUPS = ("speedup_base", "speedup_human")


class PerfPart(Part):
    """Opt@K, the share that passed, and geometric means of speed-ups, with 95 % intervals over tasks."""

    def of_arm(self, plan: Plan, arm: str, results: Sequence[Result]) -> Mapping[str, Any]:
        """The figures of an arm. A task without an experiment in the arm counts as having no good patch."""
        by_task: dict[str, list[Result]] = {}
        for result in results:
            by_task.setdefault(result.problem_id, []).append(result)
        if not by_task:
            return {}
        clusters = clusters_in(plan)
        passed = {
            task: [each.facts.get("status") == "passed" for each in found]
            for task, found in by_task.items()
        }
        opts = {task: [each.success for each in found] for task, found in by_task.items()}
        opts |= dict.fromkeys(_without(plan, arm), [False] * max(map(len, opts.values())))
        told: dict[str, Any] = {
            "opt_at_k": dict(_opt_at_k(opts, clusters)),
            "passed": _figure(passed, interval_in(passed, clusters, rate_interval)),
        }
        told["needs_review"] = sum(bool(result.facts.get("needs_review")) for result in results)
        reviewed = [result.facts["quadrant"] for result in results if "quadrant" in result.facts]
        if reviewed:
            told["quadrants"] = {name: reviewed.count(name) for name in ("Q1", "Q2", "Q3", "Q4")}
        for name in _SPEEDUPS:
            logs = {
                task: [math.log(v) for each in found if (v := (each.metrics or {}).get(name))]
                for task, found in by_task.items()
            }
            if means := {task: [fmean(each)] for task, each in logs.items() if each}:
                figure = _figure(means, interval_in(means, clusters, mean_interval))
                told[name] = {key: _exp(value) for key, value in figure.items()}
        return told


def _without(plan: Plan, arm: str) -> list[str]:
    if plan.cells is None:
        return []
    having = {cell.task for cell in plan.cells if cell.arm == arm}
    return [task for task in plan.tasks if task not in having]


def _opt_at_k(
    opts: Mapping[str, Sequence[bool]], clusters: Clusters
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The share of tasks for which one of K patches is good enough, for each K up to the fewest samples."""
    for k in range(1, min(map(len, opts.values())) + 1):
        chances = {task: [pass_at_k(len(each), sum(each), k)] for task, each in opts.items()}
        yield str(k), _figure(chances, pass_at_k_in(opts, clusters, k))


def _figure(
    values: Mapping[str, Sequence[float]], found: tuple[tuple[float, float] | None, str | None]
) -> dict[str, Any]:
    interval, method = found
    value = fmean(map(fmean, values.values()))
    return {
        "value": value,
        "interval": list(interval) if interval else None,
        "interval_method": method,
    }


def _exp(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return [math.exp(each) for each in value] if isinstance(value, list) else math.exp(value)


PERF = PerfPart()
