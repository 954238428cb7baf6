"""Agreement of a judge that is a model with people, and rates corrected for its errors.

Values are 1 for passed, 0 for failed, or scores from 0 to 1. Intervals are of 95 %.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

from koderz.analysis.intervals import mover
from koderz.analysis.judged import OF_ERRORS, Labelled, by_task, errors_of, rights_of
from koderz_tracker.rates import (
    SHARE,
    Interval,
    bounded_interval,
    effective_size,
    freedom_of,
    mean_interval,
    rate_interval,
)

Method = Literal["prediction-powered", "Rogan-Gladen"]

FEWEST_LABELS, FEWEST_OF_A_KIND = 30, 5
"""The fewest labels in all, and of passed and failed each, with which a correction is of use."""

TELLS_NOTHING = "the judge tells nothing here"
ONE_GROUP = "all labelled items are of one task or cluster, which says nothing of others"
"""Reasons for correcting nothing."""

_Z = statistics.NormalDist().inv_cdf(0.975)
_DRAWS = 2000  # of a bootstrap


@dataclass(frozen=True, slots=True)
class Share:
    """A share with Wilson's interval, clustered by task, and the number of items that it is of."""

    share: float
    interval: Interval
    items: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of a judge with people, and of people among each other.

    Kappa is Cohen's, 1 for full agreement and 0 for that of chance; None where all are of one kind. Between people it
    is the mean over pairs of labellers. Sensitivity is the share of what people pass that the judge passes,
    specificity that of what they fail and it fails; None where there is no such item, or values are scores.
    """

    agreement: float  # share of items; of scores, 1 less the mean distance
    kappa: float | None
    kappa_interval: Interval | None  # by a bootstrap of tasks
    among_people: float | None  # kappa
    among_people_interval: Interval | None
    sensitivity: Share | None
    specificity: Share | None


@dataclass(frozen=True, slots=True)
class Correction:
    """A rate corrected for the judge's errors, as a fraction; without a rate, why there is none."""

    method: Method
    rate: float | None
    interval: Interval | None
    standard_error: float | None
    assumption: str = ""  # that it rests on, beside the labels' being right
    reason: str = ""  # for having no rate, or for its being of no use
    interval_method: str = ""


def agreement_of(items: Sequence[Labelled], *, seed: int = 0) -> Agreement:
    """The agreement on items, of which there is at least one."""
    binary = _is_binary(items)
    sensitivity, specificity = map(_share, rights_of(items)) if binary else (None, None)
    rng = random.Random(seed)  # noqa: S311 repeatable on purpose
    among = _people_kappa(items) if binary else None
    return Agreement(
        agreement=statistics.fmean(1 - abs(each.judged - each.label) for each in items),
        kappa=_judge_kappa(items) if binary else None,
        kappa_interval=_bootstrapped(items, _judge_kappa, rng) if binary else None,
        among_people=among,
        among_people_interval=_bootstrapped(items, _people_kappa, rng)
        if among is not None
        else None,
        sensitivity=sensitivity,
        specificity=specificity,
    )


