"""Difficulty across runs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from koderz.analysis.blocks import Table
from koderz.analysis.difficulty import difficulty, difficulty_blocks, flakiness, flakiness_of
from koderz.analysis.measures import measure_named
from koderz.analysis.pairs import sides_of
from koderz.errors import KoderzError
from tests.koderz.analysis import builders


def test_difficulty_lists_the_hardest_first_with_its_solvers(tmp_path: Path) -> None:
    small = builders.run(tmp_path, [True, False, False], "a.json", model="small")
    large = builders.run(tmp_path, [True, True, False], "b.json", model="large")

    found = difficulty([*sides_of(small), *sides_of(large)])

    assert [(p.problem_id, p.success_rate) for p in found] == [("T/2", 0.0), ("T/1", 50.0), ("T/0", 100.0)]
    assert (found[1].solved_by, found[1].unsolved_by) == (["large"], ["small"])
    assert found[0].interval == pytest.approx((0.0, 65.76), abs=0.01)  # Wilson for 0 of 2
    assert found[0].flakiness is None


def test_flakiness_is_disagreement_within_an_arm(tmp_path: Path) -> None:
    drawn = builders.run(tmp_path, {"T/0": [True, False], "T/1": [True, True]}, "a.json")
    other = builders.run(tmp_path, {"T/1": [False, False]}, "b.json")

    found = {problem.problem_id: problem for problem in difficulty([*sides_of(drawn), *sides_of(other)])}

    assert found["T/0"].flakiness == 2.0
    # Clopper & Pearson's limits of 1 of 2 are 1.26 and 98.74 %
    assert found["T/0"].flakiness_interval == pytest.approx((0.0497, 1.0), abs=1e-4)
    assert (found["T/1"].flakiness, found["T/1"].success_rate) == (0.0, 50.0)


@pytest.mark.parametrize("tries", [2, 3, 4, 10])
@pytest.mark.parametrize("chance", [0.5, 0.1])
def test_flakiness_is_unbiased_however_often_a_task_is_tried(chance: float, tries: int) -> None:
    of_all = [
        (chance ** sum(outcomes) * (1 - chance) ** (tries - sum(outcomes)), flakiness(outcomes))
        for outcomes in itertools.product([True, False], repeat=tries)
    ]

    mean = sum(weight * value for weight, value in of_all)

    assert mean == pytest.approx(4 * chance * (1 - chance))


def test_flakiness_of_samples_that_agree_is_none() -> None:
    assert flakiness([True, True]) == flakiness([False] * 3) == flakiness([True]) == 0.0


def test_flakiness_weighs_arms_by_their_samples() -> None:
    coin, sure = [True, False] * 10, [True, True]

    found = flakiness_of([coin, sure, [True]])

    assert found is not None
    assert found[0] == pytest.approx(19 / 20 * flakiness(coin))
    assert found[1][0] > 0.7, "two samples that agree say little"
    assert flakiness_of([[True]]) is None


@pytest.mark.parametrize("samples", [(2,), (4,), (10,), (2, 2), (3, 3, 3), (2, 12)], ids=str)
def test_flakiness_has_an_interval_that_holds_it(samples: tuple[int, ...]) -> None:
    weights = [(size - 1) / sum(each - 1 for each in samples) for size in samples]
    limits = {}
    for passed in itertools.product(*(range(size + 1) for size in samples)):
        arms = [[True] * count + [False] * (size - count) for count, size in zip(passed, samples, strict=True)]
        found = flakiness_of(arms)
        assert found is not None
        limits[passed] = found[1]
    for chances in itertools.product((0.02, 0.1, 0.3, 0.5), repeat=len(samples)):
        truth = sum(weight * 4 * p * (1 - p) for weight, p in zip(weights, chances, strict=True))
        held = 0.0
        for passed, (low, high) in limits.items():
            chance = math.prod(
                math.comb(size, count) * p**count * (1 - p) ** (size - count)
                for size, count, p in zip(samples, passed, chances, strict=True)
            )
            held += chance * (low - 1e-9 <= truth <= high + 1e-9)
        assert held >= 0.95, chances


def test_difficulty_without_results_is_told(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="no results yet"):
        difficulty(sides_of(builders.run(tmp_path, [])))


def test_difficulty_by_a_measure_follows_its_direction(tmp_path: Path) -> None:
    values = {"T/0": 2.0, "T/1": 9.0, "T/2": None}
    rows = [builders.row(task, True, metrics={} if value is None else {"s": value}) for task, value in values.items()]
    run = builders.run(tmp_path, [True] * 3, results=rows, measures=[{"name": "s", "direction": "lower", "unit": "s"}])
    by = measure_named("s", [run])

    found = difficulty(sides_of(run), by)

    assert [(problem.problem_id, problem.mean) for problem in found] == [("T/1", 9.0), ("T/0", 2.0), ("T/2", None)]
    table = next(iter(difficulty_blocks(found, measure=by)))
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows] == ["9.00 s", "2.00 s", ""]


def test_difficulty_has_bounds_beside_a_rate_with_faults(tmp_path: Path) -> None:
    fault = {"experiment_id": "exp_0123456789abcdef", "problem_id": "T/0", "solver": "zero-shot", "reason": "gone"}
    whole = builders.run(tmp_path, [True, False], "a.json")
    faulted = builders.run(tmp_path, {"T/1": [True]}, "b.json", faults=[fault])

    found = {each.problem_id: each for each in difficulty([*sides_of(whole), *sides_of(faulted)])}

    assert (found["T/0"].success_rate, found["T/0"].faults, found["T/0"].success_rate_bounds) == (
        100.0,
        1,
        (50.0, 100.0),
    )
    assert (found["T/1"].faults, found["T/1"].success_rate_bounds) == (0, None)
    (table, _) = difficulty_blocks([found["T/0"], found["T/1"]])
    assert isinstance(table, Table)
    assert table.header[-1] == "Faults failed to passed"
    assert [row[-1] for row in table.rows] == ["50.0% to 100.0%", ""]
    (table, _) = difficulty_blocks([found["T/1"]])
    assert isinstance(table, Table)
    assert "Faults failed to passed" not in table.header
