"""What a match of two sides lets one claim: a test, an interval and a power that fit the measure and the matching."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from koderz.analysis import intervals, statistics
from koderz.analysis.intervals import Interval
from koderz.analysis.pairs import Kind, Matched, Values
from tracker.rates import effective_size
from tracker.records import TIMES

BOOTSTRAP = "BCa bootstrap of tasks"
_MCNEMAR = "McNemar's exact test, paired by task"
_METHODS: Mapping[Kind, str] = {
    "single": "sign-flip permutation test, paired by task",
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
    """B less A of one measure, averaged over tasks, in its unit, with the interval that chance leaves it."""

    a: float
    b: float
    difference: float
    interval: Interval | None
    interval_method: str | None
    p_value: float  # two-sided, that A and B are alike
    p_holm: float  # corrected for the number of measures that are tested beside the one asked for
    method: str  # of the test


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A of a measure whose unit is times: geometric means over the tasks in common."""

    a: float
    b: float
    ratio: float
    interval: Interval | None
    interval_method: str | None


def method_of(matched: Matched) -> str:
    """What the p-value comes from."""
    return _MCNEMAR if _is_mcnemars(matched) else _METHODS[matched.kind]


def _is_mcnemars(matched: Matched) -> bool:
    return matched.measure.two_valued and matched.kind == "single"


def p_of(matched: Matched) -> float | None:
    """Two-sided p-value that A and B are equally good; None where one has no results."""
    if matched.kind == "nothing":
        return None
    before, after = matched.means()
    if matched.kind == "unpaired":
        return statistics.shuffle_labels(before, after)
    if not _is_mcnemars(matched):
        return statistics.sign_flip(_less(after, before))
    return statistics.mcnemar(
        sum(x > y for x, y in zip(before, after, strict=True)), sum(x < y for x, y in zip(before, after, strict=True))
    )


def means_of(matched: Matched) -> tuple[float, float] | None:
    """A's mean and B's, over tasks, in the measure's unit; None where one has no results."""
    if matched.kind == "nothing":
        return None
    before, after = matched.means()
    return fmean(before), fmean(after)


def is_shown(matched: Matched, p_value: float | None, alpha: float) -> bool:
    """Whether a p-value is small enough, on enough tasks, to claim a difference."""
    return p_value is not None and matched.smallest_side >= statistics.FEWEST_TASKS and p_value <= alpha


def interval_of(matched: Matched, alpha: float, *, shown: bool) -> tuple[Interval, str] | None:
    """Of the difference, in the measure's unit, with its method; None where there is too little to tell.

    It excludes 0 exactly where a difference is `shown`, see `is_shown`: an interval inverts a test of its own, which
    near alpha may say otherwise than the one that decides.
    """
    means = means_of(matched)
    if means is None:
        return None
    found = score_interval(matched, 1 - alpha) if matched.measure.two_valued else _bootstrapped(matched, 1 - alpha)
    if found is None:
        return None
    low, high = found
    if not shown:
        low, high = min(low, 0.0), max(high, 0.0)
    elif means[1] > means[0]:
        low = max(low, math.ulp(0.0))
    else:
        high = min(high, -math.ulp(0.0))
    return (low, high), _interval_method(matched)


def _interval_method(matched: Matched) -> str:
    if not matched.measure.two_valued:
        return BOOTSTRAP
    several = any(len(values) > 1 for values in (*matched.a.values(), *matched.b.values()))
    return _INTERVALS[matched.kind] + (", clustered by task" if not matched.paired and several else "")


def score_interval(matched: Matched, confidence: float) -> Interval:
    """Of the difference between two rates, as fractions, whatever a test says of it. Both sides have results."""
    z = statistics.normal_quantile((1 + confidence) / 2)
    if matched.paired:
        return intervals.tango(*_parted(matched, z), confidence)
    return intervals.newcombe(*_passed(matched.a, z), *_passed(matched.b, z), confidence)


def _bootstrapped(matched: Matched, confidence: float) -> Interval | None:
    before, after = matched.means()
    if matched.paired:
        return intervals.bootstrap_mean(_less(after, before), confidence)
    return intervals.bootstrap_difference(before, after, confidence)


