"""Success rates and means with their intervals, pass@k and pass^k; needs the standard library alone.

Values come in groups that are independent of each other: the samples of each task, or those of each cluster of tasks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence

WILSON = "Wilson"
CLUSTERED_WILSON = "Wilson, clustered by task"
WILSON_OF_ONE = "Wilson, of this one task"
BETA = "Gaffke's for bounded means, by beta quantiles"
LOG_STUDENT = "Student's t of tasks, of the logarithm"
HEAVY_TAIL = f"{LOG_STUDENT}, its upper limit Cox's for lognormal amounts, since few tasks have most of the sum"
STUDENT = "Student's t of tasks"
SHARE = (0.0, 1.0)
PASS_AT = (1, 2, 5, 10, 25, 50, 100)
# below, Student's t is too wide to say anything, and the series below too far off
_FEWEST_TASKS = 4
_Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution
# standard deviation of logarithms from which a tail is heavy, and the most that they may be skew downwards
_HEAVY = 0.8
_UNSEEN = 0.85  # see `_bounded`
_MOST_WEIGHT = 1e6  # of a beta distribution: beyond, its quantiles lie within 0.001 of its mean

Interval = tuple[float, float]


def success_interval(passes: Collection[Sequence[bool]]) -> tuple[Interval, str] | None:
    """The 95 % interval of a success rate in per cent, and its method; None if nothing was judged.

    `passes` are outcomes in groups that are independent of each other: the samples of each task, or those of each
    cluster of tasks. With one outcome a group it is Wilson's interval. Outcomes of one group resemble each other, so
    with several it is Wilson's for their `effective_size`. Of a single group it says nothing of others: it is Wilson's
    of the samples, for the rate of that task alone.
    """
    n, successes = sum(map(len, passes)), sum(map(sum, passes))
    if not n:
        return None
    if len(passes) in (1, n):
        low, high = wilson(successes, n)
        return (100 * low, 100 * high), WILSON if len(passes) == n else WILSON_OF_ONE
    rate = successes / n
    of_mean = _variance_of_mean(passes, rate)
    size = effective_size(rate * (1 - rate), of_mean, len(passes), n, freedom=freedom_of(passes))
    low, high = wilson(rate * size, size)
    return (100 * low, 100 * high), CLUSTERED_WILSON


def rate_interval(values: Collection[Sequence[float]]) -> tuple[Interval, str] | None:
    """`success_interval` of zeros and ones, as fractions."""
    found = success_interval([[bool(value) for value in group] for group in values])
    return ((found[0][0] / 100, found[0][1] / 100), found[1]) if found else None


def mean_interval(
    values: Collection[Sequence[float]], bounds: Interval | None = None, *, together: int = 1
) -> tuple[Interval, str] | None:
    """The 95 % interval of the mean of a measure, in its unit, and its method; None if there are too few values.

    It is one of so many that hold `together` with 95 %, so that each has a smaller error (Bonferroni's inequality).

    `values` come in groups that are independent of each other, as those of `success_interval` do. Between `bounds`,
    such as those of a `SHARE`, the interval is `_bounded`, and lies inside them. Without bounds it takes four groups
    that are not all alike, and is Student's t; of values that are never below 0, such as seconds, costs and counts, of
    the mean's logarithm by the delta method, so that it doesn't go below 0 either, and up to `_heavy_limit` where that
    is higher. Source of the variance: W. G. Cochran, "Sampling techniques" (3rd ed., 1977), section 9A.1, for clusters
    of unlike sizes.
    """
    if not sum(map(len, values)):
        return None
    if bounds and all(bounds[0] <= value <= bounds[1] for group in values for value in group):
        return bounded_interval(values, bounds, together=together), BETA
    mean = math.fsum(map(math.fsum, values)) / sum(map(len, values))
    z = _Z95 if together == 1 else statistics.NormalDist().inv_cdf(1 - 0.025 / together)
    half = math.sqrt(_variance_of_mean(values, mean)) * student(z, max(1, len(values) - 1))
    if not half or len(values) < _FEWEST_TASKS:
        return None
    if min(map(min, filter(None, values))) < 0:
        return (mean - half, mean + half), STUDENT
    factor = math.exp(half / mean)
    if (
        beyond := _heavy_limit([statistics.fmean(group) for group in values if group], z)
    ) > mean * factor:
        return (mean / factor, beyond), HEAVY_TAIL
    return (mean / factor, mean * factor), LOG_STUDENT


def _heavy_limit(amounts: Sequence[float], z: float) -> float:
    """Cox's upper limit of the mean of lognormal amounts; 0 where these don't look like such with a heavy tail.

    Few amounts that have most of the sum are mostly missing in a sample, whose variance then says too little. Source:
    U. Olsson, "Confidence intervals for the mean of a log-normal distribution", J. Statist. Educ. 13 (2005), section 3.
    """
    if min(amounts) <= 0:
        return 0.0
    logs = [math.log(amount) for amount in amounts]
    centre, variance, n = statistics.fmean(logs), statistics.variance(logs), len(logs)
    # Amounts that pile up towards 0, as exponential ones do, have logarithms with a long lower tail.
    skewness = (
        statistics.fmean((log - centre) ** 3 for log in logs) / statistics.pvariance(logs) ** 1.5
        if variance
        else 0
    )
    if variance < _HEAVY**2 or skewness < -_HEAVY:
        return 0.0
    error = math.sqrt(variance / n + variance**2 / (2 * (n - 1)))
    return math.exp(centre + variance / 2 + student(z, n - 1) * error)


def bounded_interval(
    values: Collection[Sequence[float]], bounds: Interval, alpha: float = 0.05, *, together: int = 1
) -> Interval:
    """The interval of a mean of values between bounds, in groups as those of `mean_interval`, by `_bounded`."""
    low, high = bounds
    of_share = _bounded(
        [[(value - low) / (high - low) for value in group] for group in values], alpha, together
    )
    return low + (high - low) * of_share[0], low + (high - low) * of_share[1]


def _bounded(
    shares: Collection[Sequence[float]], alpha: float = 0.05, together: int = 1
) -> Interval:
    """The interval of a mean of values from 0 to 1, whatever their distribution.

    It misses the mean in `alpha` of cases; where so many are looked at `together`, any of them does in `alpha`.

    What is worst and hasn't been seen yet is added as one more group, mostly at the bound that the limit looks to: the
    limit is a quantile of the mean with Dirichlet(1, …, 1) weights, here of the beta distribution that has its first
    two moments. Of zeros and ones alone, one a group, and `_UNSEEN` = 1 that is exactly Clopper & Pearson's interval;
    0.5 is about the mid-p one. 0.85 is the least that held 93 % in every case that `scripts/check_statistics`
    simulates; of several intervals, whose tails are smaller, each takes 1. Sources: N. Gaffke, "Three test statistics
    for a nonparametric one-sided hypothesis on the mean of a nonnegative variable", Math. Methods Statist. 14 (2005),
    451-467; M. Phan, P. Thomas & E. Learned-Miller, "Towards practical mean bounds for small samples", ICML 2021,
    section 5.
    """
    sizes = [len(group) for group in shares if group]
    sums = [math.fsum(group) for group in shares if group]
    if len(sizes) == 1:  # one task alone: its samples are what varies
        sums, sizes = [*next(filter(None, shares))], [1] * sizes[0]
    total, size = math.fsum(sums), math.fsum(sizes) / len(sizes)
    unseen, tail = (_UNSEEN if together == 1 else 1.0), alpha / 2 / together
    low = 0.0 if total == 0 else _limit(sums, sizes, size * (1 - unseen), size, tail)
    high = 1.0 if total == sum(sizes) else _limit(sums, sizes, size * unseen, size, 1 - tail)
    return min(low, total / sum(sizes)), max(high, total / sum(sizes))


def _limit(
    sums: Sequence[float], sizes: Sequence[float], unseen: float, size: float, tail: float
) -> float:
    """A quantile of the mean under random weights, with one more group of that `size` and the sum `unseen`."""
    n = math.fsum(sizes) + size
    mean = (math.fsum(sums) + unseen) / n
    # of the added group that is 1; it counts as that much of a group of ones, the rest of zeros
    share = unseen / size
    off = math.fsum((total - mean * of) ** 2 for total, of in zip(sums, sizes, strict=True))
    off += size * size * (share * (1 - mean) ** 2 + (1 - share) * mean**2)
    variance = off / (n * n) * (len(sums) + 1) / (len(sums) + 2)
    weight = min(mean * (1 - mean) / variance - 1, _MOST_WEIGHT) if variance else _MOST_WEIGHT
    return beta_quantile(tail, mean * weight, (1 - mean) * weight)


def _variance_of_mean(values: Collection[Sequence[float]], mean: float) -> float:
    """The variance of the mean, from how far the groups lie apart."""
    apart = [sum(task) - mean * len(task) for task in values]
    # infinite for absurd records, where ** 2 would raise an error
    off = sum(each * each for each in apart)
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
    # At 0 and 1 one limit is the rate itself; the sum above would miss it by a rounding error.
    low = 0.0 if successes <= 0 else max(0.0, centre - half)
    return low, 1.0 if successes >= n else min(1.0, centre + half)


def freedom_of(values: Collection[Sequence[float]]) -> int:
    """The degrees of freedom with which groups of zeros and ones estimate how far they lie apart.

    Near 0 and 1 the few groups that have the rarer outcome alone tell it: it is their number, and at least 1, at most
    the groups less one. With the latter throughout, intervals of rates near 0 and 1 hold too little, by up to ten
    points (`scripts/check_statistics`).
    """
    rarer = min(sum(any(group) for group in values), sum(not all(group) for group in values))
    return max(1, min(len(values) - 1, rarer))


def effective_size(
    variance: float,
    of_mean: float,
    clusters: int,
    observations: int,
    z: float = _Z95,
    freedom: int | None = None,
) -> float:
    """The number of independent observations that would be as informative as these, which come in clusters.

    `variance` is that of one observation, `of_mean` the one that their mean has by how far the clusters lie apart, and
    `freedom` the degrees of freedom of that, which are the clusters less one where not given. The result is never less
    than the clusters nor more than the observations; where all are the same, which a few clusters easily are, it is
    the clusters. Sources: J. N. K. Rao & A. J. Scott, "A simple method for the analysis of clustered binary data",
    Biometrics 48 (1992), 577-585; the part of Student's t, for few clusters: E. L. Korn & B. I. Graubard, "Confidence
    intervals for proportions with small expected number of positive counts estimated from survey data", Survey
    Methodology 24 (1998), 193-201.
    """
    if clusters < 2 or not variance:
        return clusters
    if not of_mean:
        return observations
    size = variance / of_mean * (z / student(z, freedom or clusters - 1)) ** 2
    return min(float(observations), max(float(clusters), size))


def is_share(passed: int, of: int, share: float) -> bool:
    """Whether at least this share of samples passed. It is as exact as two digits are: two of three are 0.67."""
    return passed >= (of if share >= 1 else (share - 0.005) * of)


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
    return {
        f"pass@{k}": statistics.fmean(
            pass_at_k(len(outcomes), sum(outcomes), k) for outcomes in passes
        )
        for k in usual_ks(passes)
    }


def pass_at_k_interval(passes: Collection[Sequence[bool]], k: int) -> tuple[Interval, str]:
    """The 95 % interval of pass@k over tasks, as fractions, and its method; each task has at least k samples.

    Where k is 1 and tasks have equally many samples it is that of the success rate. Else each task's estimate is one
    value of a bounded mean. Of one task alone it is the chance that one of k samples passes at the limits of its rate.
    """
    if len(passes) == 1 or (k == 1 and len({*map(len, passes)}) == 1):
        found = success_interval(passes)
        assert found, "each task has a sample"
        (low, high), method = found
        return (1 - (1 - low / 100) ** k, 1 - (1 - high / 100) ** k), method
    return _bounded([[pass_at_k(len(outcomes), sum(outcomes), k)] for outcomes in passes]), BETA


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of k samples pass (pass^k), estimated without bias from c passes among n samples.

    It is C(c, k) / C(n, k). Source: S. Yao et al., "tau-bench: a benchmark for tool-agent-user interaction in
    real-world domains" (2024), section 3. Raises ValueError for k > n.
    """
    return 1.0 - pass_at_k(n, n - c, k)


def pass_hat_k_interval(passes: Collection[Sequence[bool]], k: int) -> tuple[Interval, str]:
    """The 95 % interval of pass^k over tasks, as fractions, and its method; each task has at least k samples.

    All of k samples pass unless one of them fails, so it is the complement of failures' `pass_at_k_interval`.
    """
    (low, high), method = pass_at_k_interval(
        [[not passed for passed in outcomes] for outcomes in passes], k
    )
    return (1 - high, 1 - low), method


def usual_ks(passes: Collection[Sequence[bool]]) -> list[int]:
    """The usual k that every task has samples for."""
    fewest = min(map(len, passes), default=0)
    return [k for k in PASS_AT if k <= fewest]


def beta_quantile(p: float, a: float, b: float) -> float:
    """The quantile of the beta distribution, to 12 digits after the point."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _beta_share(middle, a, b) < p else (low, middle)
    return (low + high) / 2


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function.

    Source: its continued fraction, NIST Handbook of Mathematical Functions (2010), 8.17.22, evaluated by Lentz' method
    as modified by I. J. Thompson & A. R. Barnett, J. Comput. Phys. 64 (1986), 490-509.
    """
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    factor = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    numerator = 1.0
    value = denominator = 1 / (1 - (a + b) * x / (a + 1))
    for m in range(1, 100_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            denominator = 1 / (1 + term * denominator)
            numerator = 1 + term / numerator
            value *= denominator * numerator
        if abs(denominator * numerator - 1) < 1e-13:
            break
    return factor * value / a


def student(z: float, freedom: int) -> float:
    """The quantile of Student's t where the normal one is z, at 1.96 too small by 0.02 at 3 degrees of freedom.

    Source: M. Abramowitz & I. A. Stegun, "Handbook of mathematical functions" (1964), 26.7.5. Its terms grow with z, so
    that further out it is 26.7.1, through the beta distribution.
    """
    if z > 2:
        share = beta_quantile(math.erfc(z / math.sqrt(2)), freedom / 2, 0.5)
        return math.sqrt(freedom * (1 / share - 1)) if share else math.inf
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
