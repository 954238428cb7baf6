"""The part of judges that are models in a comparison: the difference corrected for errors, and how alike these are.

A correction needs labels of people, drawn at random from each run, as `koderz benchmark calibrate` reads them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from koderz.analysis.inference import groups_of_smallest_side, means_of, score_interval
from koderz.analysis.intervals import Interval, mover
from koderz.analysis.measures import SUCCESS
from koderz.analysis.pairs import Matched, Side
from koderz.analysis.statistics import p_text, shuffle_labels
from koderz.types import JUDGE
from koderz_tracker.rates import bounded_interval
from koderz_tracker.runs import read_plan

_A_MODEL = "a model"
_T = TypeVar("_T")

OF_ERRORS = (-1.0, 1.0)
"""The bounds of a judge's error, which is a label less the verdict."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """One item that was judged by the model and labelled by people."""

    task: str  # or the cluster that its task belongs to: items of one resemble each other
    judged: float
    labels: Mapping[str, float]  # by labeller

    @property
    def label(self) -> float:
        """The mean of the labels."""
        return fmean(self.labels.values())


@dataclass(frozen=True, slots=True)
class JudgedDifference:
    """The part of model judges in a comparison. Differences are B less A, in points."""

    judges: tuple[str, str]  # of A and B; empty where no model judged
    difference: float | None  # corrected; None where a side isn't calibrated
    interval: Interval | None
    note: str
    # p-value that the judge errs alike in both; None where a side lacks labels
    alike: float | None = None
    alike_note: str = ""

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

    `raw`: the interval as the judges have it. Calibrations that `calibrate` itself says are of no use aren't used.
    """
    judges = judge_of(a), judge_of(b)
    if not any(judges) or not matched.measure.two_valued:
        return None
    figures = _figures(a), _figures(b)
    alike, alike_note = _errs_alike(*figures, alpha)
    named = " and ".join(dict.fromkeys(filter(None, judges)))
    lacking = {
        judge: why
        for judge, each in zip(judges, figures, strict=True)
        if judge and (why := _unused(each))
    }
    note = ""
    if lacking or not matched.paired:
        reasons = "; ".join(dict.fromkeys(each for each in lacking.values() if each != _NO_LABELS))
        note = (
            f"judged by {' and '.join(lacking) or named}, not calibrated{reasons and ': '}{reasons}"
        )
    elif matched.order is not None:
        why = "a run stopped once it was decided, so the difference isn't corrected for the judge's errors"
        note = f"judged by {named}; {why}"
    elif matched.measure.name != SUCCESS.name:
        note = f"judged by {named}; people labelled success, so {matched.measure.name} isn't corrected for its errors"
    if note:
        return JudgedDifference(judges, None, None, note, alike, alike_note)
    if groups_of_smallest_side(matched) < 2:
        return None
    errors = [errors_of(_labelled(each)) if each else None for each in figures]
    difference, (low, high) = corrected_difference(matched, errors, alpha)
    interval = 100 * low, 100 * high
    if raw and not raw[0] <= 0 <= raw[1] and interval[0] <= 0 <= interval[1]:
        note = "the judge's own errors could make this difference"
    return JudgedDifference(judges, 100 * difference, interval, note, alike, alike_note)


def rights_of(items: Collection[Labelled]) -> tuple[list[list[bool]], list[list[bool]]]:
    """Whether the judge is right on what people pass, and on what they fail, by task: sensitivity and specificity."""
    of_passed = by_task((each.task, each.judged > 0.5) for each in items if each.label > 0.5)
    return of_passed, by_task((each.task, each.judged < 0.5) for each in items if each.label < 0.5)


def errors_of(items: Iterable[Labelled]) -> list[list[float]]:
    """The label less the judge's verdict of each item, by task."""
    return by_task((each.task, each.label - each.judged) for each in items)


def by_task(values: Iterable[tuple[str, _T]]) -> list[list[_T]]:
    """The values of each task."""
    groups: dict[str, list[_T]] = defaultdict(list)
    for task, value in values:
        groups[task].append(value)
    return [*groups.values()]


