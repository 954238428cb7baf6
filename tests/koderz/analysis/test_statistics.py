"""Statistics, against published values and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koderz.analysis import statistics
from koderz.analysis.intervals import tango


def test_mcnemar_is_that_of_published_tables() -> None:
    # Fagerland, Lydersen & Laake, BMC Med. Res. Methodol. 13 (2013) 91, table 2 (Bentur et al.): exact p = 0.0703
    from scipy import stats

    assert statistics.mcnemar(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert statistics.mcnemar(7, 1) == statistics.mcnemar(1, 7)
    # Agresti, Categorical data analysis, 10.1: 86 and 150 discordant, z^2 = 17.36
    assert statistics.mcnemar(86, 150) == pytest.approx(stats.chi2.sf((abs(86 - 150) - 1) ** 2 / 236, 1), rel=0.1)
    assert statistics.mcnemar(0, 0) == 1.0


def test_score_test_is_that_of_published_tables() -> None:
    # Fagerland, Lydersen & Laake (2013), table 2: the exact unconditional test of the same data
    assert statistics.score_test(1, 7, 21) == statistics.score_test(7, 1, 21) == pytest.approx(0.0353, abs=5e-5)
    assert statistics.score_test(0, 0, 21) == statistics.score_test(3, 3, 21) == 1.0
    assert statistics.score_test(0, 6, 6) == pytest.approx(2 / 2**6)


@pytest.mark.parametrize("tasks", [6, 8, 11, 20, 50, 164])
def test_score_test_holds_its_size_and_is_stronger_than_the_exact_one(tasks: int) -> None:
    shares = [*np.linspace(0.01, 1, 60), 5 / tasks, 8 / tasks]
    for alpha in (0.05, 0.01, 0.002):
        for share in (share for share in shares if share <= 1):
            size = statistics.paired_power(tasks, share, 0.0, alpha)
            assert size <= 1.01 * alpha, share  # between two shares of the search it may be a hundredth more
            if alpha == 0.05:
                power = statistics.paired_power(tasks, share, share / 2)
                assert power >= statistics.paired_power(tasks, share, share / 2, exact=True) - 1e-9


def test_flips_that_are_rejected_are_those_of_small_p_values() -> None:
    for exact in (False, True):
        rejected = statistics.rejected_flips(12, 0.05, exact=exact)
        for flips in range(13):
            for lesser in range(flips // 2 + 1):
                args = lesser, flips - lesser
                p = statistics.mcnemar(*args) if exact else statistics.score_test(*args, 12)
                assert (p <= 0.05) == (lesser <= rejected[flips]), (exact, args)


def test_holm_is_that_of_published_tables() -> None:
    # Holm (1979) as R's p.adjust computes it
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert statistics.holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_lies_between_none_and_bonferroni_and_keeps_the_order(values: list[float]) -> None:
    adjusted = statistics.holm(values)

    for p, q in zip(values, adjusted, strict=True):
        assert p <= q <= min(1.0, len(values) * p) + 1e-12
    by_p = [q for _, q in sorted(zip(values, adjusted, strict=True))]
    assert by_p == sorted(by_p)


def test_fishers_exact_example_of_paired_plants() -> None:
    # Fisher (1935), section 21: Darwin's fifteen pairs of plants; 863 + 863 of 32768 sign flips are as extreme
    eighths = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]

    assert statistics.sign_flip(eighths) == pytest.approx(2 * 863 / 32768, abs=0.008)


def test_exact_test_is_used_on_few_tasks() -> None:
    assert statistics.sign_flip([1.0, 1.0, 1.0]) == pytest.approx(0.25)
    assert statistics.sign_flip([0.5] * 10) == pytest.approx(2 / 1024)
    assert statistics.sign_flip([0.0] * 10) == 1.0
    assert statistics.shuffle_labels([0.0] * 4, [1.0] * 4) == pytest.approx(2 / 70)
    assert statistics.shuffle_labels([1.0], [1.0, 1.0]) == 1.0
    assert statistics.shuffle_labels([], [1.0]) == 1.0
    assert statistics.sign_flip([1.0]) == 1.0


def test_statistics_are_repeatable() -> None:
    values = [0.0, 1.0, 0.0, 1.0, 1.0, -1.0, 0.5] * 9

    assert statistics.sign_flip(values) == statistics.sign_flip(values)
    assert statistics.shuffle_labels(values, values[1:]) == statistics.shuffle_labels(values, values[1:])


def test_probability_of_being_better_is_never_certain_on_few_tasks() -> None:
    assert statistics.probability_better(0, 0) == 0.5
    assert statistics.probability_better(0, 3) == pytest.approx(15 / 16)
    assert statistics.probability_better(5, 20) == pytest.approx(1 - statistics.probability_better(20, 5))


def test_probability_of_the_higher_rate_uses_beta_distributions() -> None:
    draws = np.random.default_rng(1).beta([[9], [5]], [[3], [7]], (2, 200_000))

    assert statistics.probability_higher(8, 10, 4, 10) == pytest.approx((draws[1] > draws[0]).mean(), abs=0.005)
    assert statistics.probability_higher(4, 10, 4, 10) == pytest.approx(0.5)
    assert statistics.probability_higher(0, 1, 1, 1) == pytest.approx(5 / 6, abs=1e-3)


def test_connors_sample_sizes_lead_nearly_back_to_their_differences() -> None:
    # Connor (1987), equation 2: discordant 0.3, difference 0.1, alpha 0.05 two-sided, power 0.8
    needed = (1.959964 * math.sqrt(0.3) + 0.841621 * math.sqrt(0.3 - 0.01)) ** 2 / 0.01

    assert statistics.smallest_paired_difference(math.ceil(needed), 0.3) == pytest.approx(0.1, abs=2e-3)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("tasks", "discordant"), [(10, 0.3), (20, 0.2), (50, 0.1), (164, 0.15), (164, 0.4)])
def test_stated_power_is_the_power_of_the_test(tasks: int, discordant: float, exact: bool) -> None:
    difference = statistics.smallest_paired_difference(tasks, discordant, exact=exact)
    assert difference is not None
    discordant = max(discordant, difference)
    rng = np.random.default_rng(3)
    lost, gained = (discordant - difference) / 2, (discordant + difference) / 2
    draws = rng.multinomial(tasks, [lost, gained, 1 - lost - gained], 4000)
    shown = 0
    for (a, b, _), times in zip(*np.unique(draws, axis=0, return_counts=True), strict=True):
        p = statistics.mcnemar(int(a), int(b)) if exact else statistics.score_test(int(a), int(b), tasks)
        shown += int(times) * (p <= 0.05)

    assert shown / 4000 == pytest.approx(0.8, abs=0.03)
    assert statistics.paired_power(tasks, discordant, difference, exact=exact) >= 0.8


@pytest.mark.parametrize("groups", [6, 7, 8, 12])
def test_stated_power_of_means_is_that_of_the_permutation_test(groups: int) -> None:
    rng = np.random.default_rng(3)
    difference = statistics.smallest_flipped_difference(1 / math.sqrt(groups), groups)
    assert difference is not None
    signs = 1 - 2 * (np.arange(2 ** (groups - 1))[:, None] >> np.arange(groups) & 1)

    values = rng.normal(difference, 1, (2000, groups))
    p_values = (np.abs(values @ signs.T) >= np.abs(values.sum(axis=1, keepdims=True)) - 1e-9).mean(axis=1)

    assert p_values[0] == pytest.approx(statistics.sign_flip(values[0].tolist()))
    assert (p_values <= 0.05).mean() == pytest.approx(0.8, abs=0.03)
    assert statistics.smallest_flipped_difference(1.0, 5) is None
    assert statistics.smallest_flipped_difference(1.0, 5000) == pytest.approx(2.8016, abs=2e-3)


def test_detectable_difference_on_164_tasks_is_about_8_points() -> None:
    assert statistics.smallest_paired_difference(164, 0.15) == pytest.approx(0.083, abs=0.003)
    assert statistics.smallest_paired_difference(5, 0.15) is None
    assert statistics.smallest_paired_difference(0, 0.0) is None
    assert statistics.smallest_paired_difference(6, 0.1) == pytest.approx(0.86, abs=0.005)
    assert statistics.smallest_paired_difference(6, 0.1, alpha=0.01) is None


@pytest.mark.slow
@settings(max_examples=20)
@given(tasks=st.integers(20, 300), discordant=st.floats(0.05, 0.5))
def test_detectable_difference_shrinks_with_more_tasks(tasks: int, discordant: float) -> None:
    few = statistics.smallest_paired_difference(tasks, discordant)
    many = statistics.smallest_paired_difference(2 * tasks, discordant)

    assert few is not None
    assert many is not None
    assert 0 < many < few <= 1


def test_detectable_difference_is_millers() -> None:
    assert statistics.smallest_difference(0.03) == pytest.approx(2.8016 * 0.03, abs=1e-4)


@pytest.mark.slow
def test_permutation_of_10000_tasks_gives_the_same_result() -> None:
    values = [1.0, 0.0, 0.0, -1.0] * 2500

    assert statistics.sign_flip(values) > 0.9


@pytest.mark.parametrize(("tasks", "discordant"), [(10, 0.05), (10, 0.2), (50, 0.1), (50, 0.2)])
@pytest.mark.parametrize("confidence", [None, 0.9])
def test_false_alarms_of_a_gate_are_those_of_equal_rates(
    tasks: int, discordant: float, confidence: float | None
) -> None:
    rng = np.random.default_rng(4)
    draws = rng.multinomial(tasks, [discordant / 2, discordant / 2, 1 - discordant], 20_000)
    shut = 0
    for (lost, gained, _), times in zip(*np.unique(draws, axis=0, return_counts=True), strict=True):
        drop = (lost - gained) / tasks
        if confidence is not None:
            drop = -tango(int(lost), int(gained), tasks, 2 * confidence - 1)[1]
        shut += int(times) * (drop > 0.05 + 1e-9)

    assert statistics.drop_alarm(tasks, discordant, 0.05, confidence) == pytest.approx(shut / 20_000, abs=0.012)
    if confidence is not None:
        assert shut / 20_000 <= 1 - confidence


def test_p_values_are_never_written_as_nought() -> None:
    assert statistics.p_text(0.0123456) == "p = 0.0123"
    assert statistics.p_text(0.00049) == statistics.p_text(1e-300) == "p < 0.001"
    assert (statistics.p_figure(0.2), statistics.p_figure(0.0)) == ("0.2", "< 0.001")
