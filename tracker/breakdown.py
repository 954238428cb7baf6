"""A run's results broken down by a property that tasks share, such as their length: success, scores and costs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from koderz_tracker.rates import SHARE, mean_interval, rate_interval, success_interval
from koderz_tracker.records import Measure
from koderz_tracker.results import (
    Clusters,
    clusters_in,
    clusters_of,
    count_of,
    interval_in,
    members,
)
from koderz_tracker.sequential import SettledOrder, interval_along, rate_along

if TYPE_CHECKING:
    from koderz_tracker.records import Plan
    from koderz_tracker.results import Result

_T = TypeVar("_T")
_SCORE = Measure(name="score", direction="higher", unit="share")
_RATE = Measure(name="score", direction="higher", unit="share", two_valued=True)


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of one measure over the results that have it, in its own unit."""

    mean: float
    interval: tuple[float, float] | None  # 95 %
    # see `tracker.rates.mean_interval`; without an interval, why, where that is known
    interval_method: str | None
    results: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 95th percentile of one value over results."""

    median: float
    p95: float  # the smallest value that 95 % of all don't exceed


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The figures of one arm on the tasks of one kind. Rates are per cent."""

    arm: str
    by: str  # what the tasks have in common, such as "length"; empty: the slice has all tasks
    value: str
    results: int
    successes: int
    success_rate: float
    success_rate_interval: tuple[float, float] | None  # 95 %
    score: Mean | None
    cost: Spread  # US dollars
    calls: Spread
    depth: Spread  # of the recursion
    tokens: Spread
    seconds: Spread
    success_rate_interval_method: str | None = None
    clusters: int | None = None  # in which its tasks are; None: each stands alone


def breakdown(
    plan: Plan,
    results: Mapping[str, Sequence[Result]],
    orders: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Slice]:
    """The slices of a run, arm by arm: first all tasks, then each property by which the plan groups tasks.

    A property with the same value for all tasks is left out, since its slice would be the same. `orders`: the settled
    tasks of each arm, if the run stops once it is decided.
    """
    return [each for by in ("", *plan.groups) for each in _slices(plan, by, results, orders)]


def mean_of(
    values: Mapping[str, Sequence[float]],
    measure: Measure,
    clusters: Clusters = MappingProxyType({}),
    order: Sequence[str] | None = None,
    *,
    together: int = 1,
) -> Mean:
    """The mean of a measure over its values by task, averaged as the measure declares, with its interval.

    There has to be a value. The geometric mean is taken only if all values are above 0.

    The interval of a measure that is declared two-valued is that of a rate, of a share one from 0 to 1. `order`: the
    settled tasks of a run that stops once it is decided; then it is a confidence sequence along these. `together`: the
    number of intervals that are to hold together with 95 %, of which this is one.
    """
    every = [value for of_task in values.values() for value in of_task]
    if order is not None:
        plain = mean_of(values, measure, clusters)
        bounds = bounds_of(measure) if measure.averaged == "arithmetic" else None
        along, why = interval_along(order, values, clusters, bounds, together=together)
        return replace(plain, interval=along, interval_method=why)
    if measure.averaged == "median":
        return Mean(statistics.median(every), None, None, len(every))
    if measure.averaged == "geometric" and min(every) > 0:
        logs = {task: [math.log(value) for value in of_task] for task, of_task in values.items()}
        found = mean_of(
            logs,
            Measure(name=f"ln {measure.name}", direction=measure.direction),
            clusters,
            together=together,
        )
        low, high = found.interval or (None, None)
        bounds = None if low is None or high is None else (math.exp(low), math.exp(high))
        return replace(found, mean=math.exp(found.mean), interval=bounds)
    is_rate = measure.two_valued and all(value in (0, 1) for value in every)
    # Wilson's limits of rates near 0 and 1 hold too little where they have to hold more than 95 %.
    is_wilsons = is_rate and together == 1
    estimate = (
        rate_interval
        if is_wilsons
        else partial(mean_interval, bounds=bounds_of(measure), together=together)
    )
    interval, method = interval_in(values, clusters, estimate)
    return Mean(math.fsum(every) / len(every), interval, method, len(every))


def mean_score(results: Iterable[Result], order: Sequence[str] | None = None) -> Mean | None:
    """The mean score of the results that have one. If scores are 1 for a success and 0 otherwise, it is a rate.

    `order` as in `mean_of`.
    """
    scored = [result for result in results if result.score is not None]
    values = by_task(scored, lambda result: result.score)
    if not values:
        return None
    is_rate = all(result.score == result.success for result in scored)
    return mean_of(values, _RATE if is_rate else _SCORE, clusters_of(scored), order)


def bounds_of(measure: Measure) -> tuple[float, float] | None:
    """The bounds of a measure's values if they are known; an undeclared `score` is taken to be a share."""
    if measure.bounds:
        return measure.bounds
    return (
        SHARE
        if measure.two_valued
        or measure.unit == "share"
        or (measure.name == "score" and not measure.unit)
        else None
    )


def by_task(results: Iterable[Result], value: Callable[[Result], _T | None]) -> dict[str, list[_T]]:
    """The value of each result that has one, grouped by task."""
    found: dict[str, list[_T]] = defaultdict(list)
    for result in results:
        if (own := value(result)) is not None:
            found[result.problem_id].append(own)
    return found


def _slices(
    plan: Plan,
    by: str,
    results: Mapping[str, Sequence[Result]],
    orders: Mapping[str, Sequence[str]],
) -> Iterator[Slice]:
    values = plan.groups.get(by, [""] * len(plan.tasks))
    if by and len({*values}) < 2:
        return
    value_of = dict(zip(plan.tasks, values, strict=True))
    for value in dict.fromkeys(values):
        planned = members(
            (task for task in plan.tasks if value_of[task] == value), clusters_in(plan)
        )
        largest = max(map(len, planned))
        for arm, found in results.items():
            if own := [result for result in found if value_of.get(result.problem_id) == value]:
                order = SettledOrder(orders[arm], largest) if arm in orders else None
                yield _slice(arm, by, value, own, order)


def _slice(
    arm: str, by: str, value: str, members: Sequence[Result], order: Sequence[str] | None
) -> Slice:
    successes = sum(result.success for result in members)
    passes, clusters = by_task(members, lambda result: result.success), clusters_of(members)
    if order is None:
        interval, method = interval_in(passes, clusters, success_interval)
    else:
        interval, method = rate_along(order, passes, clusters)
    return Slice(
        arm=arm,
        by=by,
        value=value,
        results=len(members),
        successes=successes,
        success_rate=100 * successes / len(members),
        success_rate_interval=interval,
        success_rate_interval_method=method,
        clusters=count_of(passes, clusters),
        score=mean_score(members, order),
        cost=_spread([result.cost for result in members]),
        calls=_spread([result.calls for result in members]),
        depth=_spread([result.depth for result in members]),
        tokens=_spread([result.tokens for result in members]),
        seconds=_spread([result.duration_seconds for result in members]),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), sorted(values)[math.ceil(0.95 * len(values)) - 1])
