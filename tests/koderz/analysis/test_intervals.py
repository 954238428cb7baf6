"""Intervals of differences: published values, the coverage that they claim, and agreement with the tests."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from koderz.analysis import intervals
from koderz.analysis.inference import interval_of, is_shown, p_of, score_interval
from koderz.analysis.measures import SUCCESS
from koderz.analysis.pairs import Matched, matched

Z = 1.959964


@pytest.mark.parametrize(
    ("a_only", "b_only", "tasks", "confidence", "low", "high"),
    [
        # T. Tango, Statist. Med. 17 (1998), 891-908, section 6.1: 43 of 44 by one lens cleaner, 44 by the other
        (1, 0, 44, 0.90, -0.096, None),
        # M. W. Fagerland, S. Lydersen & P. Laake, Statist. Med. 33 (2014), 2850-2875: airways before and after
        # transplantation (1, 1, 7, 12)
        (7, 1, 21, 0.95, -0.517, -0.026),
        (0, 0, 164, 0.95, -0.0229, 0.0229),  # by hand: z² / (n + z²)
        (0, 5, 5, 0.95, 0.1310, 1.0),  # (n - z²) / (n + z²)
    ],
)
def test_tangos_interval_is_that_of_published_tables(
    a_only: int, b_only: int, tasks: int, confidence: float, low: float, high: float | None
) -> None:
    found = intervals.tango(a_only, b_only, tasks, confidence)

    assert found[0] == pytest.approx(low, abs=5e-4)
    assert high is None or found[1] == pytest.approx(high, abs=5e-4)
    mirrored = intervals.tango(b_only, a_only, tasks, confidence)
    assert (-mirrored[1], -mirrored[0]) == pytest.approx(found)


@pytest.mark.parametrize(("a_only", "b_only", "tasks"), [(12, 2, 50), (16, 6, 161), (40, 20, 160), (0, 3, 8)])
def test_tangos_limits_are_where_his_score_test_just_rejects(a_only: int, b_only: int, tasks: int) -> None:
    """The rate under the hypothesis is found by search here, not by the formula."""
    for limit in intervals.tango(a_only, b_only, tasks):
        rates = np.linspace(max(0.0, -limit) + 1e-9, (1 - limit) / 2 - 1e-9, 400_001)
        alike = (tasks - a_only - b_only) * np.log1p(-2 * rates - limit)
        likelihood = b_only * np.log(rates + limit) + a_only * np.log(rates) + alike
        lost = rates[np.argmax(likelihood)]
        score = (b_only - a_only - tasks * limit) / math.sqrt(tasks * (2 * lost + limit - limit**2))
        assert abs(score) == pytest.approx(Z, abs=1e-3)


@pytest.mark.parametrize(
    ("b", "b_tasks", "a", "a_tasks", "low", "high"),
    [  # Newcombe, Statist. Med. 17 (1998), 873-890, table II, method 10
        (56, 70, 48, 80, 0.0524, 0.3339),
        (9, 10, 3, 10, 0.1705, 0.8090),
        (6, 7, 2, 7, 0.0582, 0.8062),
        (5, 56, 0, 29, -0.0381, 0.1926),
        (0, 10, 0, 20, -0.1611, 0.2775),
        (10, 10, 0, 20, 0.6791, 1.0),
    ],
)
def test_interval_of_two_proportions_is_newcombes(
    b: int, b_tasks: int, a: int, a_tasks: int, low: float, high: float
) -> None:
    assert intervals.newcombe(a, a_tasks, b, b_tasks) == pytest.approx((low, high), abs=5e-5)


def matching(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], *, unpaired: bool = False) -> Matched:
    """Tasks with the outcomes of their samples."""
    of_a = {f"A/{i}" if unpaired else f"T/{i}": list(samples) for i, samples in enumerate(a)}
    return matched(SUCCESS, of_a, {f"T/{i}": list(samples) for i, samples in enumerate(b)})


def parted(a_only: int, b_only: int, tasks: int) -> Matched:
    alike = [[1]] * (tasks - a_only - b_only)
    a, b = [[1]] * a_only + [[0]] * b_only + alike, [[0]] * a_only + [[1]] * b_only + alike
    return matching(a, b)


def told(one: Matched, alpha: float = 0.05) -> tuple[intervals.Interval, bool]:
    """What `compare` says: the interval in points, and whether a difference is shown."""
    shown = is_shown(one, p_of(one), alpha)
    found = interval_of(one, alpha, shown=shown)
    assert found is not None
    return (100 * found[0][0], 100 * found[0][1]), shown


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "gained"), [(5, 15), (2, 10), (20, 20), (0, 5)], ids=str)
@pytest.mark.parametrize("tasks", [5, 20, 164])
def test_paired_intervals_hold_the_difference_as_often_as_they_say(tasks: int, lost: int, gained: int) -> None:
    rng = np.random.default_rng(8)
    draws = rng.multinomial(tasks, [lost / 100, gained / 100, 1 - (lost + gained) / 100], 10_000)

    held = 0
    for (a_only, b_only, _), times in zip(*np.unique(draws, axis=0, return_counts=True), strict=True):
        (low, high), _ = told(parted(int(a_only), int(b_only), tasks))
        held += int(times) * (low <= gained - lost <= high)

    assert held / 10_000 >= 0.94
    assert held / 10_000 <= 0.98 or tasks < 164


@pytest.mark.parametrize("tasks", [(5, 5), (20, 40), (100, 164)], ids=str)
@pytest.mark.parametrize("rates", [(0.5, 0.6), (0.9, 0.9), (0.05, 0.15)], ids=str)
def test_unpaired_intervals_hold_the_difference_as_often_as_they_say(
    tasks: tuple[int, int], rates: tuple[float, float]
) -> None:
    rng = np.random.default_rng(8)
    draws = np.stack([rng.binomial(n, rate, 10_000) for n, rate in zip(tasks, rates, strict=True)], axis=1)

    held = 0
    for (a, b), times in zip(*np.unique(draws, axis=0, return_counts=True), strict=True):
        low, high = intervals.newcombe(int(a), tasks[0], int(b), tasks[1])
        held += int(times) * (low <= rates[1] - rates[0] <= high)

    assert held / 10_000 >= 0.94


@pytest.mark.parametrize(("tasks", "samples"), [(5, 4), (20, 4), (164, 2)])
def test_interval_of_several_samples_has_its_coverage(tasks: int, samples: int) -> None:
    """Tasks of unlike hardness; one in ten is made almost certain by B."""
    rng = np.random.default_rng(8)
    rates = rng.beta(0.4, 0.4, (1_000_000,))
    difference = 10 * float(np.mean(np.maximum(rates, 0.9) - rates))

    held = 0
    for _ in range(1000):
        rate = rng.beta(0.4, 0.4, (tasks, 1))
        better = np.where(rng.random((tasks, 1)) < 0.1, np.maximum(rate, 0.9), rate)
        a, b = rng.random((tasks, samples)) < rate, rng.random((tasks, samples)) < better
        low, high = score_interval(matching(a.tolist(), b.tolist()), 0.95)
        held += 100 * low <= difference <= 100 * high

    assert held >= 930  # 950 but for what a thousand draws leave to chance


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01, 1e-5])
@pytest.mark.parametrize("tasks", [5, 6, 12, 30])
def test_interval_excludes_zero_exactly_where_a_test_rejects(tasks: int, alpha: float) -> None:
    for a_only in range(tasks + 1):
        for b_only in range(tasks + 1 - a_only):
            (low, high), shown = told(parted(a_only, b_only, tasks), alpha)
            assert shown == (not low <= 0 <= high), (a_only, b_only)
            assert low <= 100 * (b_only - a_only) / tasks <= high


@pytest.mark.slow
@pytest.mark.parametrize("unpaired", [False, True])
def test_interval_of_samples_or_other_tasks_agrees_with_its_test(unpaired: bool) -> None:
    rng = np.random.default_rng(8)
    verdicts = set()
    for _ in range(60):
        rates = np.clip(rng.beta(0.5, 0.5, (12, 1)) + [[0.0], [0.3]][rng.integers(2)], 0, 1)
        a, b = rng.random((12, 3)) < rng.beta(0.5, 0.5, (12, 1)), rng.random((12, 3)) < rates
        (low, high), shown = told(matching(a.tolist(), b.tolist(), unpaired=unpaired))
        assert shown == (not low <= 0 <= high)
        verdicts.add(shown)
    assert verdicts == {True, False}


def test_interval_of_few_agreeing_tasks_is_not_certain() -> None:
    for several in ([[True]] * 5, [[True, True]] * 5, [[True, False]] * 5):
        (low, high), _ = told(matching(several, several))
        assert low < -20
        assert high > 20


# Averages of other measures


def test_bootstrap_equals_that_of_scipy() -> None:
    from scipy import stats

    drawn = random.Random(4)
    values = [drawn.lognormvariate(0.0, 0.5) for _ in range(60)]
    other = [drawn.lognormvariate(0.2, 0.5) for _ in range(40)]

    def by_scipy(*sides: Sequence[float], of: str) -> tuple[float, float]:
        def difference(a: NDArray[np.float64], b: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
            return np.asarray(b.mean(axis=axis) - a.mean(axis=axis))

        found = stats.bootstrap(
            tuple(map(np.asarray, sides)),
            np.mean if of == "mean" else difference,
            method="BCa",
            rng=np.random.default_rng(1),
            vectorized=True,
        ).confidence_interval
        return float(found.low), float(found.high)

    assert intervals.bootstrap_mean(values) == pytest.approx(by_scipy(values, of="mean"), abs=0.02)
    assert intervals.bootstrap_difference(values, other) == pytest.approx(
        by_scipy(values, other, of="difference"), abs=0.02
    )
    assert intervals.bootstrap_mean(values) == intervals.bootstrap_mean(values)


def test_bootstrap_needs_enough_tasks() -> None:
    assert intervals.bootstrap_mean([1.0, 2.0] * 9 + [3.0]) is None
    assert intervals.bootstrap_mean([1.0, 2.0] * 10) is not None
    assert intervals.bootstrap_mean([0.0] * 30) is None
    assert intervals.bootstrap_difference([1.0, 2.0] * 30, [1.0] * 19) is None
    assert intervals.bootstrap_difference([1.0, 2.0] * 30, [1.0] * 20) is not None


def test_bootstrap_of_10000_tasks_gives_the_same_interval() -> None:
    low, high = intervals.bootstrap_mean([1.0, 0.0, 0.0, -1.0] * 2500) or (0, 0)

    assert low < 0 < high
    assert high - low == pytest.approx(2 * Z * math.sqrt(0.5 / 10_000), rel=0.1)