def _parted(matched: Matched, z: float) -> tuple[float, float, float]:
    """Tasks that only A and only B passed, and all. Of several samples: of the effective number of tasks.

    The chance that one sample of each parts is known from a task's rates, and how far the rates' differences lie
    apart says for how many single samples they count.
    """
    before, after = matched.means()
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


def _passed(by_task: Values, z: float) -> tuple[float, float]:
    """Tasks that were passed, and all; of several samples: of the effective number of tasks."""
    rates = [fmean(values) for values in by_task.values()]
    rate = fmean(rates)
    of_mean = statistics.standard_error(rates) ** 2
    size = effective_size(rate * (1 - rate), of_mean, len(rates), sum(map(len, by_task.values())), z)
    return rate * size, size


def probability_of(matched: Matched) -> float | None:
    """That B's rate is the better one, as far as these tasks tell; None without results, and for other measures."""
    if matched.kind == "nothing" or not matched.measure.two_valued:
        return None
    z = statistics.normal_quantile(1 - statistics.ALPHA / 2)
    if matched.paired:
        a_only, b_only, _ = _parted(matched, z)
        higher = statistics.probability_better(a_only, b_only)
    else:
        higher = statistics.probability_higher(*_passed(matched.a, z), *_passed(matched.b, z))
    return higher if matched.measure.direction == "higher" else 1 - higher


def smallest_of(matched: Matched, alpha: float) -> float | None:
    """The smallest difference that so many tasks show, in the measure's unit; None where none can be told.

    With one sample each it follows from the share of tasks that flipped, of which one more is taken to.
    """
    if matched.kind == "nothing":
        return None
    before, after = matched.means()
    if _is_mcnemars(matched):
        flips = sum(x != y for x, y in zip(before, after, strict=True))
        found = statistics.smallest_paired_difference(len(before), (flips + 1) / (len(before) + 2), alpha)
    elif matched.paired:
        found = statistics.smallest_difference(statistics.standard_error(_less(after, before)), alpha)
    else:
        errors = statistics.standard_error(before), statistics.standard_error(after)
        found = statistics.smallest_difference(sum(error**2 for error in errors) ** 0.5, alpha)
    return found if found and (found <= 1 or not matched.measure.two_valued) else None


def differences_of(each: Sequence[Matched], alpha: float) -> dict[str, Difference]:
    """By measure, those that both sides have: each tested, and all corrected together by Holm's procedure."""
    found = [(one, means, p) for one in each if (means := means_of(one)) and (p := p_of(one)) is not None]
    corrected = statistics.holm([p for _, _, p in found])
    differences = {}
    for (one, (a, b), p), p_holm in zip(found, corrected, strict=True):
        interval, method = interval_of(one, alpha, shown=is_shown(one, p, alpha)) or (None, None)
        differences[one.measure.name] = Difference(a, b, b - a, interval, method, p, p_holm, method_of(one))
    return differences


def ratios_of(each: Sequence[Matched], alpha: float) -> dict[str, Ratio]:
    """By measure, those of which both sides have tasks in common, and all values are above 0."""
    of_times = [one for one in each if one.measure.unit == TIMES and one.paired]
    return {
        one.measure.name: _ratio(one, alpha)
        for one in of_times
        if min(value for side in (one.a, one.b) for task in one.tasks for value in side[task]) > 0
    }


def _ratio(one: Matched, alpha: float) -> Ratio:
    a, b = ([fmean(map(math.log, side[task])) for task in one.tasks] for side in (one.a, one.b))
    logs = _less(b, a)
    found = intervals.bootstrap_mean(logs, 1 - alpha)
    interval = (math.exp(found[0]), math.exp(found[1])) if found else None
    of_a, of_b, ratio = (math.exp(fmean(each)) for each in (a, b, logs))
    return Ratio(of_a, of_b, ratio, interval, BOOTSTRAP if found else None)


def _less(after: Sequence[float], before: Sequence[float]) -> list[float]:
    return [y - x for x, y in zip(before, after, strict=True)]
