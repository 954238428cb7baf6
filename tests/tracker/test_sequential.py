"""Evidence that may be looked at after every task: its closed form, its errors, and the intervals that belong to it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy.special import betaln

from koderz_tracker.sequential import ConfidenceSequence, Evidence, SettledOrder, rate_along, sequence
from tests.tracker.paths import most_evidence, parting, sampled


def evidence(a_only: int, b_only: int, tasks: int) -> Evidence:
    found = Evidence()
    for value, count in ((-1.0, a_only), (1.0, b_only), (0.0, tasks - a_only - b_only)):
        found.add(value, count)
    return found


@pytest.mark.parametrize("a_only", [0, 1, 3, 10, 50, 200, 1000])
@pytest.mark.parametrize("b_only", [0, 1, 8, 11, 60, 260, 1050])
def test_evidence_equals_its_closed_form(a_only: int, b_only: int) -> None:
    flips = a_only + b_only
    closed = flips * math.log(2) + betaln(1 + a_only, 1 + b_only)

    assert evidence(a_only, b_only, flips + 20).log_e() == pytest.approx(closed, abs=1e-6)


@pytest.mark.parametrize(
    ("a_only", "b_only", "tasks", "interval"),
    [(1, 11, 84, (0.5, 26.2)), (0, 8, 84, (0.5, 22.2)), (10, 14, 164, (-7.1, 12.4))],
)
def test_interval_is_as_published_in_points(
    a_only: int, b_only: int, tasks: int, interval: tuple[float, float]
) -> None:
    found = evidence(a_only, b_only, tasks).interval(0.05)

    assert [100 * limit for limit in found] == pytest.approx(interval, abs=0.06)


def test_evidence_of_nothing_and_of_one_side_alone() -> None:
    assert ConfidenceSequence(0.05).p_value == 1
    assert (evidence(0, 3, 5).parted, evidence(2, 0, 5).parted) == ((0, 3), (2, 0))


@pytest.mark.parametrize(("flips", "shown"), [(7, False), (8, True)])
def test_evidence_takes_eight_tasks_that_part_the_same_way(flips: int, *, shown: bool) -> None:
    assert evidence(0, flips, 100).excludes(0.0, 0.05) is shown


def test_interval_excludes_no_difference_exactly_where_it_is_shown() -> None:
    drawn = random.Random(5)
    for _ in range(300):
        found = Evidence(drawn.choice((-1.0, -0.5, 0.0, 0.25, 1.0)) for _ in range(drawn.randrange(1, 60)))
        low, high = found.interval(0.2)
        assert (low > 0 or high < 0) is found.excludes(0.0, 0.2)
        for limit in (low, high):
            if abs(limit) < 1:
                assert found.log_e(limit) == pytest.approx(math.log(5), abs=1e-6)


def test_interval_of_values_that_are_all_at_a_bound_ends_there() -> None:
    assert Evidence([1.0] * 30).interval(0.05)[1] == 1.0
    assert Evidence([-1.0] * 30).interval(0.05)[0] == -1.0
    assert Evidence().interval(0.05) == (-1.0, 1.0)


def test_evidence_refuses_values_out_of_bounds() -> None:
    with pytest.raises(ValueError, match="not between"):
        Evidence([1.5])


def test_confidence_sequence_never_widens_and_p_never_rises() -> None:
    drawn, running = random.Random(3), ConfidenceSequence(0.05)
    before = (running.low, running.high, running.p_value)
    for _ in range(200):
        running.add(float(drawn.random() < 0.3) - float(drawn.random() < 0.1))
        now = (running.low, running.high, running.p_value)
        assert now[0] >= before[0]
        assert now[1] <= before[1]
        assert now[2] <= before[2]
        before = now
    assert (running.low > 0) is (running.p_value <= 0.05) is True


def test_interval_of_weighted_values_ends_where_the_evidence_does() -> None:
    drawn = random.Random(7)
    for _ in range(50):
        found = Evidence()
        for _ in range(drawn.randrange(5, 40)):
            found.add(drawn.choice((-1.0, -0.5, 0.0, 0.25, 1.0)), weight=drawn.choice((0.04, 0.5, 1.0)))
        low, high = found.interval(0.2)
        assert low < found.mean < high
        for limit in (low, high):
            if abs(limit) < 1:
                assert found.log_e(limit) == pytest.approx(math.log(5), abs=1e-6)
        assert found.copy().interval(0.2) == pytest.approx((low, high))


def test_sequence_of_clusters_is_of_the_mean_over_tasks() -> None:
    """30 tasks alone pass, and six clusters of 20 fail: a rate of 20 %, where 30 of 36 clusters pass."""
    order = [f"{n}/{m}" for n in range(36) for m in range(20 if n % 6 == 0 else 1)]
    passes = {task: [task.split("/")[0] not in ("0", "6", "12", "18", "24", "30")] for task in order}
    clusters = {task: task.split("/")[0] for task in order}
    interval, method = rate_along(SettledOrder(order, 20), passes, clusters)

    assert interval
    assert interval[0] < 20 < interval[1] < 83
    assert "in 36 clusters" in method
    wider, _ = rate_along(SettledOrder(order, 40), passes, clusters)  # of a plan with a larger one yet to come
    assert wider
    assert wider[0] < interval[0] < interval[1] < wider[1]


def test_evidence_refuses_weights_out_of_bounds() -> None:
    with pytest.raises(ValueError, match="weight"):
        Evidence([0.5], [1.5])


def test_sequence_maps_values_from_their_bounds() -> None:
    shares = [0.2, 0.9, 0.5, 0.7, 0.6] * 8
    low, high = sequence(shares) or (0, 0)

    assert 0 < low < 0.58 < high < 1
    assert sequence([10 * share - 3 for share in shares], (-3.0, 7.0)) == pytest.approx((10 * low - 3, 10 * high - 3))
    assert sequence([]) is None
    assert sequence([2.0]) is None


def test_simulated_evidence_is_that_of_one_path_at_a_time() -> None:
    (paths,) = parting(0.3, 0.1, 60, 1000)
    for mean in (0.0, 0.2):
        most = most_evidence(paths[:20], mean)
        for path, found in zip(paths[:20], most, strict=True):
            one, largest = Evidence(), 1.0
            for value in path:
                one.add(float(value))
                largest = max(largest, math.exp(one.log_e(mean)))
            assert found == pytest.approx(largest, rel=1e-9)


def share_above(paths: object, mean: float) -> float:
    """Per cent of paths that ever have evidence of 20 against a mean."""
    return 100 * float(np.mean([most_evidence(each, mean) >= 20 for each in paths]))  # type: ignore[attr-defined]


@pytest.mark.parametrize("parts", [0.05, 0.4])
def test_claims_are_rarely_false_where_nothing_differs(parts: float) -> None:
    assert share_above(parting(parts, 0.0, 164, 2000), 0.0) <= 5


LENGTHS = pytest.mark.parametrize(("tasks", "paths"), [(164, 20_000), (1000, 5_000)], ids=["164", "1000"])
"""Long paths take most of the time: of 5,000 of them, one in 15 that is above its evidence is told from one in 20."""


@pytest.mark.slow
@LENGTHS
@pytest.mark.parametrize("parts", [0.01, 0.05, 0.1, 0.2, 0.4])
def test_claims_are_false_in_one_of_twenty_at_most(parts: float, tasks: int, paths: int) -> None:
    assert share_above(parting(parts, 0.0, tasks, paths), 0.0) <= 5


@pytest.mark.slow
@LENGTHS
@pytest.mark.parametrize("shared", [0.0, 0.7])
@pytest.mark.parametrize("samples", [1, 4])
def test_claims_are_rarely_false_with_samples_and_shared_difficulty(
    samples: int, shared: float, tasks: int, paths: int
) -> None:
    assert share_above(sampled(0.6, 0.0, samples, shared, tasks, paths), 0.0) <= 5


@pytest.mark.slow
@LENGTHS
@pytest.mark.parametrize(("parts", "difference"), [(0.01, 0.005), (0.05, 0.03), (0.1, 0.05), (0.2, 0.1), (0.4, 0.2)])
def test_interval_misses_in_one_of_twenty_at_most(parts: float, difference: float, tasks: int, paths: int) -> None:
    assert share_above(parting(parts, difference, tasks, paths), difference) <= 5


@pytest.mark.slow
@LENGTHS
@pytest.mark.parametrize("shared", [0.0, 0.7])
@pytest.mark.parametrize(("samples", "rate", "difference"), [(1, 0.8, 0.05), (4, 0.5, 0.1), (4, 0.9, 0.08)])
def test_interval_rarely_misses_with_samples_and_shared_difficulty(
    samples: int, rate: float, difference: float, shared: float, tasks: int, paths: int
) -> None:
    assert share_above(sampled(rate, difference, samples, shared, tasks, paths), difference) <= 5
