"""Inference on a match of two sides: the test, interval and power that fit the measure and the matching."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import gt, lt
from statistics import fmean

from koderz.analysis import intervals, sequential, statistics
from koderz.analysis.intervals import Interval
from koderz.analysis.pairs import Kind, Matched, Values
from koderz_tracker.basis import TIMES
from koderz_tracker.rates import effective_size, freedom_of
from koderz_tracker.results import members, method_in, no_interval

BOOTSTRAP = "BCa bootstrap of tasks"
CUT = "cut at 0 to agree with the test"
_SCORE_TEST = "McNemar's score test, exact for any share of flips, paired by task"
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
    """B less A in one measure, averaged over tasks, in its unit, with its interval."""

    a: float
    b: float
    difference: float
    interval: Interval | None  # of this measure alone
    interval_method: str | None
    # two-sided, that A and B are alike; None where a run stopped and no evidence holds then
    p_value: float | None
    # corrected for the number of measures that are tested beside the one asked for
    p_holm: float | None
    method: str  # of the test
    # corrected for as many; without 0 exactly where p_holm shows a difference
    interval_holm: Interval | None = None
    interval_holm_method: str | None = None
    at_once: int = 1  # the number of measures for which p_holm and interval_holm are corrected


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A in a measure whose unit is times: geometric means over the tasks in common."""

    a: float
    b: float
    ratio: float
    interval: Interval | None
    interval_method: str | None


def method_of(matched: Matched, *, exact: bool = False) -> str:
    """The name of the test behind the p-value."""
    if matched.order is not None:
        return sequential.method_of(matched)
    if _is_mcnemars(matched):
        return _MCNEMAR if exact else _SCORE_TEST
    return _in_clusters(_METHODS[matched.kind], matched)


def _is_mcnemars(matched: Matched) -> bool:
    return (
        matched.order is None
        and matched.measure.two_valued
        and matched.kind == "single"
        and matched.cluster_count is None
    )


def p_of(matched: Matched, *, exact: bool = False) -> float | None:
    """Two-sided p-value that A and B are equally good; None where one has no results.

    `exact`: of two rates by McNemar's test given the flips, instead of the one that holds for any share of them.
    """
    if matched.kind == "nothing":
        return None
    if matched.order is not None:
        return sequential.p_of(matched)
    if matched.kind == "unpaired":
        # The deviations of A's and B's groups from the common mean, exchangeable between the sides.
        before, after = matched.means()
        mean = fmean([*before, *after])
        of_a, of_b = (
            _totals([value - mean for value in values], _groups(matched, side))
            for values, side in ((before, matched.a), (after, matched.b))
        )
        return statistics.shuffle_labels(of_a, of_b)
    before, after = matched.means()
    if not _is_mcnemars(matched):
        return statistics.sign_flip(_totals(_less(after, before), _groups(matched, matched.tasks)))
    flips = flips_of(before, after)
    return statistics.mcnemar(*flips) if exact else statistics.score_test(*flips, len(before))


def mcnemar_of(matched: Matched) -> float | None:
    """The p-value of McNemar's exact test where it applies: two rates, one sample a task."""
    return p_of(matched, exact=True) if _is_mcnemars(matched) else None


def means_of(matched: Matched) -> tuple[float, float] | None:
    """The means of A and B over tasks, in the measure's unit; None if one has no results."""
    if matched.kind == "nothing":
        return None
    before, after = matched.means()
    return fmean(before), fmean(after)


def is_shown(matched: Matched, p_value: float | None, alpha: float) -> bool:
    """Whether a p-value is small enough, on enough tasks or clusters, to claim a difference."""
    return (
        p_value is not None
        and groups_of_smallest_side(matched) >= statistics.FEWEST_TASKS
        and p_value <= alpha
    )


def groups_of_smallest_side(matched: Matched) -> int:
    """The number of tasks, or clusters of tasks, on which a claim rests."""
    if matched.paired:
        return len(matched.tasks) if matched.cluster_count is None else matched.cluster_count
    return min(len(_groups(matched, side)) for side in (matched.a, matched.b))


def reason_for_none(matched: Matched) -> str | None:
    """The reason for having no interval of a difference, if known: all tasks are in one cluster."""
    if matched.order is not None and (reason := sequential.why_none(matched)):
        return reason
    return no_interval(matched.smallest_side, matched.cluster_count) or None


