"""Comparison: what is claimed, what isn't, and what is said about how."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

import koderz
from koderz.analysis.blocks import Table
from koderz.analysis.compare import last_comparable
from koderz.analysis.comparison import between, comparison_blocks
from koderz.analysis.leaderboard import leaderboard, leaderboard_blocks, rank_sets, tiers_of
from koderz.analysis.pairs import Side, sides_of
from koderz.analysis.runs import Run
from koderz.errors import KoderzError
from tests.koderz.analysis import builders


def compared(folder: Path, a: builders.Outcomes, b: builders.Outcomes) -> koderz.Comparison:
    return koderz.compare(builders.run(folder, a, "a.json"), builders.run(folder, b, "b.json", run_id=builders.OTHER))


def test_single_samples_are_tested_by_mcnemar(tmp_path: Path) -> None:
    found = compared(tmp_path, [True] * 11 + [False] * 9, [False] + [True] * 17 + [False] * 2)

    assert (found.pairs, found.a_only, found.b_only, found.both, found.neither) == (20, 1, 7, 10, 2)
    assert found.mcnemar_p == pytest.approx(0.0703, abs=5e-5)
    assert found.p_value == pytest.approx(0.0414, abs=5e-5)
    assert found.method == "McNemar's score test, exact for any share of flips, paired by task"
    assert found.difference == pytest.approx(30.0)
    assert found.interval is not None
    assert found.interval[0] < 30 < found.interval[1]
    assert found.lost == ["T/0"]
    assert found.gained == [f"T/{i}" for i in range(11, 18)]
    assert found.significant
    assert found.paired
    exact = koderz.compare(tmp_path / "a.json", tmp_path / "b.json", exact=True)
    assert (exact.p_value, exact.significant) == (found.mcnemar_p, False)
    assert exact.method == "McNemar's exact test, paired by task"
    assert exact.interval_method == "Tango's score interval, cut at 0 to agree with the test"
    assert exact.interval
    assert exact.interval[0] == 0 < found.interval[0]


def test_comparison_is_repeatable_and_antisymmetric(tmp_path: Path) -> None:
    drawn = random.Random(1)
    a, b = [drawn.random() < 0.5 for _ in range(60)], [drawn.random() < 0.8 for _ in range(60)]
    once, again, turned = compared(tmp_path, a, b), compared(tmp_path, a, b), compared(tmp_path, b, a)

    assert (once.interval, once.p_value, once.measures) == (again.interval, again.p_value, again.measures)
    assert turned.difference == pytest.approx(-(once.difference or 0))
    assert turned.p_value == once.p_value
    assert once.significant
    assert "B is better" in once.verdict
    assert "B is worse" in turned.verdict


def test_measure_other_than_success_stands_in_the_first_row(tmp_path: Path) -> None:
    a, b = builders.run(tmp_path, [True] * 20, "a.json"), builders.run(tmp_path, [True] * 20, "b.json", cost=0.02)
    found = koderz.compare(a, b, measure="cost")
    (table, *_) = (block for block in comparison_blocks(found) if isinstance(block, Table))
    assert table.rows[0][:4] == ["Avg cost", "$0.01000", "$0.02000", "+$0.01000"]
    assert "no results" not in str(table.rows)
    assert "SIMULATED" not in str([*comparison_blocks(found)])


def test_samples_are_told_of_by_each_number_that_both_sides_have(tmp_path: Path) -> None:
    a = {f"T/{number}": [True, number % 2 == 0, False] for number in range(10)}
    b = {f"T/{number}": [True, True, number % 2 == 0] for number in range(10)}
    found = compared(tmp_path, a, b)

    (table, *_) = (block for block in comparison_blocks(found) if isinstance(block, Table))
    rows = {row[0]: row[1:3] for row in table.rows if row[0].startswith("pass")}
    assert rows["pass@2"] == ["83.3%", "100.0%"]
    assert [cell.split(" (")[0] for cell in rows["pass^2"]] == ["16.7%", "66.7%"]
    assert rows.keys() == {"pass@2", "pass^2"}
    of_cost = koderz.compare(tmp_path / "a.json", tmp_path / "b.json", measure="cost")
    assert "pass@2" not in str([*comparison_blocks(of_cost)])


def test_measure_that_is_not_tested_is_named_with_the_reason(tmp_path: Path) -> None:
    found = compared(tmp_path, [True, False] * 10, [True, False] * 10)
    untested = replace(found.measures["cost"], method="none: too few", p_holm=None, interval_holm_method=None)
    texts = str([*comparison_blocks(replace(found, measures={"cost": untested}))])
    assert "No claim on cost: too few." in texts
    assert "p of the other measures" not in texts


@pytest.mark.parametrize(
    ("size", "said"), [(9.96, "about 10.0 points"), (10.4, "about 10 points"), (10.6, "about 11 points")]
)
def test_difference_that_could_be_detected_is_rounded(tmp_path: Path, size: float, said: str) -> None:
    found = replace(compared(tmp_path, [True, False] * 10, [True, False] * 10), smallest_difference=size)
    assert f"With 20 tasks only a difference of {said} could be detected." in str([*comparison_blocks(found)])


def test_comparison_of_a_run_with_itself_shows_no_difference(tmp_path: Path) -> None:
    found = compared(tmp_path, [True, False] * 10, [True, False] * 10)

    assert (found.difference, found.p_value, found.probability_better) == (0.0, 1.0, 0.5)
    assert found.interval is not None
    assert found.interval[0] < 0 < found.interval[1]
    assert found.verdict == "No significant difference (p = 1)."


@pytest.mark.parametrize("samples", [1, 5])
def test_comparison_on_three_tasks_claims_nothing(tmp_path: Path, samples: int) -> None:
    tasks = ["T/0", "T/1", "T/2"]
    a, b = {task: [False] * samples for task in tasks}, {task: [True] * samples for task in tasks}

    found = koderz.compare(builders.run(tmp_path, a, "a.json"), builders.run(tmp_path, b, "b.json"), alpha=0.5)

    assert not found.significant
    assert found.smallest_difference is None or found.smallest_difference > 0
    assert any("too few" in note for note in found.notes)


def test_samples_are_clustered_by_task_and_that_is_told(tmp_path: Path) -> None:
    a = {f"T/{i}": [True, False, False] for i in range(12)}
    b = {f"T/{i}": [True, True, i % 2 == 0] for i in range(12)}

    found = compared(tmp_path, a, b)

    assert found.mcnemar_p is None
    assert "clustered by task" in found.method
    assert found.p_value == pytest.approx(2 / 2**12)
    assert found.difference == pytest.approx(50.0)
    assert any("several samples" in note for note in found.notes)


def test_different_tasks_are_compared_unpaired_and_that_is_said(tmp_path: Path) -> None:
    a = {f"A/{i}": [i % 2 == 0] for i in range(30)}
    b = {f"B/{i}": [True] for i in range(30)}

    found = compared(tmp_path, a, b)

    assert (found.paired, found.pairs, found.mcnemar_p) == (False, 0, None)
    assert found.difference == pytest.approx(50.0)
    assert found.significant
    assert any("no task in common" in note for note in found.notes)


def test_unshared_tasks_are_left_out_and_counted(tmp_path: Path) -> None:
    found = compared(tmp_path, {f"T/{i}": [True] for i in range(10)}, {f"T/{i}": [False] for i in range(3, 12)})

    assert (found.pairs, found.difference) == (7, -100.0)
    assert any(note.startswith("Rates and differences are over the 7 tasks that both") for note in found.notes)
    assert any(note.endswith("left out: 3 others of A's, 2 of B's.") for note in found.notes)


def test_rates_are_over_compared_tasks_so_that_they_subtract(tmp_path: Path) -> None:
    a = {f"T/{i}": [i % 2 == 0] * (1 + i % 3) for i in range(10)}
    b = {f"T/{i}": [True, i % 5 > 0] for i in range(3, 12)}

    found = compared(tmp_path, a, b)

    assert (found.a_compared.tasks, found.a_compared.other_tasks) == (7, 3)
    assert (found.b_compared.experiments, found.b_compared.other_tasks) == (14, 2)
    assert found.difference is not None
    assert found.a_compared.success_rate == pytest.approx(300 / 7)
    assert found.b_compared.success_rate == pytest.approx(1300 / 14)
    assert found.difference == pytest.approx(1300 / 14 - 300 / 7)
    (table,) = (block for block in comparison_blocks(found) if isinstance(block, Table) and "B - A" in block.header)
    assert list(table.rows[0][1:4]) == ["42.9% (7 tasks)", "92.9% (13/14)", "+50.0 points"]
    assert list(table.rows[1]) == ["On all its tasks", "52.6% (10/19)", "88.9% (16/18)", "", "", ""]


def test_zero_on_both_sides_takes_no_row(tmp_path: Path) -> None:
    runs = [builders.run(tmp_path, [True], f"{name}.json", cost=0.0) for name in "ab"]

    rows = [
        row[0] for block in comparison_blocks(koderz.compare(*runs)) if isinstance(block, Table) for row in block.rows
    ]

    assert rows == ["Success rate", "Avg iterations"]
    dearer = builders.run(tmp_path, [True], "dearer.json", cost=0.02)
    assert "Avg cost" in str([*comparison_blocks(koderz.compare(runs[0], dearer))])


def test_intervals_of_several_arms_hold_together(tmp_path: Path) -> None:
    a, b = ([number % 3 > side for number in range(24)] for side in (0, 1))
    told = "each of 97.5%, so that those of all 2 arms hold with 95%."
    assert told not in str([*comparison_blocks(compared(tmp_path, a, b))])
    runs = (builders.write(tmp_path / f"{len(each)}.json", builders.comparative(each, a)) for each in (a, b[:23]))
    assert told in str([*comparison_blocks(koderz.compare(*runs))])


@pytest.mark.parametrize(("a", "b"), [([], [True]), ([True], []), ([], [])])
def test_comparison_without_results_is_refused(tmp_path: Path, a: list[bool], b: list[bool]) -> None:
    found = compared(tmp_path, a, b)

    assert (found.p_value, found.difference, found.significant) == (None, None, False)
    assert "nothing to compare" in found.verdict
    assert any("has no results" in note for note in found.notes)


def test_comparative_run_alone_compares_its_arms(tmp_path: Path) -> None:
    path = builders.write(tmp_path / "c.json", builders.comparative([False] * 8, [True] * 8))

    found = koderz.compare(path)

    assert (found.a.arm, found.b.arm, found.b_only) == ("zero-shot", "iterative", 8)
    assert found.mcnemar_p == pytest.approx(2 / 256)


def test_comparative_runs_are_compared_arm_by_arm(tmp_path: Path) -> None:
    a = builders.write(tmp_path / "a.json", builders.comparative([False] * 8, [True] * 8))
    b = builders.write(tmp_path / "b.json", builders.comparative([True] * 8, [True] * 8))

    found = koderz.compare(a, b)

    assert {solver: one.difference for solver, one in found.arms.items()} == {"zero-shot": 100.0, "iterative": 0.0}
    assert found.b.arm == "iterative"
    assert koderz.compare(a, b, arm="zero_shot").difference == 100.0
    with pytest.raises(KoderzError, match="has no arm best; it has zero-shot, iterative"):
        koderz.compare(a, b, arm="best")


def test_single_run_with_one_arm_asks_for_a_second(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="name a second run"):
        koderz.compare(builders.run(tmp_path, [True]))


def test_differences_in_settings_and_environment_are_listed(tmp_path: Path) -> None:
    a = builders.run(tmp_path, [True], "a.json", environment={"models": {"m": {"digest": "1"}}, "koderz": "0.1"})
    b = builders.run(
        tmp_path, [True], "b.json", environment={"models": {"m": {"digest": "2"}}, "koderz": "0.1"}, model="n"
    )

    found = koderz.compare(a, b)

    assert found.settings == {"local_model": ("m", "n")}
    assert found.environment == {"models.m.digest": ("1", "2")}


def test_dataset_versions_that_differ_are_pointed_out(tmp_path: Path) -> None:
    a = builders.run(tmp_path, [True], "a.json", environment={"dataset_digest": "1"})
    b = builders.run(tmp_path, [True], "b.json", environment={"dataset_digest": "2"})

    assert any("different versions of the dataset" in note for note in koderz.compare(a, b).notes)


def test_faults_count_neither_way_and_are_counted(tmp_path: Path) -> None:
    faults = [{"experiment_id": "exp_1", "problem_id": "T/1", "solver": "zero-shot", "sample": 0, "reason": "gone"}]
    a = builders.run(tmp_path, [True, True], "a.json")
    b = builders.run(tmp_path, {"T/0": [True]}, "b.json", faults=faults, status="incomplete", planned=2)

    found = koderz.compare(a, b)

    assert (found.pairs, found.difference) == (1, 0.0)
    assert any("B has 1 experiments that ended in a fault" in note for note in found.notes)


def test_costs_iterations_and_latency_differ_with_intervals(tmp_path: Path) -> None:
    a = builders.run(tmp_path, [True] * 20, "a.json", cost=0.01)
    dearer = [{**row, "cost": 0.02 + 0.02 * (i % 2)} for i, row in enumerate(builders.rows([True] * 20))]
    b = builders.run(tmp_path, [True] * 20, "b.json", results=dearer)

    found = koderz.compare(a, b)

    cost, iterations = found.measures["cost"], found.measures["iterations"]
    assert cost.difference == pytest.approx(0.02)
    assert cost.interval == pytest.approx((0.0155, 0.0245), abs=0.001)
    assert (cost.interval_method, found.interval_method) == ("BCa bootstrap of tasks", "Tango's score interval")
    assert (iterations.interval, iterations.interval_method) == (None, None), "all alike, which is no certainty"


def test_averages_below_20_tasks_have_no_interval(tmp_path: Path) -> None:
    a = builders.run(tmp_path, [True] * 19, "a.json", cost=0.01)
    dearer = [{**row, "cost": 0.02 + 0.02 * (i % 2)} for i, row in enumerate(builders.rows([True] * 19))]
    found = koderz.compare(a, builders.run(tmp_path, [True] * 19, "b.json", results=dearer))

    assert {measure.interval for measure in found.measures.values()} == {None}
    assert "Averages such as cost and latency have intervals on 20 tasks and more." in found.notes


def test_interval_on_few_tasks_does_not_contradict_its_test(tmp_path: Path) -> None:
    found = compared(tmp_path, [False] * 3 + [True] * 2, [True] * 5)

    assert found.p_value == pytest.approx(0.1327, abs=5e-5)
    assert not found.significant
    assert found.interval is not None
    assert found.interval[0] <= 0
    assert found.interval[1] > 80


def test_comparison_without_names_takes_the_last_two_that_share_tasks(tmp_path: Path) -> None:
    for number, task in enumerate(["T/0", "X/0", "T/0", "Y/0"]):
        run_id = f"bench_0a1b2c3{number}_20260131_12000{number}"
        builders.write(tmp_path / f"{run_id}.json", builders.document({task: [True]}, run_id=run_id))

    a, b = last_comparable(tmp_path)

    assert (a.name[13], b.name[13]) == ("0", "2")


def test_comparison_without_shared_tasks_is_told(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="no two runs on the same tasks; make some with"):
        last_comparable(tmp_path)


def _sides(folder: Path, *outcomes: builders.Outcomes) -> list[Side]:
    runs: list[Run] = [
        builders.run(folder, each, f"{i}.json", run_id=f"bench_0000000{i}_20260131_120000")
        for i, each in enumerate(outcomes)
    ]
    return [side for run in runs for side in sides_of(run)]


def test_leaderboard_ranks_and_corrects_for_the_number_of_tests(tmp_path: Path) -> None:
    weak, middle, strong = [False] * 30, [True] * 10 + [False] * 20, [True] * 12 + [False] * 18

    board = leaderboard(_sides(tmp_path, weak, strong, middle))

    assert [standing.mean.mean for standing in board.standings] == pytest.approx([0.4, 10 / 30, 0])
    assert [standing.level_with_best for standing in board.standings] == [True, True, False]
    raw = between(board.standings[0].side, board.standings[2].side).p_value
    (pair,) = [pair for pair in board.pairwise if pair.a[6:14] == "00000001" and pair.b[6:14] == "00000000"]
    assert pair.p_value == raw
    assert pair.p_holm == pytest.approx(3 * pair.p_value)


def test_leaderboard_shows_ranks_as_sets_and_tiers(tmp_path: Path) -> None:
    weak, middle, strong = [False] * 30, [True] * 10 + [False] * 20, [True] * 12 + [False] * 18

    board = leaderboard(_sides(tmp_path, weak, strong, middle))

    assert [(standing.ranks, standing.tier) for standing in board.standings] == [((1, 2), 1), ((1, 2), 1), ((3, 3), 2)]
    (table, *texts) = leaderboard_blocks(board)
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [["1 to 2", "1"], ["1 to 2", "1"], ["3", "2"]]
    assert any("each of 98.33%, so that all 3 hold with 95%" in str(text) for text in texts)
    for standing in board.standings:
        alone, together = standing.mean.interval, standing.together.interval
        assert alone is not None
        assert together is not None
        assert together[0] <= alone[0] <= standing.mean.mean <= alone[1] < together[1]


def test_leaderboard_of_equals_ranks_nobody(tmp_path: Path) -> None:
    outcomes = [[(task + model) % 3 > 0 for task in range(30)] for model in range(12)]

    board = leaderboard(_sides(tmp_path, *outcomes))

    assert {standing.ranks for standing in board.standings} == {(1, 12)}
    assert {standing.tier for standing in board.standings} == {1}


def test_leaderboard_of_30_models_finds_the_one_that_is_better(tmp_path: Path) -> None:
    """Sign flips of 40 tasks have p-values that are small enough for 435 tests."""
    rng = random.Random(3)
    rates = [0.9] + [0.2] * 29
    outcomes = [{f"T/{task}": [rng.random() < rate for _ in range(2)] for task in range(40)} for rate in rates]
    sides = [
        side
        for number, each in enumerate(outcomes)
        for side in sides_of(
            builders.run(tmp_path, each, f"{number}.json", run_id=f"bench_{number:08}_20260131_120000")
        )
    ]

    first, *others = leaderboard(sides).standings

    assert first.ranks == (1, 1)
    assert not any(standing.level_with_best for standing in others)
    assert {standing.tier for standing in others} == {2}


def test_leaderboard_names_the_better_one_of_the_tasks_in_common(tmp_path: Path) -> None:
    a = {f"T/{task}": [True] for task in range(20)} | {f"A/{task}": [False] for task in range(60)}
    b = {f"T/{task}": [False] for task in range(20)} | {f"B/{task}": [True] for task in range(60)}
    runs = [
        builders.run(tmp_path, own, f"{n}.json", run_id=f"bench_0000000{n}_20260131_120000")
        for n, own in enumerate((a, b))
    ]

    board = leaderboard([side for run in runs for side in sides_of(run)])

    (pair,) = board.pairwise
    assert (pair.a, pair.significant) == (runs[0].name, True)


def test_tiers_are_those_of_the_shown_differences() -> None:
    assert tiers_of("abcd", {("a", "c"), ("b", "d"), ("c", "d")}) == {"a": 1, "b": 1, "c": 2, "d": 3}
    assert tiers_of("abc", {("a", "b"), ("b", "c"), ("c", "a")}) == {"a": 1, "b": 1, "c": 1}
    assert rank_sets("abcd", {("a", "c"), ("b", "d"), ("c", "d")}) == {
        "a": (1, 3),
        "b": (1, 3),
        "c": (2, 3),
        "d": (3, 4),
    }


def test_leaderboard_names_arms_without_results(tmp_path: Path) -> None:
    board = leaderboard(_sides(tmp_path, [True] * 3, [], [False] * 3))

    assert len(board.standings) == 2
    assert any("00000001_20260131_120000 has no results" in note for note in board.notes)
    assert not any(pair.significant for pair in board.pairwise)
    with pytest.raises(KoderzError, match="none of these runs has results"):
        leaderboard(_sides(tmp_path, [], []))
