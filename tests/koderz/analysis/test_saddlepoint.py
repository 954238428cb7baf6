"""Tails of permutation tests and of the bootstrap, against enumeration, draws and known distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from koderz.analysis import intervals, statistics
from koderz.analysis.statistics import flipped_tail, resampled_quantiles, shuffled_tail, unit_of

rng = np.random.default_rng(5)
SKEWED = np.exp(1.5 * rng.standard_normal(18)) * np.where(rng.random(18) < 0.85, 1, -1)
KINDS = {
    "in thirds": rng.integers(1, 4, 18) / 3 * np.where(rng.random(18) < 0.8, 1, -1),
    "any": rng.normal(0.5, 1, 18),
    "skewed": SKEWED,
    "alike but for one": np.r_[np.ones(15), -1, -1, 0.37],
}


@pytest.mark.parametrize("kind", KINDS)
def test_sign_flips_of_18_tasks_have_the_p_of_all_patterns(kind: str) -> None:
    values = KINDS[kind]
    signs = 1 - 2 * (np.arange(2**17)[:, None] >> np.arange(18) & 1)
    exact = float(np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9))

    found = statistics.sign_flip([*values.tolist(), 0.0, 0.0])

    assert exact * (1 - 1e-9) <= found <= 1.05 * exact


def test_zeros_leave_a_test_exact() -> None:
    assert statistics.sign_flip([1.0] * 8 + [0.0] * 5000) == 2 / 2**8


@pytest.mark.parametrize("size", [20, 60, 100])
def test_tail_of_sign_flips_is_that_of_enumeration(size: int) -> None:
    sizes = rng.integers(1, 3, size) / 4
    for least in np.linspace(0.1, 0.95, 6) * sizes.sum():
        total = math.floor(float(sizes.sum() - least) / 0.5) * 0.5  # what is flipped
        counts = np.polynomial.polynomial.polypow([1, 1], int((sizes == 0.25).sum()))
        twos = np.polynomial.polynomial.polypow([1, 0, 1], int((sizes == 0.5).sum()))
        chances = np.convolve(counts, twos) / 2.0**size
        exact = float(chances[: int(total / 0.5) + 1].sum())
        at = float(sizes.sum()) - total
        assert flipped_tail(sizes, at) == pytest.approx(exact, rel=0.08)


@pytest.mark.parametrize(("passed", "of_a", "tasks"), [(30, 40, 100), (90, 30, 130), (400, 500, 1000)])
def test_tail_of_permutations_of_rates_is_hypergeometric(passed: int, of_a: int, tasks: int) -> None:
    values = np.r_[np.ones(passed), np.zeros(tasks - passed)]
    known = stats.hypergeom(tasks, passed, of_a)
    for more in (2, 5, 9):
        least = math.ceil(known.mean()) + more
        assert shuffled_tail(values, of_a, least) == pytest.approx(known.sf(least - 1), rel=0.08)


def test_tail_of_permutations_of_amounts_is_that_of_draws() -> None:
    values = np.exp(rng.standard_normal(120))
    sums = rng.permuted(np.tile(values, (40_000, 1)), axis=1)[:, :50].sum(axis=1)
    for chance in (0.2, 0.05, 0.01):
        assert shuffled_tail(values, 50, float(np.quantile(sums, 1 - chance))) == pytest.approx(chance, rel=0.12)


def test_quantiles_of_resamples_are_those_of_draws() -> None:
    values = np.exp(rng.standard_normal(40))
    means = values[rng.integers(40, size=(100_000, 40))].mean(axis=1)
    chances = [0.001, 0.025, 0.4, 0.5, 0.6, 0.975, 0.999]

    assert resampled_quantiles([values], chances) == pytest.approx(np.quantile(means, chances), rel=0.01)
    assert resampled_quantiles([values], [0.0, 1.0]) == [values.min(), values.max()]


def test_p_is_as_small_as_it_is_on_many_tasks() -> None:
    """Among the 28 pairs of 8 models on the 14,042 questions of MMLU no claim was possible: p ended at 0.002."""
    scores = (rng.standard_normal(14_042) + 0.06).tolist()
    samples = (rng.binomial(2, 0.53, 14_042) / 2 - rng.binomial(2, 0.5, 14_042) / 2).tolist()

    for differences in (scores, samples):
        z = abs(np.mean(differences)) / statistics.standard_error(differences)
        assert statistics.sign_flip(differences) == pytest.approx(2 * stats.norm.sf(z), rel=0.3)
        assert 28 * statistics.sign_flip(differences) <= 0.001


def test_p_of_different_tasks_is_as_small_as_it_is() -> None:
    assert statistics.shuffle_labels([1.0] * 30, [0.0] * 30) == pytest.approx(2 / math.comb(60, 30), rel=0.15)
    a, b = rng.standard_normal(1000), rng.standard_normal(1500) + 0.3
    assert statistics.shuffle_labels(a.tolist(), b.tolist()) == pytest.approx(stats.ttest_ind(a, b).pvalue, rel=0.3)


def test_corrected_limits_of_a_bootstrap_lie_beyond_those_of_draws() -> None:
    values = rng.standard_normal(14_042)
    limits = [intervals.bootstrap_mean(values.tolist(), 1 - 0.05 / count) for count in (1, 28, 435)]

    for found, count in zip(limits, (1, 28, 435), strict=True):
        half = stats.norm.isf(0.025 / count) / math.sqrt(14_042)
        assert found is not None
        assert (found[1] - found[0]) / 2 == pytest.approx(half, rel=0.03)


@pytest.mark.parametrize(
    ("sizes", "unit"), [([2, 4], 2), ([2, 3], 1), ([1 / 3, 0.5], 1 / 6), ([1, math.pi], 0)], ids=str
)
def test_unit_of_sizes(sizes: list[float], unit: float) -> None:
    assert unit_of(np.array(sizes)) == pytest.approx(unit)
