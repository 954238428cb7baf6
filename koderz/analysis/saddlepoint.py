"""Tails of permutation tests and of the bootstrap, computed and not drawn: no number of draws limits how small p gets.

Each tail is that of a sum whose cumulant generating function K is known, by Lugannani & Rice's formula. Sources:
R. Lugannani & S. Rice, "Saddle point approximation for the distribution of the sum of independent random variables",
Adv. Appl. Probab. 12 (1980), 475-490; for sign flips, permutations and resamples: A. C. Davison & D. V. Hinkley,
"Saddlepoint approximations in resampling methods", Biometrika 75 (1988), 417-431; for sums that come in steps:
H. E. Daniels, "Tail probability approximations", Int. Statist. Rev. 55 (1987), 37-48, section 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

_MOST_STEPS = 60  # into which the smallest of values is divided, in search of a unit for all
_DOUBLINGS = 60  # of a bracket around a root
_NEAR = 1e-3  # the centre, in standard deviations: nearer, a limit takes the place of the formula


def unit_of(sizes: Values) -> float:
    """The largest unit of which all `sizes`, which are above 0, are multiples; 0 if none is found."""
    import numpy as np

    least = float(sizes.min())
    for steps in range(1, _MOST_STEPS + 1):
        counts = sizes * (steps / least)
        if np.all(np.abs(counts - np.rint(counts)) < 1e-6):
            return least / steps
    return 0.0


def flipped_tail(sizes: Values, least: float) -> float:
    """The probability that numbers of these sizes, above 0, have at least this sum if their signs are random."""
    import numpy as np

    unit = unit_of(sizes)
    target = least - unit  # half a step: a flip changes the sum by two units at least
    if target <= 0:
        return 0.5
    t = _root(lambda t: float(sizes @ np.tanh(t * sizes)) - target, 1 / float(sizes.max()))
    if t is None:  # all have the same sign
        return 0.5 ** len(sizes)
    turned = t * sizes
    cumulants = float(np.sum(turned + np.log1p(np.exp(-2 * turned)))) - len(sizes) * math.log(2)
    variance = float(np.sum((sizes / np.cosh(np.minimum(turned, 300))) ** 2))
    slope = math.sinh(t * unit) / unit if unit else t
    return _tail(math.sqrt(2 * (t * target - cumulants)), slope * math.sqrt(variance))


def shuffled_tail(values: Values, count: int, least: float) -> float:
    """The probability that `count` of the values, drawn without replacement, have at least this sum.

    They are those of independent draws with the chance count / len(values), given their number. Source: I. M.
    Skovgaard, "Saddlepoint expansions for conditional distributions", J. Appl. Probab. 24 (1987), 875-887.
    """
    import numpy as np
    from scipy.optimize import brentq
    from scipy.special import expit, logit

    size, centred = len(values), values - values.mean()
    apart = values[values > values.min()] - values.min()
    if not len(apart):
        return 1.0
    unit = unit_of(apart)
    target = least - count * float(values.mean()) - unit / 2
    if target <= 0:
        return 0.5
    share, reach = count / size, float(np.abs(centred).max())

    def level(t: float) -> float:
        """The shift of all log odds that makes `count` the expected number."""
        most = t * reach + 1
        return float(
            brentq(
                lambda a: float(expit(logit(share) + a + t * centred).sum()) - count, -most, most
            )
        )

    def off(t: float) -> float:
        return float(expit(logit(share) + level(t) + t * centred) @ centred) - target

    t = _root(off, 1 / reach, most=1e4 / reach)
    if t is None:  # the largest ones: a single draw of all
        return math.exp(
            math.lgamma(count + 1) + math.lgamma(size - count + 1) - math.lgamma(size + 1)
        )
    at = level(t)
    chances = expit(logit(share) + at + t * centred)
    spread = chances * (1 - chances)
    cumulants = float(np.sum(np.logaddexp(math.log1p(-share), math.log(share) + at + t * centred)))
    determinant = spread.sum() * (spread @ centred**2) - (spread @ centred) ** 2
    slope = 2 * math.sinh(t * unit / 2) / unit if unit else t
    v = slope * math.sqrt(determinant / (count * (1 - share)))
    return _tail(math.sqrt(2 * (t * target + at * count - cumulants)), v)


def resampled_quantiles(sides: Sequence[Values], probabilities: Sequence[float]) -> list[float]:
    """Quantiles of the sum of the means of resamples, one resample with replacement of each side."""
    import numpy as np
    from scipy.special import logsumexp, softmax

    centre = sum(float(side.mean()) for side in sides)
    deviations = [(side - side.mean()) / len(side) for side in sides]
    error = math.sqrt(sum(float(np.sum(each**2)) for each in deviations))
    skewness = sum(float(np.sum(each**3)) for each in deviations) / error**3

    def at(t: float) -> tuple[float, float]:
        """The sum that resamples tilted by t have on average, and the chance of a lower one."""
        weights = [softmax(t * each) for each in deviations]
        total = sum(len(w) * float(w @ x) for w, x in zip(weights, deviations, strict=True))
        if abs(t * error) < _NEAR:
            return total, 0.5 + t * error / math.sqrt(2 * math.pi) + skewness / (
                6 * math.sqrt(2 * math.pi)
            )
        cumulants = sum(len(x) * (float(logsumexp(t * x)) - math.log(len(x))) for x in deviations)
        variance = sum(
            len(w) * (float(w @ x**2) - float(w @ x) ** 2)
            for w, x in zip(weights, deviations, strict=True)
        )
        w = math.copysign(math.sqrt(max(0.0, 2 * (t * total - cumulants))), t)
        v = t * math.sqrt(max(0.0, variance))
        return total, (1.0 - _tail(w, v)) if v else float(t > 0)

    def quantile(probability: float) -> float:
        sign = 1 if probability > at(0.0)[1] else -1
        t = None
        if 0 < probability < 1:
            t = _root(lambda t: sign * (at(sign * t)[1] - probability), 1 / error, most=1e3 / error)
        if t is None:
            return sum(float(side.max() if sign > 0 else side.min()) for side in sides)
        return centre + at(sign * t)[0]

    return [quantile(probability) for probability in probabilities]


def _root(rising: Callable[[float], float], high: float, *, most: float = math.inf) -> float | None:
    """Where a function that rises from below 0 at 0 crosses it; None if it doesn't up to `most`."""
    from scipy.optimize import brentq

    for _ in range(_DOUBLINGS):
        if rising(high) >= 0:
            return float(brentq(rising, 0.0, high))
        high *= 2
        if high > most:
            break
    return None


def _tail(w: float, v: float) -> float:
    """Lugannani & Rice's probability of a larger sum; w and v are two measures of how far out it is."""
    if abs(w) < _NEAR:
        return 0.5
    density = math.exp(-w * w / 2) / math.sqrt(2 * math.pi)
    found = 0.5 * math.erfc(w / math.sqrt(2)) + density * (1 / v - 1 / w)
    return min(1.0, max(0.0, found))
