"""Agreement of a judge that is a model with people, and rates and comparisons corrected for its errors.

Values are 1 for passed, 0 for failed, or scores from 0 to 1. Intervals are of 95 %.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, Literal

from koderz.analysis.pairs import Matched, Side
from koderz.types import JUDGE
from koderz_tracker.clusters import members
from koderz_tracker.rates import student, wilson
from koderz_tracker.runs import read_plan

Interval = tuple[float, float]
Method = Literal["prediction-powered", "Rogan-Gladen"]

FEWEST_LABELS, FEWEST_OF_A_KIND = 30, 5
"""The fewest labels in all, and of passed and failed each, with which a correction is of use."""

_Z = statistics.NormalDist().inv_cdf(0.975)
_DRAWS = 2000  # of a bootstrap


@dataclass(frozen=True, slots=True)
class Labelled:
    """One item that was judged by the model and labelled by people."""

    task: str  # items of one task resemble each other
    judged: float
    labels: Mapping[str, float]  # by labeller

    @property
    def label(self) -> float:
        """The mean of the labels."""
        return statistics.fmean(self.labels.values())


@dataclass(frozen=True, slots=True)
class Share:
    """A share with Wilson's interval, and the number of items that it is of."""

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


def agreement_of(items: Sequence[Labelled], *, seed: int = 0) -> Agreement:
    """The agreement on items, of which there is at least one."""
    binary = _is_binary(items)
    rng = random.Random(seed)  # noqa: S311 repeatable on purpose
    among = _people_kappa(items) if binary else None
    return Agreement(
        agreement=statistics.fmean(1 - abs(each.judged - each.label) for each in items),
        kappa=_judge_kappa(items) if binary else None,
        kappa_interval=_bootstrapped(items, _judge_kappa, rng) if binary else None,
        among_people=among,
        among_people_interval=_bootstrapped(items, _people_kappa, rng) if among is not None else None,
        sensitivity=_share([each.judged > 0.5 for each in items if each.label > 0.5]) if binary else None,
        specificity=_share([each.judged < 0.5 for each in items if each.label < 0.5]) if binary else None,
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


def prediction_powered(judged: Mapping[str, Sequence[float]], items: Sequence[Labelled]) -> Correction:
    """The judge's mean over unlabelled items plus the mean of label less verdict over labelled ones.

    `judged`: the judge's values of unlabelled items, by task. The labelled ones have to be drawn at random from the
    same run; no assumption on the judge's errors is made. The interval is Student's t, with variances by task. Source:
    A. N. Angelopoulos et al., "Prediction-powered inference", Science 382 (2023), 669-674.
    """
    rectifiers: dict[str, list[float]] = defaultdict(list)
    for each in items:
        rectifiers[each.task].append(each.label - each.judged)
    if not judged:  # everything is labelled
        labels: dict[str, list[float]] = defaultdict(list)
        for each in items:
            labels[each.task].append(each.label)
        mean, variance = mean_and_variance(labels)
    else:
        (mean, variance), (rectifier, of_rectifier) = mean_and_variance(judged), mean_and_variance(rectifiers)
        mean, variance = mean + rectifier, variance + of_rectifier
    error = math.sqrt(variance)
    half = error * student(_Z, max(1, len(rectifiers) - 1))
    interval = max(0.0, mean - half), min(1.0, mean + half)
    return Correction("prediction-powered", min(1.0, max(0.0, mean)), interval, error, reason=_too_few(items))


def rogan_gladen(
    passed: int, judged: int, sensitivity: tuple[int, int], specificity: tuple[int, int], *, reason: str = ""
) -> Correction:
    """The rate of `passed` among `judged` items, corrected by a sensitivity and specificity from elsewhere.

    Both are given as right ones and items. They have to hold for these items too, which none of which may be among
    those that they were found on. Interval: Z. Lang & J. Reiczigel, "Confidence limits for prevalence of disease
    adjusted for estimated sensitivity and specificity", Prev. Vet. Med. 113 (2014), 13-22, as arXiv 2511.21140 has it.
    """
    assumption = "the judge errs on these items as often as on the labelled ones"
    (r1, m1), (r0, m0) = sensitivity, specificity
    if not (judged and m1 and m0):
        return Correction("Rogan-Gladen", None, None, None, assumption, "no items of both kinds are labelled")
    p, q1, q0 = passed / judged, r1 / m1, r0 / m0
    if q1 + q0 <= 1:
        return Correction("Rogan-Gladen", None, None, None, assumption, "the judge tells nothing here")
    rate = (p + q0 - 1) / (q0 + q1 - 1)
    n = judged + _Z**2
    p_, q1_, q0_ = (passed + _Z**2 / 2) / n, (r1 + 1) / (m1 + 2), (r0 + 1) / (m0 + 2)
    if q1_ + q0_ <= 1:
        return Correction("Rogan-Gladen", None, None, None, assumption, "the judge tells nothing here")
    theta = (p_ + q0_ - 1) / (q0_ + q1_ - 1)
    of_1, of_0 = q1_ * (1 - q1_) / (m1 + 2), q0_ * (1 - q0_) / (m0 + 2)
    shift = 2 * _Z**2 * (theta * of_1 - (1 - theta) * of_0)
    error = math.sqrt(p_ * (1 - p_) / n + (1 - theta) ** 2 * of_0 + theta**2 * of_1) / (q0_ + q1_ - 1)
    interval = _clipped(theta + shift - _Z * error), _clipped(theta + shift + _Z * error)
    return Correction("Rogan-Gladen", _clipped(rate), interval, error, assumption, reason)


def corrected(judged: Mapping[str, Sequence[float]], items: Sequence[Labelled], *, drawn: bool) -> Correction:
    """The run's rate corrected by labels: prediction-powered where they were `drawn` from it, else Rogan & Gladen's.

    `judged`: the judge's values of the items without a label, by task.
    """
    if drawn:
        return prediction_powered(judged, items)
    if not _is_binary(items):
        why = "labels that aren't a random draw from this run correct pass and fail alone, not scores"
        return Correction("Rogan-Gladen", None, None, None, reason=why)
    values = [value > 0.5 for group in judged.values() for value in group] or [each.judged > 0.5 for each in items]
    right_1 = [each.judged > 0.5 for each in items if each.label > 0.5]
    right_0 = [each.judged < 0.5 for each in items if each.label < 0.5]
    return rogan_gladen(
        sum(values), len(values), (sum(right_1), len(right_1)), (sum(right_0), len(right_0)), reason=_too_few(items)
    )


def _too_few(items: Sequence[Labelled]) -> str:
    """Why a correction by these items is too wide to be used; empty if it isn't."""
    passed = sum(each.label > 0.5 for each in items)
    if len(items) < FEWEST_LABELS:
        return f"{len(items)} labels are too few to be used; {FEWEST_LABELS} are the least"
    if _is_binary(items) and min(passed, len(items) - passed) < FEWEST_OF_A_KIND:
        return (
            f"{passed} of {len(items)} labels are passes; with fewer than {FEWEST_OF_A_KIND} of a kind it is too wide"
        )
    return ""


def _is_binary(items: Sequence[Labelled]) -> bool:
    return all(value in (0, 1) for each in items for value in (each.judged, *each.labels.values()))


def _pairs(items: Sequence[Labelled]) -> list[tuple[str, str]]:
    return [*combinations(sorted({name for each in items for name in each.labels}), 2)]


def _judge_kappa(items: Sequence[Labelled]) -> float | None:
    return cohens_kappa([(each.judged, label) for each in items for label in each.labels.values()])


def _people_kappa(items: Sequence[Labelled]) -> float | None:
    found = [
        cohens_kappa([(each.labels[a], each.labels[b]) for each in items if a in each.labels and b in each.labels])
        for a, b in _pairs(items)
    ]
    known = [each for each in found if each is not None]
    return statistics.fmean(known) if known else None


def _bootstrapped(
    items: Sequence[Labelled], value: Callable[[Sequence[Labelled]], float | None], rng: random.Random
) -> Interval | None:
    tasks: dict[str, list[Labelled]] = defaultdict(list)
    for each in items:
        tasks[each.task].append(each)
    groups = [*tasks.values()]
    drawn = ([each for group in rng.choices(groups, k=len(groups)) for each in group] for _ in range(_DRAWS))
    found = sorted(each for each in map(value, drawn) if each is not None)
    if len(groups) < 2 or len(found) < _DRAWS // 2:
        return None
    return found[int(0.025 * len(found))], found[min(len(found) - 1, int(0.975 * len(found)))]


def _share(right: Sequence[bool]) -> Share | None:
    return Share(sum(right) / len(right), wilson(sum(right), len(right)), len(right)) if right else None


def mean_and_variance(groups: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """The mean of all values, and its variance where groups are independent of each other and their values aren't."""
    n = sum(map(len, groups.values()))
    mean = math.fsum(value for group in groups.values() for value in group) / n
    if len(groups) < 2:
        return mean, math.inf
    squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in groups.values())
    return mean, squares / n**2 * len(groups) / (len(groups) - 1)


def _clipped(value: float) -> float:
    return min(1.0, max(0.0, value))


_A_MODEL = "a model"


@dataclass(frozen=True, slots=True)
class JudgedDifference:
    """The part of model judges in a comparison. Differences are B less A, in points."""

    judges: tuple[str, str]  # of A and B; empty where no model judged
    difference: float | None  # corrected; None where a side isn't calibrated
    interval: Interval | None
    note: str

    @property
    def is_shown(self) -> bool:
        """Whether there is a corrected interval, which excludes 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    @property
    def basis(self) -> str:
        """The basis of a claim in place of a p-value; empty without a correction."""
        return "corrected for the judge's errors" if self.interval else ""

    def claims(self, is_raw_shown: bool) -> bool:
        """Whether a difference is claimed: by the corrected interval, or without one as the judges have it."""
        return self.is_shown if self.interval else is_raw_shown


def judged_difference(
    a: Side, b: Side, matched: Matched, raw: Interval | None, alpha: float
) -> JudgedDifference | None:
    """The difference in success corrected for the errors of the judges; None where no model judged.

    `raw`: the interval as the judges have it. The corrected one is that of the paired difference, with the variances
    of both calibrations added.
    """
    judges = judge_of(a), judge_of(b)
    if not any(judges) or not matched.measure.two_valued:
        return None
    figures = _figures(a), _figures(b)
    lacking = [judge for judge, each in zip(judges, figures, strict=True) if judge and not _is_usable(each)]
    if lacking or not matched.paired:
        named = " and ".join(dict.fromkeys(lacking)) or " and ".join(filter(None, judges))
        return JudgedDifference(judges, None, None, f"judged by {named}, not calibrated")
    if matched.order is not None:
        named = " and ".join(dict.fromkeys(filter(None, judges)))
        why = "a run stopped once it was decided, so the difference isn't corrected for the judge's errors"
        return JudgedDifference(judges, None, None, f"judged by {named}; {why}")
    groups = members(matched.tasks, matched.clusters)
    if len(groups) < 2:
        return None
    pairs = {group[0]: [fmean(matched.b[task]) - fmean(matched.a[task]) for task in group] for group in groups}
    mean, variance = mean_and_variance(pairs)
    for sign, each in zip((-1, 1), figures, strict=True):
        if each:
            mean += sign * each["rectifier"]["mean"]
            variance += each["rectifier"]["variance"]
    half = NormalDist().inv_cdf(1 - alpha / 2) * math.sqrt(variance)
    interval = 100 * (mean - half), 100 * (mean + half)
    found = JudgedDifference(judges, 100 * mean, interval, "")
    if raw and not raw[0] <= 0 <= raw[1] and not found.is_shown:
        return JudgedDifference(judges, 100 * mean, interval, "the judge's own errors could make this difference")
    return found


def judge_of(side: Side) -> str:
    """The model in the role `judge` of an arm; empty where no model judged."""
    if figures := _figures(side):
        return str(figures["judge"])
    if side.run.folder:
        return _judges_in(side.run.folder).get(side.arm, "")
    return _A_MODEL if side.run.judge else ""


def _figures(side: Side) -> Mapping[str, Any] | None:
    """The figures of the arm's judge in its summary; None where it isn't calibrated."""
    found: Mapping[str, Any] = side.run.parts.get("calibration") or {}
    figures = found.get(side.arm)
    return figures if isinstance(figures, Mapping) and "rectifier" in figures else None


def _is_usable(figures: Mapping[str, Any] | None) -> bool:
    """Whether the calibration is by labels drawn at random from the run, and enough of them."""
    if figures is None:
        return False
    return bool(figures["drawn"]) and figures["items"] >= FEWEST_LABELS and figures["rectifier"]["variance"] is not None


@cache
def _judges_in(folder: Path) -> Mapping[str, str]:
    return {arm.name: arm.models[JUDGE] for arm in read_plan(folder).arms if JUDGE in arm.models}


def text_of_difference(found: JudgedDifference) -> Sequence[str]:
    """The sentences about it, for people."""
    lines = []
    if found.difference is not None and found.interval:
        low, high = found.interval
        lines.append(
            f"Corrected for the errors of {' and '.join(dict.fromkeys(filter(None, found.judges)))}: "
            f"{found.difference:+.1f} points (interval {low:+.1f} to {high:+.1f}), which the claim is about."
        )
    if found.note:
        lines.append(f"{found.note[0].upper()}{found.note[1:]}.")
    return lines