def interval_of(matched: Matched, alpha: float, *, shown: bool) -> tuple[Interval, str] | None:
    """The interval of the difference, in the measure's unit, and its method; None if there are too few tasks.

    It excludes 0 exactly where a difference is `shown`, see `is_shown`: an interval inverts a test of its own, which
    near alpha may say otherwise than the one that decides. Where that cuts or shortens it, its method says so.
    """
    means = means_of(matched)
    if means is None or groups_of_smallest_side(matched) < 2 <= matched.smallest_side:
        return None
    if matched.order is not None:
        found = sequential.interval_of(matched, alpha)
    elif matched.measure.two_valued:
        found = score_interval(matched, 1 - alpha)
    else:
        confidence = 1 - alpha
        before, after = matched.means()
        if matched.paired:
            differences = _less(after, before)
            found = intervals.bootstrap_mean(
                _of_groups(differences, _groups(matched, matched.tasks)), confidence
            )
        else:
            of_a, of_b = (
                _of_groups(v, _groups(matched, side))
                for v, side in ((before, matched.a), (after, matched.b))
            )
            found = intervals.bootstrap_difference(of_a, of_b, confidence)
    if found is None:
        return None
    low, high = found
    if not shown:
        low, high = min(low, 0.0), max(high, 0.0)
    elif means[1] > means[0]:
        low = max(low, math.ulp(0.0))
    else:
        high = min(high, -math.ulp(0.0))
    if matched.order is not None:
        method = sequential.interval_method_of(matched)
    elif not matched.measure.two_valued:
        method = _in_clusters(BOOTSTRAP, matched)
    else:
        several = any(len(values) > 1 for values in (*matched.a.values(), *matched.b.values()))
        by_task = ", clustered by task" if not matched.paired and several else ""
        method = _in_clusters(_INTERVALS[matched.kind] + by_task, matched)
    return (low, high), method if (low, high) == found else f"{method}, {CUT}"


def _in_clusters(method: str, matched: Matched) -> str:
    return method_in(method, matched.cluster_count)


def score_interval(matched: Matched, confidence: float) -> Interval:
    """The score interval of the difference between two rates, as fractions. Both sides need results."""
    z = statistics.normal_quantile((1 + confidence) / 2)
    if matched.paired:
        return intervals.tango(*_discordant(matched, z), confidence)
    return intervals.newcombe(
        *_passed(matched, matched.a, z), *_passed(matched, matched.b, z), confidence
    )


def _discordant(matched: Matched, z: float) -> tuple[float, float, float]:
    """The numbers of tasks that only A and only B passed, and of all; effective numbers for samples or clusters.

    The chance that one sample of each parts is known from a task's rates, and how far the rates' differences lie
    apart says for how many single samples they count.
    """
    before, after = matched.means()
    tasks = len(before)
    a_only = sum(x * (1 - y) for x, y in zip(before, after, strict=True)) / tasks
    b_only = sum(y * (1 - x) for x, y in zip(before, after, strict=True)) / tasks
    groups = _groups(matched, matched.tasks)
    size = effective_size(
        a_only + b_only - (b_only - a_only) ** 2,
        statistics.standard_error(_of_groups(_less(after, before), groups)) ** 2,
        len(groups),
        sum(min(len(matched.a[task]), len(matched.b[task])) for task in matched.tasks),
        z,
    )
    return a_only * size, b_only * size, size


def _passed(matched: Matched, by_task: Values, z: float) -> tuple[float, float]:
    """The numbers of passed tasks and of all; effective numbers for several samples or clusters."""
    rates = [fmean(values) for values in by_task.values()]
    rate, groups = fmean(rates), _groups(matched, by_task)
    of_mean = statistics.standard_error(_of_groups(rates, groups)) ** 2
    values = [*by_task.values()]
    freedom = freedom_of([[value for task in group for value in values[task]] for group in groups])
    size = effective_size(
        rate * (1 - rate), of_mean, len(groups), sum(map(len, values)), z, freedom
    )
    return rate * size, size


def probability_of(matched: Matched) -> float | None:
    """The probability that B's rate is the better one; None without results, and for other measures.

    None too where a run stopped once it was decided.
    """
    if matched.order is not None or matched.kind == "nothing" or not matched.measure.two_valued:
        return None
    z = statistics.normal_quantile(1 - statistics.ALPHA / 2)
    if matched.paired:
        a_only, b_only, _ = _discordant(matched, z)
        higher = statistics.probability_better(a_only, b_only)
    else:
        higher = statistics.probability_higher(
            *_passed(matched, matched.a, z), *_passed(matched, matched.b, z)
        )
    return higher if matched.measure.direction == "higher" else 1 - higher


