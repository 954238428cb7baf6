"""Estimates of how far prompts, or the optimizers that found them, lie apart on the same test items.

A search is drawn as its items are: with another seed an optimizer finds another prompt. From `FEWEST_SEARCHES` on, a
difference is one of optimizers, whose interval holds for other searches and other items alike. Below, too little is
known of how far searches lie apart, so the difference is one of the prompts that were found, on other items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from koderz.analysis import statistics
from koderz.analysis.inference import interval_of, is_shown, method_of, p_of, smallest_of
from koderz.analysis.intervals import FEWEST_TO_RESAMPLE, Interval
from koderz.analysis.pairs import matched
from koderz_tracker.records import Measure
from koderz_tracker.results import Clusters, count_of, members, method_in, no_interval

FEWEST_SEARCHES = 5
"""The fewest searches of an optimizer for a claim about it; below, a variance is known to a factor of 8 at best."""

Scores = Mapping[str, float]
"""Scores by the ids of test items."""

Limits = Callable[[float, bool], tuple[Interval, str] | None]
"""The interval at an alpha and its method. It excludes 0 exactly if a difference is shown, the second argument."""

About = Literal["optimizer", "prompts"]


@dataclass(frozen=True, slots=True, eq=False)
class Gain:
    """B less A on the items that both have, as fractions, averaged over searches."""

    n: int
    a: float
    b: float
    gain: float
    interval: Interval | None  # 95 %; None below 20 items
    interval_method: str | None  # without an interval, why, where that is known
    p: float
    method: str  # of the test
    # the smallest difference that so many items and searches show with a power of 0.8
    detectable: float | None
    about: About  # what a claim may be about
    prompts: int  # of B, one a search
    clusters: int | None  # in which the items are; None: each stands alone
    limits: Limits = field(repr=False)

    def together(self, count: int, p_adjusted: float | None) -> tuple[Interval, str] | None:
        """The interval as one of `count` that hold together, by Bonferroni's inequality, and its method."""
        if self.interval is None or p_adjusted is None:
            return None
        return self.limits(statistics.ALPHA / count, p_adjusted < statistics.ALPHA)


def gain_of(
    a: Sequence[Scores],
    b: Sequence[Scores],
    clusters: Clusters | None = None,
    *,
    is_fixed: bool = False,
    untested: str = "",
) -> Gain | None:
    """B's scores less A's, item by item; None if they have no item in common.

    `a` and `b` have the scores of each search; `is_fixed`: A is no search, but one prompt that was there before;
    `untested`: the reason for which nothing is tested, and there is no interval.
    """
    items = [item for item in (a[0] if a else ()) if all(item in scores for scores in (*a, *b))]
    if not items or not b:
        return None
    of = clusters or {}
    count = count_of(items, of)
    reason = untested or no_interval(len(items), count).replace("tasks", "items")
    fewest = len(b) if is_fixed else min(len(a), len(b))
    about: About = (
        "optimizer" if fewest >= FEWEST_SEARCHES and len(items) > 1 and not reason else "prompts"
    )
    p, method, limits, detectable = (_of_searches if about == "optimizer" else _of_items)(
        a, b, items, of
    )
    known = (
        None
        if reason or len(items) < FEWEST_TO_RESAMPLE
        else limits(statistics.ALPHA, p < statistics.ALPHA)
    )
    interval, interval_method = known or (None, reason or None)
    before, after = (fmean(scores[item] for scores in side for item in items) for side in (a, b))
    return Gain(
        n=len(items),
        a=before,
        b=after,
        gain=after - before,
        interval=interval,
        interval_method=interval_method,
        p=1.0 if reason else p,
        method=untested or method,
        detectable=None if reason else detectable,
        about=about,
        prompts=len(b),
        clusters=count,
        limits=limits,
    )


Estimated = tuple[float, str, Limits, float | None]
"""The p-value of no difference, the test's name, the intervals, and the smallest difference that could be shown."""


def _of_items(
    a: Sequence[Scores], b: Sequence[Scores], items: Sequence[str], clusters: Clusters
) -> Estimated:
    """The estimate for other items and the same prompts."""
    one = len(a) == len(b) == 1
    before, after = (
        {item: [fmean(scores[item] for scores in side)] for item in items} for side in (a, b)
    )
    pairs = matched(
        Measure(name="score", direction="higher", two_valued=one), before, after, clusters
    )
    p = p_of(pairs) or 0.0
    differences = {after[item][0] - before[item][0] for item in items}

    def limits(alpha: float, shown: bool) -> tuple[Interval, str] | None:
        if len(differences) == 1:
            (all_alike,) = differences
            return (all_alike, all_alike), "all items differ alike"
        return interval_of(pairs, alpha, shown=shown and is_shown(pairs, 0.0, alpha))

    return p, method_of(pairs), limits, smallest_of(pairs, statistics.ALPHA) or None


