"""Success rates: their intervals and pass@k. What is here needs the standard library alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence

WILSON = "Wilson"
CLUSTERED_WILSON = "Wilson, clustered by task"
STUDENT = "Student's t of tasks"
PASS_AT = (1, 2, 5, 10, 25, 50, 100)
_FEWEST_TASKS = 4  # below, Student's t is too wide to say anything, and the series below too far off
_Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


def success_interval(passes: Collection[Sequence[bool]]) -> tuple[tuple[float, float], str] | None:
    """The 95 % interval of a success rate in per cent, and its method; None where nothing was judged.

    `passes` are the outcomes of each task's samples. With one sample a task it is Wilson's interval. Samples of
    one task resemble each other, so with several it is Wilson's for their `effective_size`.
    """
    n, successes = sum(map(len, passes)), sum(map(sum, passes))
    if not n:
        return None
    if len(passes) == n:
        low, high = wilson(successes, n)
        return (100 * low, 100 * high), WILSON
    rate = successes / n
    size = effective_size(rate * (1 - rate), _variance_of_mean(passes, rate), len(passes), n)
    low, high = wilson(rate * size, size)
    return (100 * low, 100 * high), CLUSTERED_WILSON


def mean_interval(
    values: Collection[Sequence[float]], *, may_be_rate: bool = True
) -> tuple[tuple[float, float], str] | None:
    """The 95 % interval of the mean of a measure, in its unit, and its method; None where too little is known.

    `values` are those of each task's samples, which are clustered by task. Of zeros and ones alone it is
    `success_interval` as fractions, where they may be a rate; else Student's, which takes four tasks that are not all
    alike. Source: W. G. Cochran, "Sampling techniques" (3rd ed., 1977), section 9A.1, for clusters of unlike sizes.
    """
    if may_be_rate and all(value in (0, 1) for task in values for value in task):
        found = success_interval([[bool(value) for value in task] for task in values])
        return ((found[0][0] / 100, found[0][1] / 100), found[1]) if found else None
    mean = math.fsum(map(math.fsum, values)) / sum(map(len, values))
    half = math.sqrt(_variance_of_mean(values, mean)) * _student(_Z95, max(1, len(values) - 1))
    return ((mean - half, mean + half), STUDENT) if half and len(values) >= _FEWEST_TASKS else None


def _variance_of_mean(values: Collection[Sequence[float]], mean: float) -> float:
    """By how far the tasks lie apart."""
    off = sum((sum(task) - mean * len(task)) ** 2 for task in values)
    return off / sum(map(len, values)) ** 2 * len(values) / max(1, len(values) - 1)


def wilson(successes: float, n: float, z: float = _Z95) -> tuple[float, float]:
    """The score interval for a proportion, as fractions; (0, 1) for n = 0.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22 (1927), 209-212.
    """
    if not n:
        return 0.0, 1.0
    p, zz = successes / n, z * z
    centre = (p + zz / (2 * n)) / (1 + zz / n)
    half = z * math.sqrt(max(0.0, p * (1 - p)) / n + zz / (4 * n * n)) / (1 + zz / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def effective_size(variance: float, of_mean: float, clusters: int, observations: int, z: float = _Z95) -> float:
    """How many independent observations would tell as much as these, which come in clusters.

    `variance` is that of one observation, `of_mean` the one that their mean has by how far the clusters lie apart.
    The result is never less than the clusters nor more than the observations; where all are the same, which a few
    clusters easily are, it is the clusters. Sources: J. N. K. Rao & A. J. Scott, "A simple method for the analysis
    of clustered binary data", Biometrics 48 (1992), 577-585; the part of Student's t, for few clusters: E. L. Korn &
    B. I. Graubard, "Confidence intervals for proportions with small expected number of positive counts estimated
    from survey data", Survey Methodology 24 (1998), 193-201.
    """
    if clusters < 2 or not variance:
        return clusters
    if not of_mean:
        return observations
    size = variance / of_mean * (z / _student(z, clusters - 1)) ** 2
    return min(float(observations), max(float(clusters), size))


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that one of k samples passes, estimated without bias from c passes among n samples.

    Source: Chen et al., "Evaluating large language models trained on code" (2021), equation 1, in the
    product form that doesn't overflow. Raises ValueError for k > n.
    """
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} samples, not {n}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_at_k_of(passes: Collection[Sequence[bool]]) -> dict[str, float]:
    """`{"pass@1": …}` over tasks, as fractions, for each usual k that every task has samples for."""
    fewest = min(map(len, passes), default=0)
    return {
        f"pass@{k}": statistics.fmean(pass_at_k(len(outcomes), sum(outcomes), k) for outcomes in passes)
        for k in PASS_AT
        if k <= fewest
    }


def _student(z: float, freedom: int) -> float:
    """The quantile of Student's t where the normal one is z, too small by 0.02 at 3 degrees of freedom.

    Source: M. Abramowitz & I. A. Stegun, "Handbook of mathematical functions" (1964), 26.7.5.
    """
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
