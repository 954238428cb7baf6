"""What chance alone could have made of results: tests, probabilities and power.

Intervals are in `koderz.analysis.intervals`; rates, their intervals and pass@k in `tracker.rates`. Everything here
is seeded: the same results give the same figures. Functions that take one value a task are clustered by task, since
the samples of a task resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

ALPHA = 0.05
POWER = 0.8
FEWEST_TASKS = 6  # with five, even five flips the same way have p = 0.0625
SEED = 20260131
AT_ONCE = 1_000_000  # values that are permuted or resampled at once: 8 MB
_QUANTILES = 2000  # at which a distribution is looked at


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


def probability_better(a_only: float, b_only: float) -> float:
    """Probability that B passes more tasks than A, given the tasks that only one of them passed.

    The Bayesian sign test with a uniform prior, so 0.5 where nothing flipped. Source: A. Benavoli, G. Corani,
    J. Demsar, M. Zaffalon, "Time for a change: a tutorial for comparing multiple classifiers through Bayesian
    analysis", JMLR 18 (2017), 1-36, section 4.2, without a region of practical equivalence.
    """
    from scipy.stats import beta

    return float(beta.sf(0.5, b_only + 1, a_only + 1))


def probability_higher(a: float, a_tasks: float, b: float, b_tasks: float) -> float:
    """Probability that B's rate is above A's, given so many passes of so many different tasks; 0.5 for none.

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


def draws_of(size: int) -> int:
    """How often so many values are drawn for one figure: ten thousand tasks take a second."""
    return max(999, min(9999, 10_000_000 // size))


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
        n_resamples=draws_of(size),
        batch=max(1, AT_ONCE // size),
        rng=np.random.default_rng(SEED),
    )
    return float(found.pvalue)