def cohens_kappa(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Cohen's kappa of two raters' values; None where chance agrees in all.

    Source: J. Cohen, "A coefficient of agreement for nominal scales", Educ. Psychol. Meas. 20 (1960), 37-46.
    """
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    of_a, of_b = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    expected = sum(count * of_b[value] for value, count in of_a.items()) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def prediction_powered(
    judged: Mapping[str, Sequence[float]], items: Sequence[Labelled]
) -> Correction:
    """The judge's mean over all items plus its mean error, of label less verdict, over the labelled ones.

    `judged`: the judge's values of unlabelled items, by task. The labelled ones have to be drawn at random from the
    same run; no assumption on the judge's errors is made. Source of the estimate: A. N. Angelopoulos et al.,
    "Prediction-powered inference", Science 382 (2023), 669-674.

    Its interval by the normal distribution, or Student's t, misses far too often: errors are rare, and where no label
    shows one they seem not to vary. Here the mean error has the interval of a bounded mean, which holds with few
    labels. The two parts are joined as if independent, which is cautious: verdicts and errors correlate negatively.
    """
    unlabelled = [(task, value) for task, values in judged.items() for value in values]
    errors = errors_of(items)
    if unlabelled:
        verdicts = by_task([*unlabelled, *((each.task, each.judged) for each in items)])
        interval, method = _mean_interval(verdicts)
        (mean, variance), (error, of_error) = mean_and_variance(verdicts), mean_and_variance(errors)
        low, high = mover((mean, interval), (error, bounded_interval(errors, OF_ERRORS)))
        mean, variance = mean + error, variance + of_error
        method = f"{method} for verdicts and Gaffke's bounded mean for errors, joined by MOVER"
    else:
        labels = by_task((each.task, each.label) for each in items)
        ((low, high), method), (mean, variance) = _mean_interval(labels), mean_and_variance(labels)
    if len(errors) < 2 or low >= 1 or high <= 0:
        why = (
            ONE_GROUP
            if len(errors) < 2
            else "the labelled items can't be a random draw: the judge failed others"
        )
        return Correction("prediction-powered", _clipped(mean), None, None, reason=why)
    limits = _clipped(low), _clipped(high)
    reason = _too_few(items)
    return Correction(
        "prediction-powered",
        _clipped(mean),
        limits,
        math.sqrt(variance),
        reason=reason,
        interval_method=method,
    )


def rogan_gladen(
    passed: float,
    judged: float,
    sensitivity: tuple[float, float],
    specificity: tuple[float, float],
    *,
    reason: str = "",
) -> Correction:
    """The rate of `passed` among `judged` items, corrected by a sensitivity and specificity from elsewhere.

    Both are given as right ones and items; numbers may be effective ones of items in clusters. They have to hold for
    these items too, none of which may be among those that they were found on. Interval: Z. Lang & J. Reiczigel,
    "Confidence limits for prevalence of disease adjusted for estimated sensitivity and specificity", Prev. Vet. Med.
    113 (2014), 13-22, as arXiv 2511.21140 has it.
    """
    assumption = "the judge errs on these items as often as on the labelled ones"
    (r1, m1), (r0, m0) = sensitivity, specificity
    if not (judged and m1 and m0):
        return Correction(
            "Rogan-Gladen", None, None, None, assumption, "no items of both kinds are labelled"
        )
    p, q1, q0 = passed / judged, r1 / m1, r0 / m0
    if q1 + q0 <= 1:
        return Correction("Rogan-Gladen", None, None, None, assumption, TELLS_NOTHING)
    rate = (p + q0 - 1) / (q0 + q1 - 1)
    n = judged + _Z**2
    p_, q1_, q0_ = (passed + _Z**2 / 2) / n, (r1 + 1) / (m1 + 2), (r0 + 1) / (m0 + 2)
    if q1_ + q0_ <= 1:
        return Correction("Rogan-Gladen", None, None, None, assumption, TELLS_NOTHING)
    theta = (p_ + q0_ - 1) / (q0_ + q1_ - 1)
    of_1, of_0 = q1_ * (1 - q1_) / (m1 + 2), q0_ * (1 - q0_) / (m0 + 2)
    shift = 2 * _Z**2 * (theta * of_1 - (1 - theta) * of_0)
    error = math.sqrt(p_ * (1 - p_) / n + (1 - theta) ** 2 * of_0 + theta**2 * of_1) / (
        q0_ + q1_ - 1
    )
    low, high = theta + shift - _Z * error, theta + shift + _Z * error
    if low >= 1 or high <= 0:
        why = "the judge errs otherwise on these items than on the labelled ones, or it couldn't give these verdicts"
        return Correction("Rogan-Gladen", None, None, None, assumption, why)
    limits = _clipped(low), _clipped(high)
    return Correction(
        "Rogan-Gladen", _clipped(rate), limits, error, assumption, reason, "Lang and Reiczigel's"
    )


def corrected(
    judged: Mapping[str, Sequence[float]], items: Sequence[Labelled], *, drawn: bool
) -> Correction:
    """The run's rate corrected by labels: prediction-powered where they were `drawn` from it, else Rogan & Gladen's.

    `judged`: the judge's values of the items without a label, by task. Labels that contradict the judge more than they
    agree with it correct nothing.
    """
    method: Method = "prediction-powered" if drawn else "Rogan-Gladen"
    if contradiction := _contradiction(items):
        return Correction(method, None, None, None, reason=contradiction)
    if drawn:
        return prediction_powered(judged, items)
    if not _is_binary(items):
        why = (
            "labels that aren't a random draw from this run correct pass and fail alone, not scores"
        )
        return Correction(method, None, None, None, reason=why)
    values = [*judged.values()] or by_task((each.task, each.judged) for each in items)
    counts = map(
        _effective, ([[value > 0.5 for value in group] for group in values], *rights_of(items))
    )
    (passed, of), sensitivity, specificity = counts
    return rogan_gladen(passed, of, sensitivity, specificity, reason=_too_few(items))


def _contradiction(items: Sequence[Labelled]) -> str:
    """Why labels correct nothing: verdicts don't rise with them, as if pass and fail were turned round; else empty.

    Of zeros and ones this is where sensitivity and specificity add up to 1 or less. Labels that are all alike don't
    tell, nor do verdicts.
    """
    labels, judged = [each.label for each in items], [each.judged for each in items]
    if len({*labels}) < 2 or len({*judged}) < 2:
        return ""
    together = math.fsum(label * verdict for label, verdict in zip(labels, judged, strict=True))
    if len(items) * together > math.fsum(labels) * math.fsum(judged):
        return ""
    why = "its scores don't rise with those of the labels"
    if _is_binary(items):
        passed, failed = (
            fmean(right for group in groups for right in group) for groups in rights_of(items)
        )
        why = f"sensitivity and specificity add up to {100 * (passed + failed):.0f} %, which chance has at 100"
    return f"{TELLS_NOTHING}: {why}; check that the labels aren't turned round"


def _too_few(items: Sequence[Labelled]) -> str:
    """Why a correction by these items is too wide to be used; empty if it isn't."""
    passed = sum(each.label > 0.5 for each in items)
    if len(items) < FEWEST_LABELS:
        return f"{len(items)} labels are too few to be used; {FEWEST_LABELS} are the least"
    if _is_binary(items) and min(passed, len(items) - passed) < FEWEST_OF_A_KIND:
        return (
            f"{passed} of {len(items)} labels are passes; "
            f"with fewer than {FEWEST_OF_A_KIND} of a kind it is too wide"
        )
    return ""


def _is_binary(items: Sequence[Labelled]) -> bool:
    return all(value in (0, 1) for each in items for value in (each.judged, *each.labels.values()))


def _judge_kappa(items: Sequence[Labelled]) -> float | None:
    return cohens_kappa([(each.judged, label) for each in items for label in each.labels.values()])


def _people_kappa(items: Sequence[Labelled]) -> float | None:
    found = [
        cohens_kappa(
            [
                (each.labels[a], each.labels[b])
                for each in items
                if a in each.labels and b in each.labels
            ]
        )
        for a, b in combinations(sorted({name for each in items for name in each.labels}), 2)
    ]
    known = [each for each in found if each is not None]
    return statistics.fmean(known) if known else None


def _bootstrapped(
    items: Sequence[Labelled],
    value: Callable[[Sequence[Labelled]], float | None],
    rng: random.Random,
) -> Interval | None:
    tasks: dict[str, list[Labelled]] = defaultdict(list)
    for each in items:
        tasks[each.task].append(each)
    groups = [*tasks.values()]
    drawn = (
        [each for group in rng.choices(groups, k=len(groups)) for each in group]
        for _ in range(_DRAWS)
    )
    found = sorted(each for each in map(value, drawn) if each is not None)
    if len(groups) < 2 or len(found) < _DRAWS // 2:
        return None
    return found[int(0.025 * len(found))], found[min(len(found) - 1, int(0.975 * len(found)))]


def _share(right: Sequence[Sequence[bool]]) -> Share | None:
    values = [value for group in right for value in group]
    found = rate_interval(right)
    return Share(fmean(values), found[0], len(values)) if found else None


def _effective(groups: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """The numbers of passed items and of all; effective numbers where tasks have several."""
    items, passed = sum(map(len, groups)), sum(map(sum, groups))
    if len(groups) == items:
        return passed, items
    rate, variance = mean_and_variance(groups)
    size = effective_size(
        rate * (1 - rate), variance, len(groups), items, freedom=freedom_of(groups)
    )
    return rate * size, size


def _mean_interval(groups: Sequence[Sequence[float]]) -> tuple[Interval, str]:
    """The interval of the mean of verdicts or labels, and its method."""
    binary = all(value in (0, 1) for group in groups for value in group)
    found = rate_interval(groups) if binary else mean_interval(groups, SHARE)
    assert found, "there is an item"
    return found


def mean_and_variance(groups: Collection[Sequence[float]]) -> tuple[float, float]:
    """The mean of all values, and its variance where groups are independent of each other and their values aren't."""
    n = sum(map(len, groups))
    mean = math.fsum(value for group in groups for value in group) / n
    if len(groups) < 2:
        return mean, math.inf
    squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in groups)
    return mean, squares / n**2 * len(groups) / (len(groups) - 1)


def _clipped(value: float) -> float:
    return min(1.0, max(0.0, value))
