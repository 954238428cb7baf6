"""What a match of two sides lets one claim: a test, an interval and a power that fit how they are matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from koderz.analysis import statistics
from koderz.analysis.matching import Matched, Measure
from koderz.analysis.statistics import Interval
from tracker.summary import Result


@dataclass(frozen=True, slots=True)
class Difference:
    """B less A of one measure, averaged over tasks, with the interval that chance leaves it."""

    a: float
    b: float
    difference: float
    interval: Interval | None


METHODS = {
    "single": "McNemar's exact test, paired by task",
    "samples": "sign-flip test and bootstrap, paired and clustered by task",
    "unpaired": "permutation test and bootstrap, unpaired",
    "nothing": "none",
}


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


def interval_of(matched: Matched, confidence: float) -> Interval | None:
    """Of the difference in success, in points; None where nothing is known."""
    if matched.kind == "nothing":
        return None
    found = _fractions(matched, *matched.means(success), confidence)
    return (100 * found[0], 100 * found[1]) if found else None


def _fractions(matched: Matched, before: Sequence[float], after: Sequence[float], confidence: float) -> Interval | None:
    if matched.kind == "unpaired":
        found = statistics.bootstrap_difference(before, after, confidence)
        if found is None or found[0] == found[1]:
            return statistics.newcombe(round(sum(before)), len(before), round(sum(after)), len(after), confidence)
        return found
    differences = _less(after, before)
    if set(differences) <= {-1.0, 0.0, 1.0}:
        return statistics.binary_difference(differences, confidence)
    return statistics.bootstrap_mean(differences, confidence) if len(set(differences)) > 1 else None


def probability_of(matched: Matched) -> float | None:
    """That B is better, as far as these tasks tell; None where they tell nothing."""
    if matched.kind == "nothing":
        return None
    before, after = matched.means(success)
    if matched.kind == "unpaired":
        return statistics.share_better(after, before)
    differences = _less(after, before)
    if matched.kind == "single":
        return statistics.probability_better(sum(d < 0 for d in differences), sum(d > 0 for d in differences))
    return statistics.share_better(differences)


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
            statistics.bootstrap_mean(_less(after, before), confidence)
            if matched.paired
            else statistics.bootstrap_difference(before, after, confidence)
        )
        found[name] = Difference(_average(before), _average(after), _average(after) - _average(before), interval)
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
    return sum(values) / len(values) if values else 0.0