Errors = Sequence[Sequence[float]]
"""The label less the judge's verdict of each labelled item, by task."""


def corrected_difference(
    matched: Matched, errors: Sequence[Errors | None], alpha: float
) -> tuple[float, Interval]:
    """The difference of two rates plus B's mean error and less A's, as fractions; None for an arm that no model judged.

    Tango's interval of the rates and those of bounded means for the errors are joined as if independent, as a run's
    own corrected rate is.
    """
    rates = means_of(matched)
    assert rates, "both sides have results"
    parts = [(rates[1] - rates[0], score_interval(matched, 1 - alpha))]
    for sign, of_arm in zip((-1, 1), errors, strict=True):
        if of_arm:
            signed = [[sign * error for error in group] for group in of_arm]
            mean = fmean(error for group in signed for error in group)
            parts.append((mean, bounded_interval(signed, OF_ERRORS, alpha)))
    return math.fsum(mean for mean, _ in parts), mover(*parts)


def _errs_alike(
    a: Mapping[str, Any] | None, b: Mapping[str, Any] | None, alpha: float
) -> tuple[float | None, str]:
    """The p-value that sensitivity and specificity are the same in A and B, and a sentence about it for people.

    Each is tested by a permutation of tasks, and the lesser p counts for as many tests as there were. None and nothing
    where a side has no labels of pass and fail.
    """
    if a is None or b is None or not (_is_binary(a) and _is_binary(b)):
        return None, ""
    of_a, of_b = _labelled(a), _labelled(b)
    tested = []
    for kind, in_a, in_b in zip(("pass", "fail"), rights_of(of_a), rights_of(of_b), strict=True):
        if min(len(in_a), len(in_b)) > 1:
            wrong = [
                100 * fmean(not right for group in arm for right in group) for arm in (in_a, in_b)
            ]
            how = f"of what people {kind}, it gets {wrong[0]:.1f} % wrong in A and {wrong[1]:.1f} % in B"
            tested.append((shuffle_labels([*map(fmean, in_a)], [*map(fmean, in_b)]), how))
    if not tested:
        return None, ""
    p, how = min(tested)
    p = min(1.0, len(tested) * p)
    if p > alpha:
        return (
            p,
            f"the judge errs alike in A and B, as far as {len(of_a)} and {len(of_b)} labels tell ({p_text(p)})",
        )
    return p, f"the judge doesn't err alike in A and B: {how} ({p_text(p)})"


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
    return figures if isinstance(figures, Mapping) and figures.keys() >= _READ else None


_READ = {"judge", "drawn", "corrected", "sensitivity", "specificity"}
_NO_LABELS = "no labels"


def _unused(figures: Mapping[str, Any] | None) -> str:
    """The reason for not using a calibration; empty if it is used."""
    if figures is None:
        return _NO_LABELS
    if not figures["drawn"]:
        return "its labels aren't a random draw from the run"
    if figures["corrected"]["reason"]:
        return str(figures["corrected"]["reason"])
    if not _is_binary(figures):
        return "its labels are scores, which don't correct success"
    return ""


def _is_binary(figures: Mapping[str, Any]) -> bool:
    """Whether verdicts and labels are pass or fail."""
    return bool(figures["sensitivity"] or figures["specificity"])


def _labelled(figures: Mapping[str, Any]) -> list[Labelled]:
    """The labelled items of a calibration; of one by an older koderz, which tells no tasks, each is its own."""
    tasks = figures.get("labelled")
    if tasks is None:
        kinds = [
            (label, figures[name]) for label, name in ((1.0, "sensitivity"), (0.0, "specificity"))
        ]
        shares = [
            (label, share["items"], round(share["share"] * share["items"]))
            for label, share in kinds
            if share
        ]
        tasks = [
            [[label if n < right else 1 - label, label]]
            for label, items, right in shares
            for n in range(items)
        ]
    return [
        Labelled(str(n), judged, {"": label})
        for n, task in enumerate(tasks)
        for judged, label in task
    ]


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
    lines += [f"{note[0].upper()}{note[1:]}." for note in (found.note, found.alike_note) if note]
    return lines
