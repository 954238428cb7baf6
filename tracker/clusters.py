"""Clusters of tasks: tasks about one text or repository resemble each other and are sampled together.

Values of such tasks are handed to the estimators as one group, as samples of one task are. Where all tasks are of one
cluster nothing tells how far clusters lie apart, so there is no interval, and its method says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar

from koderz_tracker.rates import (
    SHARE,
    Interval,
    mean_interval,
    pass_at_k,
    pass_at_k_interval,
    pass_hat_k,
    pass_hat_k_interval,
    usual_ks,
)

if TYPE_CHECKING:
    from koderz_tracker.records import Plan
    from koderz_tracker.results import Result

_T = TypeVar("_T")
_BY_TASK, _OF_TASKS = ", clustered by task", " of tasks"

Clusters = Mapping[str, str]
"""The cluster of each task that has one; the others stand alone."""


def clusters_of(results: Iterable[Result]) -> dict[str, str]:
    """The cluster of each task that results are about."""
    return {result.problem_id: result.cluster for result in results if result.cluster}


def grouped(values: Mapping[str, Sequence[_T]], clusters: Clusters) -> list[list[_T]]:
    """Values of tasks, joined by cluster, in the order in which clusters first appear."""
    return [
        [value for task in tasks for value in values[task]] for tasks in members(values, clusters)
    ]


def members(tasks: Iterable[str], clusters: Clusters) -> list[list[str]]:
    """The tasks of each cluster, in the order in which clusters first appear; one without a cluster is its own."""
    if not any(clusters.values()):
        return [[task] for task in tasks]
    found: dict[tuple[bool, str], list[str]] = {}
    for task in tasks:
        cluster = clusters.get(task, "")
        found.setdefault((bool(cluster), cluster or task), []).append(task)
    return [*found.values()]


def count_of(tasks: Collection[str], clusters: Clusters) -> int | None:
    """The number of clusters among tasks; None if each task is its own."""
    if not any(clusters.values()):
        return None
    count = len(members(tasks, clusters))
    return None if count == len(tasks) else count


def no_interval(tasks: int, clusters: int | None) -> str:
    """The reason for having no interval: several tasks, all in one cluster. Empty if there may be an interval."""
    return f"none: all {tasks} tasks are of one cluster" if clusters == 1 else ""


def method_in(method: str, clusters: int | None) -> str:
    """The name of a method, with the number of clusters if tasks are grouped in clusters."""
    return (
        method
        if clusters is None
        else f"{method.replace(_BY_TASK, '').replace(_OF_TASKS, '')}, in {clusters} clusters"
    )


def interval_in(
    values: Mapping[str, Sequence[_T]],
    clusters: Clusters,
    estimate: Callable[[list[list[_T]]], tuple[Interval, str] | None],
) -> tuple[Interval | None, str | None]:
    """The interval and method that `estimate` returns for each task's samples, grouped by cluster.

    Without an interval the method says why, where that is known.
    """
    count = count_of(values, clusters)
    if reason := no_interval(len(values), count):
        return None, reason
    found = estimate(grouped(values, clusters))
    return (found[0], method_in(found[1], count)) if found else (None, None)


def pass_at_k_in(
    passes: Mapping[str, Sequence[bool]], clusters: Clusters, k: int
) -> tuple[Interval | None, str | None]:
    """The interval of pass@k over tasks, grouped by cluster as in `interval_in`; each task has at least k samples."""
    if count_of(passes, clusters) is None:
        return pass_at_k_interval([*passes.values()], k)
    chances = {task: [pass_at_k(len(own), sum(own), k)] for task, own in passes.items()}
    return interval_in(chances, clusters, partial(mean_interval, bounds=SHARE))


@dataclass(frozen=True, slots=True)
class ChanceEstimate:
    """A chance, as a fraction, with its 95 % interval."""

    value: float
    interval: Interval | None
    interval_method: str | None  # without an interval, why

    @property
    def text(self) -> str:
        """Per cent, with the interval, as text for people."""
        limits = (
            " (95% interval {:.1f}% to {:.1f}%)".format(*(100 * x for x in self.interval))
            if self.interval
            else ""
        )
        return f"{100 * self.value:.1f}%{limits}"


def pass_hat_k_in(
    passes: Mapping[str, Sequence[bool]], clusters: Clusters, k: int
) -> ChanceEstimate:
    """pass^k over tasks, its interval grouped by cluster as in `interval_in`; each task has at least k samples."""
    chances = {task: [pass_hat_k(len(own), sum(own), k)] for task, own in passes.items()}
    value = fmean(own[0] for own in chances.values())
    if count_of(passes, clusters) is None:
        return ChanceEstimate(value, *pass_hat_k_interval([*passes.values()], k))
    return ChanceEstimate(
        value, *interval_in(chances, clusters, partial(mean_interval, bounds=SHARE))
    )


def pass_hat_k_of(
    passes: Mapping[str, Sequence[bool]], clusters: Clusters
) -> dict[str, ChanceEstimate]:
    """`{"pass^1": …}` over tasks for each usual k that every task has samples for."""
    return {f"pass^{k}": pass_hat_k_in(passes, clusters, k) for k in usual_ks(passes.values())}


def clusters_in(plan: Plan) -> dict[str, str]:
    """The cluster of each task of a plan."""
    return {
        task: cluster for task, cluster in zip(plan.tasks, plan.clusters, strict=False) if cluster
    }
