"""What chance alone could have made of results: intervals, tests and power.

Rates, Wilson intervals and pass@k are in `tracker.summary`. Everything here is seeded: the same results
give the same figures. Functions that take one value a task are clustered by task, since the samples of a
task resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracker.rates import wilson

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALPHA = 0.05
POWER = 0.8
FEWEST_TASKS = 6  # with five, even five flips the same way have p = 0.0625
SEED = 20260131
_AT_ONCE = 1_000_000  # values that are resampled at once: 8 MB
_IN_ALL = 10_000_000  # values drawn for one figure: what keeps ten thousand tasks at a second

Interval = tuple[float, float]


def mcnemar(a_only: int, b_only: int) -> float:
    """Two-sided exact p-value of McNemar's test, from the pairs that only A and only B passed; 1 where none did.

    Sources: Q. McNemar, "Note on the sampling error of the difference between correlated proportions or
    percentages", Psychometrika 12 (1947), 153-157; its exact form: F. Mosteller, Biometrics 8 (1952), 220-226.
    """
    from scipy.stats import binomtest

    flips = a_only + b_only
    return float(binomtest(b_only, flips, 0.5).pvalue) if flips else 1.0


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided p-value that differences, one a task, have mean 0: each task's sign is as likely the other one.

    1 for fewer than two tasks; exact for up to 13, from random flips beyond. Source: R. A. Fisher, "The design
    of experiments" (1935), section 21.
    """
    if len(differences) < 2 or not any(differences):
        return 1.0
    return _permuted((differences,), "samples")


