"""Statistics of results: tests, probabilities and power, and the tails of distributions that they rest on.

Intervals are in `koderz.analysis.intervals`; rates, their intervals and pass@k in `tracker.rates`. Everything here
is seeded: the same results give the same figures. Functions that take one value a task are clustered by task, since
the samples of a task resemble each other.

Tails of permutation tests and of the bootstrap are computed and not drawn: no number of draws limits how small p gets.
Each is that of a sum whose cumulant generating function K is known, by Lugannani & Rice's formula. Sources:
R. Lugannani & S. Rice, "Saddle point approximation for the distribution of the sum of independent random variables",
Adv. Appl. Probab. 12 (1980), 475-490; for sign flips, permutations and resamples: A. C. Davison & D. V. Hinkley,
"Saddlepoint approximations in resampling methods", Biometrika 75 (1988), 417-431; for sums that come in steps:
H. E. Daniels, "Tail probability approximations", Int. Statist. Rev. 55 (1987), 37-48, section 6.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

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


ALPHA = 0.05
POWER = 0.8
FEWEST_TASKS = 6  # with five, even five flips the same way have p = 0.0625
SEED = 20260131
_MOST_TRIED = 13  # differences of which each pattern of signs is tried
_MOST_ENUMERATED = 100  # differences whose sums are enumerated; values that are shuffled at random
_CELLS = 10_000  # of a grid on which sums are enumerated
DRAWS = 9999  # random permutations
_FEWEST_HITS = 50  # as extreme as what is observed, by which draws tell p
_MOST_SIMULATED = 9  # groups whose patterns of signs are enumerated for power
_SMALLEST_P = 0.001  # that is written out
_QUANTILES = 2000  # at which a distribution is looked at


def mcnemar(a_only: int, b_only: int) -> float:
    """The two-sided exact p-value of McNemar's test, from the pairs that only A and only B passed; 1 if none did.

    Given how many flipped; that makes it timid, see `score_test`. Sources: Q. McNemar, "Note on the sampling error of
    the difference between correlated proportions or percentages", Psychometrika 12 (1947), 153-157; its exact form:
    F. Mosteller, Biometrics 8 (1952), 220-226.
    """
    from scipy.stats import binomtest

    flips = a_only + b_only
    return float(binomtest(b_only, flips, 0.5).pvalue) if flips else 1.0


@lru_cache(maxsize=4096)
def mid_p(a_only: int, b_only: int) -> float:
    """The two-sided mid-p value of McNemar's test, from the pairs that only A and only B passed; 1 if none did."""
    from scipy.stats import binom

    flips, lesser = a_only + b_only, min(a_only, b_only)
    if not flips:
        return 1.0
    return float(min(1.0, 2 * binom.cdf(lesser, flips, 0.5)) - binom.pmf(lesser, flips, 0.5))


def score_test(a_only: int, b_only: int, tasks: int) -> float:
    """The two-sided p-value of McNemar's score statistic: the largest over all shares of tasks that flip.

    Of the tests of two rates on the same tasks it is the one that never rejects equal rates more often than alpha, and
    shows more than the exact one that is given the flips. Source: S. Suissa & J. J. Shuster, "The 2 x 2 matched-pairs
    trial: exact unconditional design and analysis", Biometrics 47 (1991), 361-372.
    """
    flips = a_only + b_only
    return _largest(tasks, (a_only - b_only) ** 2 / flips) if a_only != b_only else 1.0


@lru_cache(maxsize=4)
def rejected_flips(tasks: int, alpha: float, *, exact: bool = False) -> tuple[int, ...]:
    """The lesser side at which a test still rejects, for each number of flipped tasks; -1 if it never does.

    The test is `score_test`, or `mcnemar` where it is to be `exact`.
    """
    import numpy as np
    from scipy.stats import binom

    flips = np.arange(tasks + 1)
    if exact:
        lesser = binom.ppf(alpha / 2, flips, 0.5)  # the first whose tail is at least alpha / 2
        lesser -= 2 * binom.cdf(lesser, flips, 0.5) > alpha
    else:
        low, high = 0.0, tasks + 1.0
        while high - low > 1e-7:
            middle = (low + high) / 2
            low, high = (low, middle) if _largest(tasks, middle) <= alpha else (middle, high)
        lesser = _lesser(flips, high)
    return tuple(
        int(value) if count and 2 * value < count else -1
        for value, count in zip(lesser, flips, strict=True)
    )


