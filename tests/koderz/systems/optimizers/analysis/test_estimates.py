"""Searches are drawn as items are: what is said of an optimizer holds for other seeds, or is said of prompts."""

from __future__ import annotations

import pytest

from koderz.analysis import statistics
from koderz.systems.optimizers.analysis.gains import BETTER_PROMPTS, FEWEST_SEARCHES, crossed, gain_of
from koderz.systems.optimizers.commands import SEEDS
from tests.koderz.analysis.draws import false_claims, said

ITEMS = [f"item {n}" for n in range(60)]


def better(seeds: int) -> list[dict[str, float]]:
    """Prompts that are right where the initial one isn't, but for the first few items."""
    return [{item: float(n >= 5 + seed) for n, item in enumerate(ITEMS)} for seed in range(seeds)]


WORSE = {item: float(n < 5) for n, item in enumerate(ITEMS)}


def test_searches_below_five_tell_of_prompts_alone() -> None:
    assert SEEDS == FEWEST_SEARCHES == 5
    for seeds, about, words in (
        (1, "prompts", BETTER_PROMPTS),
        (4, "prompts", BETTER_PROMPTS),
        (5, "optimizer", "helps"),
    ):
        found = gain_of([WORSE], better(seeds), is_fixed=True)
        assert found
        assert (found.about, found.prompts, said(found)) == (about, seeds, words)
    few = gain_of(better(4), better(5))
    assert few
    assert few.about == "prompts"  # both sides are searches


def test_searches_that_found_nothing_gain_exactly_nothing() -> None:
    found = gain_of([WORSE], [WORSE] * 5, is_fixed=True)

    assert found
    assert (found.gain, found.interval, found.p, said(found)) == (0.0, (0.0, 0.0), 1.0, "no evidence")


def test_searches_widen_the_interval_by_how_far_they_lie_apart() -> None:
    alike = crossed([[0.0] * 40], [[1.0, 0.0] * 20] * 5, [[n] for n in range(40)])
    apart = crossed([[0.0] * 40], [[1.0, 0.0] * 20] * 3 + [[1.0] * 40, [0.0] * 40], [[n] for n in range(40)])

    assert alike.difference == apart.difference == 0.5
    assert alike.error == pytest.approx(statistics.standard_error([1.0, 0.0] * 20))
    assert apart.error > 2 * alike.error
    assert (alike.freedom, apart.freedom < 6) == (39, True)


def test_searches_are_tested_by_clusters_of_their_items() -> None:
    clusters = {item: str(n // 10) for n, item in enumerate(ITEMS)}
    scores = [{item: float((n // 10 + seed) % 3 > 0) for n, item in enumerate(ITEMS)} for seed in range(5)]
    base = {item: float(n // 10 % 2) for n, item in enumerate(ITEMS)}
    alone, grouped = (gain_of([base], scores, of, is_fixed=True) for of in (None, clusters))

    assert alone
    assert grouped
    assert (alone.clusters, grouped.clusters) == (None, 6)
    assert (grouped.interval_method or "").endswith("in 6 clusters")
    assert grouped.p > 3 * alone.p
    one = gain_of([base], scores, dict.fromkeys(ITEMS, "text"), is_fixed=True)
    assert one
    assert (one.interval, one.interval_method, one.p) == (None, "none: all 60 items are of one cluster", 1.0)
    assert said(one) == "no evidence"


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "spread", "unchanged"), [(5, 0.05, 0.0), (5, 0.1, 0.5), (10, 0.05, 0.0)])
def test_searches_of_equal_optimizers_claim_little(seeds: int, spread: float, unchanged: float) -> None:
    assert max(false_claims(1000, seeds=seeds, spread=spread, unchanged=unchanged)) <= 0.06