def shuffle_labels(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p-value that two sets of tasks, one value a task, have the same mean: a permutation test.

    Source: E. J. G. Pitman, "Significance tests which may be applied to samples from any populations",
    J. R. Stat. Soc. Suppl. 4 (1937), 119-130.
    """
    if min(len(a), len(b)) < 2 or len({*a, *b}) == 1:
        return 1.0
    return _permuted((a, b), "independent")


def bootstrap_mean(values: Sequence[float], confidence: float = 1 - ALPHA) -> Interval | None:
    """Interval of the mean of `values`, one a task, so clustered by task; None for fewer than two tasks.

    Percentile bootstrap. Sources: B. Efron, "Bootstrap methods: another look at the jackknife", Ann. Statist. 7
    (1979), 1-26; clusters: A. C. Davison & D. V. Hinkley, "Bootstrap methods and their application" (1997), 3.8.
    """
    if len(values) < 2:
        return None
    return _interval(_means(values), confidence)


def bootstrap_difference(a: Sequence[float], b: Sequence[float], confidence: float = 1 - ALPHA) -> Interval | None:
    """Interval of mean(b) - mean(a) over different tasks, one value a task; None below two tasks a side.

    Source: as `bootstrap_mean`, each side resampled on its own (Davison & Hinkley, 3.2).
    """
    if min(len(a), len(b)) < 2:
        return None
    return _interval(_means(b, SEED + 1) - _means(a), confidence)


def binary_difference(differences: Sequence[float], confidence: float = 1 - ALPHA) -> Interval | None:
    """Interval of the mean of paired differences that are each -1, 0 or 1, as fractions.

    The paired bootstrap; where all differences are equal, which would leave it no width, the adjusted
    Wald interval of D. G. Bonett & R. M. Price, "Adjusted Wald confidence interval for a difference of
    binomial proportions based on paired data", J. Educ. Behav. Stat. 37 (2012), 479-488, equation 5.
    """
    if len(set(differences)) > 1:
        return bootstrap_mean(differences, confidence)
    if not differences:
        return None
    n = len(differences)
    gained = (sum(d > 0 for d in differences) + 1) / (n + 2)
    lost = (sum(d < 0 for d in differences) + 1) / (n + 2)
    half = normal_quantile((1 + confidence) / 2) * math.sqrt((gained + lost - (gained - lost) ** 2) / (n + 2))
    return max(-1.0, gained - lost - half), min(1.0, gained - lost + half)


def newcombe(a: int, a_tasks: int, b: int, b_tasks: int, confidence: float = 1 - ALPHA) -> Interval:
    """Interval of b/b_tasks - a/a_tasks for different tasks, as fractions; it keeps a width where all agree.

    Source: R. G. Newcombe, "Interval estimation for the difference between independent proportions: comparison
    of eleven methods", Statist. Med. 17 (1998), 873-890, method 10.
    """
    z = normal_quantile((1 + confidence) / 2)
    (a_low, a_high), (b_low, b_high) = wilson(a, a_tasks, z), wilson(b, b_tasks, z)
    a_rate, b_rate = a / a_tasks, b / b_tasks
    below = math.hypot(b_rate - b_low, a_high - a_rate)
    above = math.hypot(b_high - b_rate, a_rate - a_low)
    return b_rate - a_rate - below, b_rate - a_rate + above


def probability_better(a_only: int, b_only: int) -> float:
    """Probability that B passes more tasks than A, given the tasks that only one of them passed.

    The Bayesian sign test with a uniform prior, so 0.5 where nothing flipped. Source: A. Benavoli, G. Corani,
    J. Demsar, M. Zaffalon, "Time for a change: a tutorial for comparing multiple classifiers through Bayesian
    analysis", JMLR 18 (2017), 1-36, section 4.2, without a region of practical equivalence.
    """
    from scipy.stats import beta

    return float(beta.sf(0.5, b_only + 1, a_only + 1))


def share_better(differences: Sequence[float], other: Sequence[float] | None = None) -> float | None:
    """Share of bootstrap resamples in which B is better; None below `FEWEST_TASKS`, where it would be too sure.

    `differences` are B's less A's, one a task; with `other`, B's and A's values on different tasks.
    """
    if min(len(differences), len(differences if other is None else other)) < FEWEST_TASKS:
        return None
    means = _means(differences) if other is None else _means(differences, SEED + 1) - _means(other)
    return float((means > 0).mean() + (means == 0).mean() / 2)


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
    tasks: int, discordant: float, alpha: float = ALPHA, power: float = POWER
) -> float | None:
    """The smallest true difference, as a fraction, that McNemar's test on so many tasks shows with `power`.

    `discordant` is the share of tasks on which the two differ. None where not even a difference of 1 would show.
    Source: R. J. Connor, "Sample size for testing differences in proportions for the paired-sample design",
    Biometrics 43 (1987), 207-211, equation 2, solved for the difference; but no less than the few flips, all
    the same way, that the exact test needs.
    """
    from scipy.optimize import brentq

    flips = next(k for k in range(1, 2000) if 2 * 0.5**k <= alpha)
    if not tasks or flips > tasks:
        return None
    z_alpha, z_beta = normal_quantile(1 - alpha / 2), normal_quantile(power)

    def lacking(difference: float) -> float:
        differing = max(discordant, difference)
        needed = z_alpha * math.sqrt(differing) + z_beta * math.sqrt(max(0.0, differing - difference**2))
        return needed / difference - math.sqrt(tasks)

    if lacking(1.0) > 0:
        return None
    return float(max(flips / tasks, brentq(lacking, 1e-9, 1.0)))


def smallest_difference(standard_error: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """The smallest true difference that shows with `power`, in the unit of its standard error.

    Source: E. Miller, "Adding error bars to evals" (2024), section 5, equation 9 solved for the difference.
    """
    return (normal_quantile(1 - alpha / 2) + normal_quantile(power)) * standard_error


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of `values`, one a task; 0 for fewer than two."""
    import numpy as np

    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def normal_quantile(p: float) -> float:
    """Of the standard normal distribution."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


def _permuted(data: tuple[Sequence[float], ...], kind: str) -> float:
    import numpy as np
    from scipy.stats import permutation_test

    def statistic(x: Any, y: Any = None, *, axis: int) -> Any:
        return np.mean(x, axis=axis) - (0.0 if y is None else np.mean(y, axis=axis))

    size = sum(map(len, data))
    found = permutation_test(
        tuple(np.asarray(values, dtype=float) for values in data),
        statistic,
        permutation_type=kind,
        vectorized=True,
        n_resamples=_draws(size),
        batch=max(1, _AT_ONCE // size),
        rng=np.random.default_rng(SEED),
    )
    return float(found.pvalue)


def _means(values: Sequence[float], seed: int = SEED) -> NDArray[np.float64]:
    """The means of resamples of `values`."""
    import numpy as np
    from scipy.stats import bootstrap

    found = bootstrap(
        (np.asarray(values, dtype=float),),
        np.mean,
        method="percentile",
        n_resamples=_draws(len(values)),
        batch=max(1, _AT_ONCE // len(values)),
        rng=np.random.default_rng(seed),
    )
    return np.asarray(found.bootstrap_distribution, dtype=np.float64)


def _interval(means: NDArray[np.float64], confidence: float) -> Interval:
    import numpy as np

    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _draws(size: int) -> int:
    return max(999, min(9999, _IN_ALL // size))