def paired_power(
    tasks: int, discordant: float, difference: float, alpha: float = ALPHA, *, exact: bool = False
) -> float:
    """The probability that a test shows a true difference, either way, on so many tasks of which a share flips.

    Enumerated, not approximated. The test is as in `rejected_flips`; with a difference of 0 this is its size.
    """
    import numpy as np
    from scipy.stats import binom

    flips, lesser = np.arange(tasks + 1), np.array(rejected_flips(tasks, alpha, exact=exact))
    better = (1 + difference / discordant) / 2 if discordant else 0.5
    rejects = binom.cdf(lesser, flips, better) + binom.cdf(lesser, flips, 1 - better)
    return float(binom.pmf(flips, tasks, discordant) @ rejects)


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p-value that differences, one a task, have mean 0, by random signs.

    1 for fewer than two tasks. Of the differences that aren't 0, all signs of up to 13 are tried, sums of up to 100
    are enumerated, and beyond the tail is a saddlepoint's, so that p may be as small as it is. Source: R. A. Fisher,
    "The design of experiments" (1935), section 21.
    """
    import numpy as np

    values = np.asarray([difference for difference in differences if difference], dtype=np.float64)
    if len(differences) < 2 or not len(values):
        return 1.0
    if len(values) <= _MOST_TRIED:
        signs = 1 - 2 * (np.arange(2 ** (len(values) - 1))[:, None] >> np.arange(len(values)) & 1)
        return float(
            np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9 * np.abs(values).sum())
        )
    tail = _enumerated_tail(values) if len(values) <= _MOST_ENUMERATED else None
    if tail is None:
        tail = flipped_tail(np.abs(values), abs(float(values.sum())))
    return min(1.0, 2 * tail)


def shuffle_labels(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p-value that two sets of tasks, one value a task, have equal means, by permutation.

    Source: E. J. G. Pitman, "Significance tests which may be applied to samples from any populations",
    J. R. Stat. Soc. Suppl. 4 (1937), 119-130.
    """
    import numpy as np

    if min(len(a), len(b)) < 2 or len({*a, *b}) == 1:
        return 1.0
    if len(a) + len(b) <= _MOST_ENUMERATED:
        # All permutations, or else random ones.
        from scipy.stats import permutation_test

        def statistic(x: Any, y: Any, *, axis: int) -> Any:
            return np.mean(x, axis=axis) - np.mean(y, axis=axis)

        found = permutation_test(
            (np.asarray(a, dtype=float), np.asarray(b, dtype=float)),
            statistic,
            vectorized=True,
            n_resamples=DRAWS,
            rng=np.random.default_rng(SEED),
        )
        p, is_exact = float(found.pvalue), math.comb(len(a) + len(b), len(a)) <= DRAWS
        if is_exact or p >= _FEWEST_HITS / DRAWS:
            return p
    # Of draws too few are as extreme to tell p, or they would take too long.
    of_a, of_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    higher, lower = (of_a, of_b) if of_a.mean() > of_b.mean() else (of_b, of_a)
    return min(
        1.0, 2 * shuffled_tail(np.concatenate([higher, lower]), len(higher), float(higher.sum()))
    )


def probability_better(a_only: float, b_only: float) -> float:
    """The probability that B passes more tasks than A, given the tasks that only one of them passed.

    The Bayesian sign test with a uniform prior, so 0.5 where nothing flipped. Source: A. Benavoli, G. Corani,
    J. Demsar, M. Zaffalon, "Time for a change: a tutorial for comparing multiple classifiers through Bayesian
    analysis", JMLR 18 (2017), 1-36, section 4.2, without a region of practical equivalence.
    """
    from scipy.stats import beta

    return float(beta.sf(0.5, b_only + 1, a_only + 1))


