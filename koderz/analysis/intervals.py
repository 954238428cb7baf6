"""Intervals of differences: between two rates by score methods, between two averages by the bootstrap.

All are B less A, and seeded: the same results give the same limits. Those of one rate are in `tracker.rates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from koderz.analysis.statistics import ALPHA, normal_quantile, resampled_quantiles, tango_score
from koderz_tracker.rates import wilson

Interval = tuple[float, float]

# tasks; fewer resamples are too much alike for a bootstrap to hold what it says
FEWEST_TO_RESAMPLE = 20
_HALVINGS = 60  # of an interval of at most 2: down to what a float can tell


def tango(a_only: float, b_only: float, tasks: float, confidence: float = 1 - ALPHA) -> Interval:
    """The interval of the difference between the rates of A and B on the same tasks, as fractions.

    From the tasks that only A and only B passed, of all; counts need not be whole. It is what Tango's score test
    doesn't reject, which at a difference of 0 is McNemar's without his correction. Source: T. Tango, "Equivalence
    test and confidence interval for the difference in proportions for the paired-sample design", Statist. Med. 17
    (1998), 891-908, equations 24 to 26.
    """
    z = normal_quantile((1 + confidence) / 2)
    seen = (b_only - a_only) / tasks

    def score(difference: float) -> float:
        return tango_score(a_only, b_only, tasks, difference)

    return _falls_to(z, score, -1.0, seen), _falls_to(-z, score, seen, 1.0)


def newcombe(
    a: float, a_tasks: float, b: float, b_tasks: float, confidence: float = 1 - ALPHA
) -> Interval:
    """The interval of b/b_tasks - a/a_tasks for different tasks, as fractions; counts need not be whole.

    Source: R. G. Newcombe, "Interval estimation for the difference between independent proportions: comparison
    of eleven methods", Statist. Med. 17 (1998), 873-890, method 10.
    """
    z = normal_quantile((1 + confidence) / 2)
    a_low, a_high = wilson(a, a_tasks, z)
    return mover((b / b_tasks, wilson(b, b_tasks, z)), (-a / a_tasks, (-a_high, -a_low)))


def mover(*parts: tuple[float, Interval]) -> Interval:
    """The interval of a sum of independent estimates, each of which comes with its own.

    The method of variance estimates recovery: on each side, the squares of the distances to the limits add up.
    Source: G. Y. Zou & A. Donner, "Construction of confidence limits about effect measures: a general approach",
    Statist. Med. 27 (2008), 1693-1702, for sums of two.
    """
    total = math.fsum(estimate for estimate, _ in parts)
    below = math.hypot(*(estimate - low for estimate, (low, _) in parts))
    above = math.hypot(*(high - estimate for estimate, (_, high) in parts))
    return total - below, total + above


def bootstrap_mean(values: Sequence[float], confidence: float = 1 - ALPHA) -> Interval | None:
    """The interval of the mean of `values`, one a task; None below `FEWEST_TO_RESAMPLE`, or if all are equal.

    BCa. Sources: B. Efron, "Better bootstrap confidence intervals", JASA 82 (1987), 171-185; for several samples and
    clusters: A. C. Davison & D. V. Hinkley, "Bootstrap methods and their application" (1997), 5.3.2 and 3.8; with
    Student's quantiles for few tasks: T. C. Hesterberg, "What teachers should know about the bootstrap", The American
    Statistician 69 (2015), 371-386, whose expansion of percentiles is applied to BCa's.
    """
    return _bca([values], confidence)


def bootstrap_difference(
    a: Sequence[float], b: Sequence[float], confidence: float = 1 - ALPHA
) -> Interval | None:
    """The interval of mean(b) - mean(a) over different tasks, one value a task; None as for `bootstrap_mean`.

    Each side is resampled on its own (Davison & Hinkley, 3.2).
    """
    return _bca([[-value for value in a], b], confidence)


def _falls_to(target: float, score: Callable[[float], float], low: float, high: float) -> float:
    """The point between low and high at which a falling score is `target`."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > target else (low, middle)
    return (low + high) / 2


def _bca(sides: Sequence[Sequence[float]], confidence: float) -> Interval | None:
    """The BCa interval of the sum of the sides' means."""
    import numpy as np
    from scipy.stats import norm, t

    if min(map(len, sides)) < FEWEST_TO_RESAMPLE or all(len(set(values)) == 1 for values in sides):
        return None
    arrays = [np.asarray(values, dtype=np.float64) for values in sides]
    pulls = np.concatenate([(values - values.mean()) / len(values) for values in arrays])
    acceleration = np.sum(pulls**3) / (6 * np.sum(pulls**2) ** 1.5)
    # Half of resamples' sums lie below this quantile, those that equal it counted as half.
    bias = float(norm.ppf(0.5 + acceleration / math.sqrt(2 * math.pi)))
    fewest = min(map(len, sides))
    widened = t.isf((1 - confidence) / 2, fewest - 1) * math.sqrt(fewest / (fewest - 1))
    found = []
    for shifted in (bias - widened, bias + widened):
        # Far out in a skew distribution the formula has no value; then nothing but the extreme is left.
        turned = (
            shifted / (1 - acceleration * shifted)
            if acceleration * shifted < 1
            else math.copysign(math.inf, shifted)
        )
        found.append(float(norm.cdf(bias + turned)))
    low, high = resampled_quantiles(arrays, found)
    return low, high