def smallest_of(matched: Matched, alpha: float, *, exact: bool = False) -> float | None:
    """The smallest difference that so many tasks can show, in the measure's unit; None if unknown.

    With one sample each it follows from the share of tasks that flipped, of which one more is taken to. None where a
    run stopped once it was decided.
    """
    if (
        matched.order is not None
        or matched.kind == "nothing"
        or groups_of_smallest_side(matched) < statistics.FEWEST_TASKS
    ):
        return None
    before, after = matched.means()
    if _is_mcnemars(matched):
        share = discordance(sum(flips_of(before, after)), len(before))
        return statistics.smallest_paired_difference(len(before), share, alpha, exact=exact)
    error = error_of(matched)
    groups = groups_of_smallest_side(matched)
    if matched.paired:
        found = statistics.smallest_flipped_difference(error, groups, alpha) if error else None
    else:
        found = statistics.smallest_difference(error, groups - 1, alpha) if error else None
    return found if found and (found <= 1 or not matched.measure.two_valued) else None


def discordance(flips: int, tasks: int) -> float:
    """The expected share of tasks that flip, from the observed flips and one more."""
    return (flips + 1) / (tasks + 2)


def error_of(matched: Matched) -> float:
    """The standard error of the difference, from how far tasks or clusters lie apart."""
    before, after = matched.means()
    if matched.paired:
        return statistics.standard_error(
            _of_groups(_less(after, before), _groups(matched, matched.tasks))
        )
    sides = ((before, matched.a), (after, matched.b))
    return math.hypot(
        *(statistics.standard_error(_of_groups(v, _groups(matched, side))) for v, side in sides)
    )


def least_drop(matched: Matched, confidence: float) -> float | None:
    """The least by which B is worse, with one-sided confidence, in the measure's unit; below 0 it may be better.

    None on too few tasks to tell. Of rates it is the limit of `score_interval`, of other measures Student's.
    """
    groups = groups_of_smallest_side(matched)
    means = means_of(matched)
    if means is None or groups < statistics.FEWEST_TASKS:
        return None
    higher = matched.measure.direction == "higher"
    if matched.order is not None:
        along = sequential.interval_of(matched, min(2 * (1 - confidence), 0.999))
        return along and (-along[1] if higher else along[0])
    if matched.measure.two_valued:
        low, high = score_interval(matched, 2 * confidence - 1)
        return -high if higher else low
    from scipy.stats import t

    worse = means[0] - means[1] if higher else means[1] - means[0]
    return worse - float(t.ppf(confidence, groups - 1)) * error_of(matched)


def false_alarm(matched: Matched, allowed: float, confidence: float | None) -> float:
    """The probability that B seems worse by more than `allowed` although it is equal, on tasks like these.

    With a confidence: that `least_drop` is more. Of rates with one sample a task all counts of flips are enumerated, of
    which as many are likely as here; else the difference is taken as normal, with the standard error that it has here.
    """
    groups = groups_of_smallest_side(matched)
    if confidence is not None and groups < statistics.FEWEST_TASKS:
        return 0.0
    if _is_mcnemars(matched):
        before, after = matched.means()
        share = discordance(sum(flips_of(before, after)), len(before))
        return statistics.drop_alarm(len(before), share, allowed, confidence)
    from scipy.stats import nct, norm, t

    error = error_of(matched)
    if not error:
        return 0.0
    if confidence is None:
        return float(norm.sf(allowed / error))
    return float(nct.sf(t.ppf(confidence, groups - 1), groups - 1, -allowed / error))