def probability_higher(a: float, a_tasks: float, b: float, b_tasks: float) -> float:
    """The probability that B's rate is above A's, given the passes on so many different tasks; 0.5 for none.

    Both rates have uniform priors, so each has a beta distribution. Source: as any textbook of Bayesian statistics
    has it, e.g. A. Gelman et al., "Bayesian data analysis" (3rd ed., 2013), section 2.4.
    """
    import numpy as np
    from scipy.stats import beta

    of_a = beta.ppf((np.arange(_QUANTILES) + 0.5) / _QUANTILES, a + 1, a_tasks - a + 1)
    return float(np.mean(beta.sf(of_a, b + 1, b_tasks - b + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted so that the chance of any false claim among them stays below alpha.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979), 65-70.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def smallest_paired_difference(
    tasks: int,
    discordant: float,
    alpha: float = ALPHA,
    power: float = POWER,
    *,
    exact: bool = False,
) -> float | None:
    """The smallest true difference, as a fraction, that a test of rates on so many tasks shows with `power`.

    `discordant` is the share of tasks on which the two differ. None where not even a difference of 1 would show. It is
    where `paired_power` reaches that power, which R. J. Connor's formula (Biometrics 43 (1987), 207-211) promises of
    differences that have 76 to 79 %.
    """
    from scipy.optimize import brentq

    def lacking(difference: float) -> float:
        return power - paired_power(
            tasks, max(discordant, difference), difference, alpha, exact=exact
        )

    if tasks < FEWEST_TASKS or lacking(1.0) > 0:
        return None
    return float(brentq(lacking, 0.0, 1.0, xtol=1e-6)) + 1e-6


def drop_alarm(
    tasks: int, discordant: float, allowed: float, confidence: float | None = None
) -> float:
    """The probability that the second of two equal rates seems lower by more than `allowed`, as fractions.

    With a confidence: lower with that one-sided confidence, by Tango's score. On so many tasks of which a share flips.
    """
    import numpy as np
    from scipy.stats import binom

    flips = np.arange(tasks + 1)
    gained = np.array([_most_gained(tasks, int(count), allowed, confidence) for count in flips])
    return float(binom.pmf(flips, tasks, discordant) @ binom.cdf(gained, flips, 0.5))


def _most_gained(tasks: int, flips: int, allowed: float, confidence: float | None) -> int:
    """The most of the flips that B may have gained while it still seems too much lower; -1 if none."""
    z = None if confidence is None else normal_quantile(confidence)

    def is_lower(gained: int) -> bool:
        if z is None:
            return 100 * (flips - 2 * gained) / tasks > 100 * allowed + 1e-9
        return (flips - 2 * gained) / tasks > allowed and tango_score(
            flips - gained, gained, tasks, -allowed
        ) < -z

    return bisect(range(flips // 2 + 1), False, key=lambda gained: not is_lower(gained)) - 1


def tango_score(a_only: float, b_only: float, tasks: float, difference: float) -> float:
    """The number of standard errors by which B exceeds a hypothetical difference, see `tango`."""
    linear = (2 * tasks - b_only + a_only) * difference - a_only - b_only
    constant = -a_only * difference * (1 - difference)
    of_a = (math.sqrt(max(0.0, linear * linear - 8 * tasks * constant)) - linear) / (4 * tasks)
    variance = tasks * (2 * of_a + difference * (1 - difference))
    off = b_only - a_only - tasks * difference
    return off / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, off)


def smallest_difference(
    standard_error: float, freedom: float = math.inf, alpha: float = ALPHA, power: float = POWER
) -> float:
    """The smallest true difference that shows with `power`, in the unit of its standard error.

    Of so many degrees of freedom: Student's test of means, of which permutation tests have the power. Source: E.
    Miller, "Adding error bars to evals" (2024), section 5, equation 9 solved for the difference, for few tasks with
    the non-central t distribution.
    """
    if math.isinf(freedom):
        return (normal_quantile(1 - alpha / 2) + normal_quantile(power)) * standard_error
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    limit = float(t.isf(alpha / 2, freedom))
    return standard_error * float(
        brentq(lambda off: float(nct.sf(limit, freedom, off)) - power, 0.0, 40 * limit)
    )


def smallest_flipped_difference(
    standard_error: float, groups: int, alpha: float = ALPHA, power: float = POWER
) -> float | None:
    """The smallest true mean of so many normal differences that `sign_flip` shows with `power`; None: it never can.

    On few groups p comes in steps, so that the test has less power than Student's; up to nine it is simulated.
    """
    patterns = 2 ** (min(groups, 60) - 1)  # each with its opposite
    steps = math.floor(alpha * patterns)
    if not steps:
        return None
    if groups > _MOST_SIMULATED:
        return smallest_difference(standard_error, groups - 1, steps / patterns, power)
    return standard_error * _smallest_flipped(groups, steps, power)


@lru_cache(maxsize=32)
def _smallest_flipped(groups: int, steps: int, power: float) -> float:
    """The smallest mean in standard errors at which so many patterns of signs are as extreme as the observed one."""
    import numpy as np

    noise = np.random.default_rng(SEED).standard_normal((4000, groups))
    signs = 1 - 2 * (np.arange(2 ** (groups - 1))[:, None] >> np.arange(groups) & 1)
    low, high = 0.0, 20.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        values = noise + middle / math.sqrt(groups)
        extreme = (
            np.abs(values @ signs.T) >= np.abs(values.sum(axis=1, keepdims=True)) - 1e-9
        ).sum(axis=1)
        low, high = (low, middle) if np.mean(extreme <= steps) >= power else (middle, high)
    return high


def p_text(p: float) -> str:
    """A p-value in a sentence: `p = 0.0123`, or `p < 0.001`."""
    return f"p {p_figure(p)}" if p < _SMALLEST_P else f"p = {p_figure(p)}"


def p_figure(p: float) -> str:
    """A p-value in a table: `0.0123`, or `< 0.001`."""
    return f"< {_SMALLEST_P:g}" if p < _SMALLEST_P else f"{p:.3g}"


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of `values`, one a task; 0 for fewer than two."""
    import numpy as np

    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def normal_quantile(p: float) -> float:
    """The quantile of the standard normal distribution."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


@lru_cache(maxsize=4096)  # many pairs of a leaderboard flip in the same way
def _largest(tasks: int, statistic: float) -> float:
    """The largest probability, over all shares of tasks that flip, of a score statistic at least this large."""
    import numpy as np
    from scipy.stats import binom

    flips = np.arange(tasks + 1)
    tails = np.where(
        flips > 0, np.minimum(1, 2 * binom.cdf(_lesser(flips, statistic), flips, 0.5)), 0
    )
    return max(
        float(weights @ tails[first : first + len(weights)])
        for first, weights in _flip_counts(tasks)
    )


def _lesser(flips: Any, statistic: float) -> Any:
    """The largest count of the lesser side with at least this score statistic, for each number of flips."""
    import numpy as np

    return np.floor((flips - np.sqrt(statistic * flips)) / 2 + 1e-9)


@lru_cache(maxsize=2)
def _flip_counts(tasks: int) -> list[tuple[int, Any]]:
    """Distributions of the number of flipped tasks, each from the first likely count on; and that count.

    Their shares lie so densely that each is at most an eighth of a standard deviation from the next.
    """
    import numpy as np
    from scipy.stats import binom

    found = []
    steps = math.ceil(8 * math.pi * math.sqrt(tasks))
    for share in np.sin(np.linspace(0, np.pi / 2, steps + 1)[1:]) ** 2:
        reach = 8 * math.sqrt(tasks * share * (1 - share)) + 12
        first, last = max(0, int(tasks * share - reach)), min(tasks, int(tasks * share + reach))
        found.append((first, binom.pmf(np.arange(first, last + 1), tasks, share)))
    return found


def _enumerated_tail(values: Any) -> float:
    """The probability that values with random signs have a sum as large, or as small, as theirs is, one-sided.

    In steps of their common unit it is exact. Without one they are rounded to a fine grid, and what the roundings may
    come to together counts as being as large.
    """
    import numpy as np

    sizes, slack = np.abs(values), 0.0
    unit = unit_of(sizes)
    if not unit or sizes.sum() / unit > _CELLS:
        unit, slack = float(sizes.sum()) / _CELLS, math.sqrt(len(values))
    steps = np.rint(values / unit).astype(int)
    chances = np.zeros(int(np.abs(steps).sum()) + 1)  # of each sum of the steps that are positive
    chances[0] = 1.0
    for step in np.abs(steps):
        chances[step:] = (chances[step:] + chances[: len(chances) - step]) / 2 if step else chances
        chances[:step] /= 2
    least = (abs(int(steps.sum())) - slack + len(chances) - 1) / 2
    return float(chances[max(0, math.ceil(least)) :].sum())
