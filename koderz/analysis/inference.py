"""What a match of two sides lets one claim: a test, an interval and a power that fit how they are matched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koderz.analysis import intervals, statistics
from koderz.analysis.intervals import Interval
from koderz.analysis.pairs import Kind, Matched, Measure
from tracker.rates import effective_size
from tracker.summary import Result

BOOTSTRAP = "BCa bootstrap of tasks"
METHODS: Mapping[Kind, str] = {
    "single": "McNemar's exact test, paired by task",
    "samples": "sign-flip test, paired and clustered by task",
    "unpaired": "permutation test of tasks, unpaired",
    "nothing": "none",
}
_INTERVALS: Mapping[Kind, str] = {
    "single": "Tango's score interval",
    "samples": "Tango's score interval, clustered by task",
    "unpaired": "Newcombe's hybrid score interval",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """B less A of one measure, averaged over tasks, with the interval that chance leaves it."""

    a: float
    b: float
    difference: float
    interval: Interval | None
    interval_method: str | None


def p_of(matched: Matched) -> float | None:
    """Two-sided p-value that A and B are equally good; None where one has no results."""
    if matched.kind == "nothing":
        return None
    before, after = matched.means(success)
    if matched.kind == "unpaired":
        return statistics.shuffle_labels(before, after)
    if matched.kind == "samples":
        return statistics.sign_flip(_less(after, before))
    return statistics.mcnemar(
        sum(x > y for x, y in zip(before, after, strict=True)), sum(x < y for x, y in zip(before, after, strict=True))
    )


def difference_of(matched: Matched) -> float | None:
    """B's rate less A's, in points; None where one has no results."""
    if matched.kind == "nothing":
        return None
    before, after = matched.means(success)
    return 100 * (_average(after) - _average(before))


def is_shown(matched: Matched, p_value: float | None, alpha: float) -> bool:
    """Whether a p-value is small enough, on enough tasks, to claim a difference."""
    tasks = len(matched.tasks) if matched.paired else min(len(matched.a), len(matched.b))
    return p_value is not None and tasks >= statistics.FEWEST_TASKS and p_value <= alpha


def interval_of(matched: Matched, alpha: float, *, shown: bool) -> tuple[Interval, str] | None:
    """Of the difference in success, in points, with its method; None where one has no results.

    It excludes 0 exactly where a difference is `shown`, see `is_shown`: a score interval inverts a test of its own,
    which near alpha may say otherwise than the exact one, and of whether 0 is in it the exact one decides.
    """
    difference = difference_of(matched)
    if difference is None:
        return None
    low, high = score_interval(matched, 1 - alpha)
    if not shown:
        low, high = min(low, 0.0), max(high, 0.0)
    elif difference > 0:
        low = max(low, math.ulp(0.0))
    else:
        high = min(high, -math.ulp(0.0))
    method = _INTERVALS[matched.kind]
    if not matched.paired and any(len(results) > 1 for results in (*matched.a.values(), *matched.b.values())):
        method += ", clustered by task"
    return (low, high), method


def score_interval(matched: Matched, confidence: float) -> Interval:
    """Of the difference in success, in points, whatever a test says of it. Both sides have results."""
    z = statistics.normal_quantile((1 + confidence) / 2)
    if matched.paired:
        low, high = intervals.tango(*_parted(matched, z), confidence)
    else:
        low, high = intervals.newcombe(*_passed(matched.a, z), *_passed(matched.b, z), confidence)
    return 100 * low, 100 * high


def _parted(matched: Matched, z: float) -> tuple[float, float, float]:
    """Tasks that only A and only B passed, and all. Of several samples: of the effective number of tasks.

    The chance that one sample of each parts is known from a task's rates, and how far the rates' differences lie
    apart says for how many single samples they count.
    """
    before, after = matched.means(success)
    tasks = len(before)
    a_only = sum(x * (1 - y) for x, y in zip(before, after, strict=True)) / tasks
    b_only = sum(y * (1 - x) for x, y in zip(before, after, strict=True)) / tasks
    differences = _less(after, before)
    size = effective_size(
        a_only + b_only - (b_only - a_only) ** 2,
        statistics.standard_error(differences) ** 2,
        tasks,
        sum(min(len(matched.a[task]), len(matched.b[task])) for task in matched.tasks),
        z,
    )
    return a_only * size, b_only * size, size


def _passed(by_task: Mapping[str, Sequence[Result]], z: float) -> tuple[float, float]:
    """Tasks that were passed, and all; of several samples: of the effective number of tasks."""
    rates = [_average([success(result) for result in results]) for results in by_task.values()]
    rate = _average(rates)
    of_mean = statistics.standard_error(rates) ** 2
    size = effective_size(rate * (1 - rate), of_mean, len(rates), sum(map(len, by_task.values())), z)
    return rate * size, size


def probability_of(matched: Matched) -> float | None:
    """That B is better, as far as these tasks tell; None where one has no results."""
    if matched.kind == "nothing":
        return None
    z = statistics.normal_quantile(1 - statistics.ALPHA / 2)
    if matched.paired:
        a_only, b_only, _ = _parted(matched, z)
        return statistics.probability_better(a_only, b_only)
    return statistics.probability_higher(*_passed(matched.a, z), *_passed(matched.b, z))


def smallest_of(matched: Matched, alpha: float) -> float | None:
    """The smallest difference that so many tasks show, in points; None where not even the largest would.

    With one sample each it follows from the share of tasks that flipped, of which one more is taken to.
    """
    if matched.kind == "nothing":
        return None
    before, after = matched.means(success)
    if matched.kind == "single":
        flips = sum(x != y for x, y in zip(before, after, strict=True))
        found = statistics.smallest_paired_difference(len(before), (flips + 1) / (len(before) + 2), alpha)
    elif matched.paired:
        found = statistics.smallest_difference(statistics.standard_error(_less(after, before)), alpha)
    else:
        errors = statistics.standard_error(before), statistics.standard_error(after)
        found = statistics.smallest_difference(sum(error**2 for error in errors) ** 0.5, alpha)
    return 100 * found if found and found <= 1 else None


def measures_of(matched: Matched, confidence: float) -> dict[str, Difference]:
    """Cost (US dollars), iterations and latency (seconds), an experiment's average."""
    if matched.kind == "nothing":
        return {}
    found = {}
    for name, measure in _MEASURES.items():
        before, after = matched.means(measure)
        interval = (
            intervals.bootstrap_mean(_less(after, before), confidence)
            if matched.paired
            else intervals.bootstrap_difference(before, after, confidence)
        )
        a, b = _average(before), _average(after)
        found[name] = Difference(a, b, b - a, interval, BOOTSTRAP if interval else None)
    return found


def success(result: Result) -> float:
    """1 or 0: what rates are the mean of."""
    return float(result.success)


_MEASURES: dict[str, Measure] = {
    "cost": lambda result: result.cost,
    "iterations": lambda result: float(result.iterations),
    "latency": lambda result: result.latency,
}


def _less(after: Sequence[float], before: Sequence[float]) -> list[float]:
    return [y - x for x, y in zip(before, after, strict=True)]


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
