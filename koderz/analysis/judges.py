"""Comparisons of runs that a model judged: the difference corrected by the judges' calibrations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from koderz.analysis.agreement import FEWEST_LABELS, mean_and_variance
from koderz.analysis.intervals import Interval
from koderz.analysis.pairs import Matched, Side
from koderz.types import JUDGE
from koderz_tracker.clusters import members
from koderz_tracker.runs import read_plan

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