def _of_searches(
    a: Sequence[Scores], b: Sequence[Scores], items: Sequence[str], clusters: Clusters
) -> Estimated:
    """The estimate for other searches and other items."""
    place = {item: number for number, item in enumerate(items)}
    found = crossed(
        [[scores[item] for item in items] for scores in a],
        [[scores[item] for item in items] for scores in b],
        [[place[item] for item in group] for group in members(items, clusters)],
    )
    method = method_in("Student's t, searches and items crossed", count_of(items, clusters))

    def limits(alpha: float, shown: bool) -> tuple[Interval, str] | None:
        low, high = found.interval(alpha)
        if shown:
            low, high = (
                (max(low, math.ulp(0.0)), high)
                if found.difference > 0
                else (low, min(high, -math.ulp(0.0)))
            )
        elif found.error:
            low, high = min(low, 0.0), max(high, 0.0)
        return (low, high), method

    return found.p, method, limits, found.smallest() or None


@dataclass(frozen=True, slots=True)
class Crossed:
    """A mean difference with its error from both searches and items."""

    difference: float
    error: float
    freedom: float  # degrees, after Satterthwaite

    @property
    def p(self) -> float:
        """The two-sided p-value of no difference."""
        from scipy.stats import t

        if not self.error:
            return 0.0 if self.difference else 1.0
        return float(2 * t.sf(abs(self.difference) / self.error, self.freedom))

    def interval(self, alpha: float) -> Interval:
        """The interval of the difference of scores from 0 to 1, within -1 and 1."""
        half = self._quantile(1 - alpha / 2) * self.error if self.error else 0.0
        return max(-1.0, self.difference - half), min(1.0, self.difference + half)

    def smallest(self, alpha: float = statistics.ALPHA, power: float = statistics.POWER) -> float:
        """The smallest true difference that shows with `power`."""
        return (
            (self._quantile(1 - alpha / 2) + self._quantile(power)) * self.error
            if self.error
            else 0.0
        )

    def _quantile(self, share: float) -> float:
        from scipy.stats import t

        return float(t.ppf(share, self.freedom))


def crossed(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], groups: Sequence[Sequence[int]]
) -> Crossed:
    """The mean of B's scores less A's, where each search has scored the same items: a row a search.

    `groups`, two or more, have the positions of the items of each cluster. The variance is that of the items' mean
    differences, and of the means of either side's searches where these are several, less what both have of the
    residuals: searches and items are crossed random effects. Sources: A. C. Cameron, J. B. Gelbach & D. L. Miller,
    "Robust inference with multiway clustering", J. Bus. Econ. Stat. 29 (2011), 238-249; F. E. Satterthwaite, "An
    approximate distribution of estimates of variance components", Biometrics Bulletin 2 (1946), 110-114.
    """
    import numpy as np

    of_a, of_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    items, count = of_a.shape[1], len(groups)
    membership = np.zeros(items, dtype=np.intp)
    for number, group in enumerate(groups):
        membership[list(group)] = number

    def by_group(residuals: Any) -> float:
        """The variance of a mean of so many items, from the deviations of groups of them."""
        sums = np.bincount(membership, residuals, minlength=count)
        return float(np.sum(sums**2) / items**2 * count / (count - 1))

    differences = of_b.mean(axis=0) - of_a.mean(axis=0)
    mean = float(differences.mean())
    variance = by_group(differences - mean)
    parts = [(variance, count - 1)]
    for side in (of_a, of_b):
        searches = len(side)
        if searches > 1:
            of_searches = float(side.mean(axis=1).var(ddof=1)) / searches
            residuals = side - side.mean(axis=1, keepdims=True) - side.mean(axis=0) + side.mean()
            shared = sum(map(by_group, residuals)) / (searches - 1) / searches
            if of_searches > shared:
                variance += of_searches - shared
                parts.append((of_searches, searches - 1))
    weights = sum(part**2 / freedom for part, freedom in parts)
    return Crossed(mean, math.sqrt(variance), variance**2 / weights if weights else math.inf)