def differences_of(
    each: Sequence[Matched], asked: Matched, alpha: float, *, exact: bool = False
) -> dict[str, Difference]:
    """The differences in the measures that both sides have, each tested, and corrected together by Holm's procedure.

    A measure with one value throughout can show nothing, and a copy of another one, as a score of passes is, shows what
    that shows: neither makes the others' p larger. A copy of the measure that is `asked` for is no further claim.
    """
    found = [(one, means, p_of(one, exact=exact)) for one in each if (means := means_of(one))]
    own: list[tuple[Matched, float]] = []  # that are tested, each for itself
    originals: dict[str, Matched] = {}
    # A rate is the original of its copies, since its test shows more.
    for one, _, p in sorted(found, key=lambda each: not each[0].measure.two_valued):
        if p is None:
            continue
        every = {value for side in (one.a, one.b) for values in side.values() for value in values}
        if len(every) > 1:
            before = [asked, *(each for each, _ in own)]
            earlier = next(
                (first for first in before if (one.a, one.b) == (first.a, first.b)), None
            )
            originals[one.measure.name] = earlier or one
            if earlier is None:
                own.append((one, p))
    corrected = {
        one.measure.name: p
        for (one, _), p in zip(own, statistics.holm([p for _, p in own]), strict=True)
    }
    differences = {}
    for one, (a, b), p in found:
        original = originals.get(one.measure.name)
        p_holm = (
            p
            if p is None or original is None
            else max(p, corrected.get(original.measure.name, 0.0))
        )
        count = len(own) if original is not None and original is not asked else 1
        alone = interval_of(one, alpha, shown=is_shown(one, p, alpha)) or (
            None,
            reason_for_none(one),
        )
        together = corrected_interval(one, alpha, count, p_holm) or (None, reason_for_none(one))
        differences[one.measure.name] = Difference(
            a,
            b,
            b - a,
            alone[0],
            alone[1],
            p,
            p_holm,
            method_of(one, exact=exact),
            together[0],
            together[1],
            count,
        )
    return differences


def corrected_interval(
    matched: Matched, alpha: float, count: int, p_holm: float | None
) -> tuple[Interval, str] | None:
    """One of `count` intervals that hold together with confidence 1 - alpha, and its method; None as `interval_of`.

    Each is of confidence 1 - alpha / count, and excludes 0 exactly where Holm's p shows a difference. Source: C. E.
    Bonferroni's inequality, which Holm's procedure refines; R. G. Miller, "Simultaneous statistical inference" (2nd
    ed., 1981), section 1.4.
    """
    return interval_of(matched, alpha / max(1, count), shown=is_shown(matched, p_holm, alpha))


def ratios_of(each: Sequence[Matched], alpha: float) -> dict[str, Ratio]:
    """The ratios in the measures for which both sides have tasks in common and all values are above 0."""
    of_times = [one for one in each if one.measure.unit == TIMES and one.paired]
    return {
        one.measure.name: _ratio(one, alpha)
        for one in of_times
        if min(value for side in (one.a, one.b) for task in one.tasks for value in side[task]) > 0
    }


def _ratio(one: Matched, alpha: float) -> Ratio:
    a, b = ([fmean(map(math.log, side[task])) for task in one.tasks] for side in (one.a, one.b))
    logs = _less(b, a)
    found = None
    if one.order is None:
        found = intervals.bootstrap_mean(_of_groups(logs, _groups(one, one.tasks)), 1 - alpha)
    interval = (math.exp(found[0]), math.exp(found[1])) if found else None
    of_a, of_b, ratio = (math.exp(fmean(each)) for each in (a, b, logs))
    return Ratio(of_a, of_b, ratio, interval, _in_clusters(BOOTSTRAP, one) if found else None)


def _less(after: Sequence[float], before: Sequence[float]) -> list[float]:
    return [y - x for x, y in zip(before, after, strict=True)]


def flips_of(before: Sequence[float], after: Sequence[float]) -> tuple[int, int]:
    """The numbers of tasks that only A and only B passed."""
    return sum(map(gt, before, after)), sum(map(lt, before, after))


# Values of tasks become one value a group of tasks that are drawn together: a cluster, or a task that has none.

Groups = Sequence[Sequence[int]]
"""Groups of tasks, as their positions."""


def _groups(matched: Matched, tasks: Iterable[str]) -> Groups:
    names = [*tasks]
    place = {task: number for number, task in enumerate(names)}
    return [[place[task] for task in group] for group in members(names, matched.clusters)]


def _of_groups(values: Sequence[float], groups: Groups) -> list[float]:
    """Values whose mean is that of all tasks, and whose standard error that of a mean of clusters of unlike sizes.

    Source: the linearized ratio, W. G. Cochran, "Sampling techniques" (3rd ed., 1977), section 6.4.
    """
    mean, scale = fmean(values), len(groups) / len(values)
    return [mean + scale * math.fsum(values[task] - mean for task in group) for group in groups]


def _totals(values: Sequence[float], groups: Groups) -> list[float]:
    """The sum of each group. If A and B are alike, each sign is equally likely."""
    return [math.fsum(values[task] for task in group) for group in groups]
