"""The rule by which comparisons stop: what it decides, how many tasks that takes, and what it saves."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest

from koderz_tracker.sequential import Evidence
from koderz_tracker.stopping import (
    OpenDecision,
    PairsDecision,
    StoppingRule,
    decide_pairs,
    limits_of_flips,
    path_of,
    tasks_needed,
)
from tests.tracker.paths import most_evidence, parting


def decided(parts: float, difference: float, tasks: int, paths: int, **how: Any) -> list[PairsDecision]:
    every = (path for block in parting(parts, difference, tasks, paths) for path in block)
    return [decide_pairs(path, **how) for path in islice(every, paths)]


def test_decision_counts_the_tasks_up_to_it() -> None:
    found = decide_pairs([0, 1, 1, 1, 0, 1, 1, 1, 1, 1, -1, -1])

    assert (found.outcome, found.tasks) == ("shown", 10)
    assert found.difference == pytest.approx(0.8)
    assert found.interval[0] > 0
    assert found.e_value == pytest.approx(2**8 / 9)
    assert [point.tasks for point in found.path] == list(range(1, 11))
    assert found.path[-1][1:] == (found.e_value, *found.interval)


def test_decision_without_an_end_says_that_no_task_is_left() -> None:
    found = decide_pairs([0, 1, -1, 0])

    assert (found.outcome, found.tasks) == ("tasks", 4)
    assert found.interval[0] < 0 < found.interval[1]


def test_decision_finds_what_lies_within_the_margin_similar() -> None:
    found = decide_pairs([0] * 100, margin=0.1)

    assert found.outcome == "similar"
    assert -0.1 <= found.interval[0] < 0 < found.interval[1] <= 0.1


def test_decision_stops_where_what_is_left_tells_nothing() -> None:
    found = decide_pairs([1, -1, 0, 0] * 50)

    assert found.outcome == "futile"
    assert 20 <= found.tasks < 200
    assert decide_pairs([1, -1, 0, 0] * 50) == found


def test_decision_of_a_longer_plan_is_not_futile_as_early() -> None:
    start = [1, -1, 0, 0, 1, 0] * 5

    assert decide_pairs(start, planned=5000).outcome == "tasks"
    assert decide_pairs(start, planned=5000).tasks == 30


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"margin": 2.0}])
def test_decision_refuses_settings_out_of_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        decide_pairs([0.5], **wrong)  # type: ignore[arg-type]


def test_decision_refuses_differences_out_of_bounds() -> None:
    with pytest.raises(ValueError, match="not between"):
        decide_pairs([3])


def test_path_is_thinned_and_ends_at_the_end() -> None:
    points = path_of([0.0, 1.0, 0.0] * 400, 0.05)

    assert len(points) == 400
    assert points[-1].tasks == 1200


def test_limits_of_flips_are_those_of_the_evidence() -> None:
    limits = limits_of_flips(0.05, 64)
    for flips in range(1, 64):
        lead = int(limits[flips])
        for tried in range(flips % 2, flips + 1, 2):
            found = Evidence([1.0] * ((flips + tried) // 2) + [-1.0] * ((flips - tried) // 2))
            assert found.excludes(0.0, 0.05) is (tried >= lead)


def outcomes(values: list[tuple[float | None, tuple[float, float] | None]], margin: float | None = None) -> list[Any]:
    trial = OpenDecision(StoppingRule(len(values), margin=margin))
    return [trial.add(value, ends) for value, ends in values]


def test_claim_needs_the_evidence_at_the_worst_that_is_missing() -> None:
    missing, judged = (None, (-1.0, 0.0)), (1.0, None)

    assert outcomes([judged] * 8)[-1] == "shown"
    assert outcomes([missing, *[judged] * 10])[-1] is None
    assert outcomes([missing, *[judged] * 11])[-1] == "shown"


def test_claim_of_one_side_is_not_held_up_by_what_is_missing_of_the_other() -> None:
    """A failed a task that B's outcome is missing of: that can only have spoken for B, and the other way about."""
    assert outcomes([(None, (0.0, 1.0)), *[(-1.0, None)] * 8])[-1] is None
    assert outcomes([(None, (-1.0, 0.0)), *[(-1.0, None)] * 8])[-1] == "shown"


def test_similar_is_claimed_at_the_worst_that_is_missing_on_either_side() -> None:
    same, missing = (0.0, None), (None, (-1.0, 1.0))

    assert "similar" in outcomes([same] * 60, margin=0.1)
    assert "similar" not in outcomes([missing] * 6 + [same] * 60, margin=0.1)
    assert "similar" in outcomes([missing] * 6 + [same] * 400, margin=0.1)


def test_interval_holds_those_of_every_completion_of_what_is_missing() -> None:
    trial, drawn = OpenDecision(StoppingRule(1000, fewest=1000)), random.Random(4)
    every: list[tuple[float | None, tuple[float, float]]] = []
    for _ in range(40):
        value = drawn.choice((-1.0, 0.0, 0.0, 1.0))
        hidden = drawn.random() < 0.2
        ends = (-1.0, 0.0) if drawn.random() < 0.5 else (0.0, 1.0)
        every.append((None, ends) if hidden else (value, (value, value)))
        trial.add(*((None, ends) if hidden else (value, None)))
    low, high = trial.interval
    for _ in range(30):
        found = Evidence(drawn.uniform(*ends) for _, ends in every).interval(0.05)
        assert low <= found[0] < found[1] <= high


def test_tasks_needed_are_as_simulated() -> None:
    half, nine_tenths = tasks_needed(0.2, 0.1)

    assert half
    assert nine_tenths
    every = np.concatenate([*parting(0.2, 0.1, 320, 2000)])
    for tasks, chance in ((half, 0.5), (320, 0.9)):
        found = np.mean([(most_evidence(every[at : at + 500, :tasks]) >= 20).mean() for at in range(0, 2000, 500)])
        assert found == pytest.approx(chance, abs=0.035)  # three standard errors
    assert (half, nine_tenths) == (145, 322)


def test_tasks_needed_are_none_where_none_are_enough() -> None:
    assert tasks_needed(0.2, 0.1, most=200) == [145, None]
    assert tasks_needed(0.2, 0.1, 1e-6, chances=(0.99,), most=200) == [None]


@pytest.mark.slow
def test_decision_costs_two_fifths_of_a_fixed_run_where_the_difference_is_twice_as_large() -> None:
    """155 tasks show 10 points of 20 % that part four times out of five; here the difference is 20 of 25 %."""
    tasks = 194  # that show 10 points where 25 % part (Connor's formula)
    assert statistics.median(each.tasks for each in decided(0.25, 0.2, tasks, 400)) <= 0.4 * tasks


@pytest.mark.slow
def test_decision_costs_three_fifths_of_a_fixed_run_where_nothing_differs() -> None:
    found = decided(0.2, 0.0, 500, 400)

    assert statistics.median(each.tasks for each in found) <= 0.6 * 500
    assert Counter(each.outcome for each in found)["shown"] <= 0.05 * 400


@pytest.mark.slow
def test_futility_costs_five_claims_of_a_hundred_at_most() -> None:
    found = decided(0.2, 0.1, 164, 400)
    (paths,) = parting(0.2, 0.1, 164, 400)
    whole = (most_evidence(paths[:400]) >= 20).sum()

    assert sum(each.outcome == "shown" for each in found) >= whole - 0.05 * 400
