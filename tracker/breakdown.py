"""A run's results broken down by what its tasks have in common, such as their length: how good, and at what cost."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from tracker.rates import mean_interval, success_interval
from tracker.records import TIMES

if TYPE_CHECKING:
    from tracker.records import Plan
    from tracker.summary import Result

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of one measure over the results that have it, in its own unit."""

    mean: float
    interval: tuple[float, float] | None  # 95 %
    interval_method: str | None  # see `tracker.rates.mean_interval`
    results: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Where values of one result lie."""

    median: float
    p95: float  # the smallest value that 95 % of all don't exceed


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What the results of one arm about tasks of one kind come to. Rates are per cent."""

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


def breakdown(plan: Plan, results: Mapping[str, Sequence[Result]]) -> list[Slice]:
    """All tasks first, then by each thing that the plan groups tasks by, one arm after the other.

    What has one value for all tasks is left out: the slice would be the same.
    """
    return [each for by in ("", *plan.groups) for each in _slices(plan, by, results)]


def mean_of(values: Mapping[str, Sequence[float]], unit: str = "") -> Mean:
    """Of at least one value; they are by task. The geometric one of ratios above 0, whose unit is `TIMES`."""
    every = [value for of_task in values.values() for value in of_task]
    if unit == TIMES and min(every) > 0:
        found = mean_of({task: [math.log(value) for value in of_task] for task, of_task in values.items()}, "ln")
        low, high = found.interval or (None, None)
        bounds = None if low is None or high is None else (math.exp(low), math.exp(high))
        return replace(found, mean=math.exp(found.mean), interval=bounds)
    interval, method = mean_interval(values.values(), may_be_rate=unit in ("", "share")) or (None, None)
    return Mean(math.fsum(every) / len(every), interval, method, len(every))


def by_task(results: Iterable[Result], value: Callable[[Result], _T | None]) -> dict[str, list[_T]]:
    """A value of each result that has it, by the tasks that they are about."""
    found: dict[str, list[_T]] = defaultdict(list)
    for result in results:
        if (own := value(result)) is not None:
            found[result.problem_id].append(own)
    return found


def _slices(plan: Plan, by: str, results: Mapping[str, Sequence[Result]]) -> Iterator[Slice]:
    values = plan.groups.get(by, [""] * len(plan.tasks))
    if by and len({*values}) < 2:
        return
    value_of = dict(zip(plan.tasks, values, strict=True))
    for value in dict.fromkeys(values):
        for arm, found in results.items():
            if members := [result for result in found if value_of.get(result.problem_id) == value]:
                yield _slice(arm, by, value, members)


def _slice(arm: str, by: str, value: str, members: Sequence[Result]) -> Slice:
    scores = by_task(members, lambda result: result.score)
    successes = sum(result.success for result in members)
    interval = success_interval(by_task(members, lambda result: result.success).values())
    return Slice(
        arm=arm,
        by=by,
        value=value,
        results=len(members),
        successes=successes,
        success_rate=100 * successes / len(members),
        success_rate_interval=interval[0] if interval else None,
        score=mean_of(scores) if scores else None,
        cost=_spread([result.cost for result in members]),
        calls=_spread([result.calls for result in members]),
        depth=_spread([result.depth for result in members]),
        tokens=_spread([result.tokens for result in members]),
        seconds=_spread([result.duration_seconds for result in members]),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), sorted(values)[math.ceil(0.95 * len(values)) - 1])
