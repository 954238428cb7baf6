"""Intervals and tests of clustered tasks hold what they say, by simulation."""

from __future__ import annotations

from statistics import fmean

import pytest

from koderz.analysis.inference import interval_of, is_shown, p_of
from koderz.analysis.measures import SUCCESS
from koderz.analysis.pairs import matched
from koderz.analysis.statistics import ALPHA
from koderz_tracker.rates import success_interval
from koderz_tracker.results import interval_in
from tests.koderz.analysis.draws import passes_in_clusters

pytestmark = pytest.mark.slow


def coverage_of_rates(draws: int, *, rate: float, clusters: int = 25, size: int = 12, uneven: bool = False) -> float:
    """How often the interval of a rate holds it, as a fraction."""
    held = []
    for a, _, of in passes_in_clusters(draws, rate=rate, clusters=clusters, size=size, uneven=uneven):
        interval, _ = interval_in(a, of, success_interval)
        assert interval
        held.append(interval[0] <= 100 * rate <= interval[1])
    return fmean(held)


def false_differences(draws: int, *, rate: float, clusters: int = 25, size: int = 12, uneven: bool = False) -> float:
    """How often two equal arms are told apart, as a fraction; the interval excludes 0 exactly there."""
    found = []
    for a, b, of in passes_in_clusters(draws, rate=rate, clusters=clusters, size=size, uneven=uneven):
        pairs = matched(SUCCESS, a, b, of)
        shown = is_shown(pairs, p_of(pairs), ALPHA)
        (low, high), _ = interval_of(pairs, ALPHA, shown=shown) or ((-1.0, 1.0), "")
        assert (low > 0 or high < 0) == shown
        found.append(shown)
    return fmean(found)


@pytest.mark.parametrize(("rate", "uneven"), [(0.5, False), (0.5, True), (0.8, False)])
def test_clusters_leave_a_rate_within_its_interval(rate: float, uneven: bool) -> None:
    assert coverage_of_rates(2000, rate=rate, uneven=uneven) >= 0.93


@pytest.mark.parametrize(("rate", "uneven"), [(0.5, False), (0.7, True)])
def test_clusters_of_equal_arms_are_told_apart_in_six_of_a_hundred(rate: float, uneven: bool) -> None:
    assert false_differences(300, rate=rate, uneven=uneven) <= 0.06
