"""Measures: anything that results have is compared by a test and an interval that fit it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import koderz
from koderz.analysis import intervals, statistics
from koderz.analysis.compare import compare_runs
from koderz.analysis.comparison import comparison_blocks
from koderz.analysis.gates import Gates
from koderz.analysis.leaderboard import leaderboard, leaderboard_blocks
from koderz.analysis.measures import measure_named, shown
from koderz.analysis.pairs import sides_of
from koderz.analysis.runs import Run
from koderz.errors import KoderzError
from koderz_tracker.records import Measure
from tests.koderz.analysis import builders

DECLARED = [
    {"name": "seconds", "direction": "lower", "unit": "s", "two_valued": False},
    {"name": "exact", "direction": "higher", "unit": "", "two_valued": True},
]


def measured(folder: Path, name: str, values: Sequence[dict[str, Any]], **more: Any) -> Run:
    """A run whose results, one a task, have these scores and metrics."""
    rows = [{**row, **own} for row, own in zip(builders.rows([True] * len(values)), values, strict=True)]
    number = sum(name.encode()) % 10
    about = {"run_id": f"bench_0a1b2c3{number}_20260131_120000", "measures": DECLARED, **more}
    return builders.run(folder, [True] * len(values), f"{name}.json", results=rows, **about)


def scores(*values: float) -> list[dict[str, Any]]:
    return [{"score": value} for value in values]


def metric(name: str, *values: float) -> list[dict[str, Any]]:
    return [{"metrics": {name: value}} for value in values]


def test_measure_score_is_tested_by_permutation_and_bootstrapped(tmp_path: Path) -> None:
    a = measured(tmp_path, "a", scores(*[0.2 + 0.01 * (i % 5) for i in range(30)]))
    b = measured(tmp_path, "b", scores(*[0.5 + 0.02 * (i % 7) for i in range(30)]))

    found = koderz.compare(a, b, measure="score")

    assert (found.significant, found.mcnemar_p, found.probability_better) == (True, None, None)
    assert found.method == "sign-flip permutation test, paired by task"
    assert found.interval_method == "BCa bootstrap of tasks"
    assert found.interval is not None
    assert found.interval[0] < (found.difference or 0) < found.interval[1]
    assert found.difference == pytest.approx((found.b_compared.mean or 0) - (found.a_compared.mean or 0))
    assert (found.both, found.b_only, found.a_only) == (None, 30, 0)
    assert found.verdict.startswith("B is better in score: +0.3")
    assert found.measures["success"].method == "McNemar's score test, exact for any share of flips, paired by task"


def test_measure_whose_lower_values_are_better_is_worse_where_it_rises(tmp_path: Path) -> None:
    a = measured(tmp_path, "a", metric("seconds", *[1.0 + 0.1 * (i % 3) for i in range(24)]))
    b = measured(tmp_path, "b", metric("seconds", *[2.0 + 0.1 * (i % 4) for i in range(24)]))

    found = koderz.compare(a, b, measure="seconds")

    assert found.verdict.startswith("B is worse in seconds: +1.05 s")
    assert (len(found.lost), len(found.gained)) == (24, 0)
    assert koderz.compare(b, a, measure="seconds").verdict.startswith("B is better in seconds: -1.05 s")
    assert (
        "B is worse in cost"
        in koderz.compare(
            measured(tmp_path, "c", [{"cost": 0.1 + i / 1000} for i in range(8)]),
            measured(tmp_path, "d", [{"cost": 0.2 + i / 1000} for i in range(8)]),
            measure="cost",
        ).verdict
    )


def test_measure_of_two_values_is_compared_as_success_is(tmp_path: Path) -> None:
    a = measured(tmp_path, "a", metric("exact", *[0.0] * 12, *[1.0] * 8))
    b = measured(tmp_path, "b", metric("exact", *[1.0] * 18, *[0.0] * 2))

    found = koderz.compare(a, b, measure="exact")

    assert found.mcnemar_p == pytest.approx(statistics.mcnemar(2, 12))
    assert found.p_value == pytest.approx(statistics.score_test(2, 12, 20))
    assert found.interval_method == "Tango's score interval"
    assert found.difference == pytest.approx(50.0)
    assert found.verdict.startswith("B is better in exact: +50.0 points")


def test_measure_that_is_undeclared_says_so_and_unknown_is_refused(tmp_path: Path) -> None:
    a, b = (measured(tmp_path, name, metric("odd", *map(float, range(8)))) for name in "ab")

    assert any(
        "doesn't declare which direction of odd is better" in n for n in koderz.compare(a, b, measure="odd").notes
    )
    with pytest.raises(KoderzError, match="no result has a measure 'speed'; choose from "):
        koderz.compare(a, b, measure="speed")


def test_measure_that_some_results_lack_is_compared_on_the_others(tmp_path: Path) -> None:
    a = measured(tmp_path, "a", scores(*[0.5] * 8))
    b = measured(tmp_path, "b", [*scores(*[0.75] * 6), {}, {}])

    found = koderz.compare(a, b, measure="score")

    assert (found.pairs, found.difference) == (6, 0.25)
    assert "6 of 8 results of B have a score; the others are left out." in found.notes
    nothing = koderz.compare(measured(tmp_path, "c", [{}] * 4), a, measure="score")
    assert nothing.verdict == "There is nothing to compare yet."
    assert nothing.measures["iterations"].p_value == 1.0


def test_measure_values_beyond_0_and_1_are_not_tested_by_mcnemar(tmp_path: Path) -> None:
    a = measured(tmp_path, "a", metric("exact", *[0.5] * 20))
    b = measured(tmp_path, "b", metric("exact", *[1.0] * 20))

    found = koderz.compare(a, b, measure="exact")

    assert (found.mcnemar_p, found.difference) == (None, 0.5)


def test_measures_are_corrected_together(tmp_path: Path) -> None:
    drawn = random.Random(3)
    a, b = (
        measured(tmp_path, name, [{"cost": drawn.random() + shift, "latency": drawn.random()} for _ in range(24)])
        for name, shift in (("a", 0.0), ("b", 0.4))
    )

    found = koderz.compare(a, b)

    raw = {name: each.p_value for name, each in found.measures.items()}
    p_values = statistics.holm([raw["cost"] or 0.0, raw["latency"] or 0.0])
    assert [found.measures[name].p_holm for name in ("cost", "latency")] == pytest.approx(p_values)
    assert {name: each.at_once for name, each in found.measures.items()} == {
        "cost": 2,
        "iterations": 1,
        "latency": 2,
        "tokens": 1,
    }
    text = "\n".join(block.text for block in comparison_blocks(found) if hasattr(block, "text"))
    assert "p of the other measures: sign-flip permutation test, paired by task, Holm-corrected for 2." in text


def test_copies_and_constants_take_no_part_in_the_correction(tmp_path: Path) -> None:
    drawn = random.Random(3)
    runs = []
    for name, rate in (("a", 0.4), ("b", 0.7)):
        passes = [drawn.random() < rate for _ in range(40)]
        rows = [
            {**row, "score": float(ok), "cost": drawn.random(), "metrics": {"same": 1.0, "copy": float(ok)}}
            for row, ok in zip(builders.rows(passes), passes, strict=True)
        ]
        runs.append(
            builders.run(tmp_path, passes, f"{name}.json", results=rows, run_id=f"bench_0000000{name}_20260131_120000")
        )
    a, b = runs

    by_cost = koderz.compare(a, b, measure="cost").measures
    by_success = koderz.compare(a, b).measures

    assert by_cost["success"].p_holm == by_cost["success"].p_value
    assert by_cost["success"].at_once == by_cost["score"].at_once == by_cost["copy"].at_once == 1
    assert by_cost["same"].p_holm == 1.0
    assert by_success["cost"].p_holm == by_success["cost"].p_value
    assert by_success["score"].p_holm == by_success["score"].p_value, "it is the measure that was asked for"


def test_arms_that_are_compared_at_once_are_corrected_together(tmp_path: Path) -> None:
    a = builders.write(tmp_path / "a.json", builders.comparative([False] * 8, [False] * 6 + [True] * 2))
    b = builders.write(tmp_path / "b.json", builders.comparative([True] * 8, [True] * 8))

    zero_shot, iterative = koderz.compare(a, b).arms.values()

    first, second = statistics.score_test(0, 8, 8), statistics.score_test(0, 6, 8)
    assert [zero_shot.p_value, zero_shot.p_holm] == pytest.approx([first, 2 * first])
    assert [iterative.p_value, iterative.p_holm] == pytest.approx([second, second])
    assert "Holm-corrected" in zero_shot.verdict
    assert zero_shot.interval == pytest.approx([100 * limit for limit in intervals.tango(0, 8, 8)])
    assert zero_shot.interval_holm == pytest.approx([100 * limit for limit in intervals.tango(0, 8, 8, 0.975)])


@pytest.mark.slow
def test_intervals_beside_holms_p_agree_with_it(tmp_path: Path) -> None:
    drawn = random.Random(3)
    shown, alone = 0, 0
    for _ in range(15):
        names = {f"m{number}": [drawn.gauss(number, 1) for _ in range(24)] for number in range(6)}
        rows = [
            [{**row, "metrics": {name: values[i] + drawn.gauss(0.2, 0.5) for name, values in names.items()}}
             for i, row in enumerate(builders.rows([True] * 24))]
            for _ in "ab"
        ]  # fmt: skip
        a, b = (
            builders.write(tmp_path / f"{name}.json", builders.document([True] * 24, results=each))
            for name, each in zip("ab", rows, strict=True)
        )
        for difference in koderz.compare(a, b).measures.values():
            if difference.interval and difference.interval_holm:
                assert difference.p_holm is not None
                assert difference.p_value is not None
                low, high = difference.interval_holm
                assert (difference.p_holm <= 0.05) == (not low <= 0 <= high)
                assert high - low > difference.interval[1] - difference.interval[0]
                shown += difference.p_holm <= 0.05
                alone += difference.p_value <= 0.05
    assert shown < alone


def test_leaderboard_by_a_measure_ranks_by_its_direction(tmp_path: Path) -> None:
    runs = [
        measured(tmp_path, name, metric("seconds", *[level + 0.1 * (i % 3) for i in range(20)]))
        for name, level in (("a", 3.0), ("b", 1.0), ("c", 2.0))
    ]

    board = leaderboard([side for run in runs for side in sides_of(run)], measure=measure_named("seconds", runs))

    assert [round(standing.mean.mean) for standing in board.standings] == [1, 2, 3]
    assert [standing.mean.interval_method for standing in board.standings] == [
        "Student's t of tasks, of the logarithm"
    ] * 3
    assert all((pair.significant and pair.a < pair.b) or True for pair in board.pairwise)
    table = next(iter(leaderboard_blocks(board)))
    assert "Avg seconds" in table.header  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("gates", "why"),
    [
        (Gates(least={"score": 0.6}), ["has an average score of 0.5, below the 0.6 asked for"]),
        (Gates(least={"score": 0.5}, most={"cost": 0.01}), []),
        (Gates(most={"cost": 0.001}), ["has an average cost of $0.01000, above the $0.00100 asked for"]),
        (Gates(least={"success": 101}), ["has an average success of 100.0%, below the 101.0% asked for"]),
        (Gates(max_drop=0.2), ["score is worse by 0.25, more than the 0.2 allowed (lost: T/0, T/1, T/2, …)"]),
        (Gates(max_drop=0.3), []),
        (Gates(fail_on_regression=True), ["score is worse by 0.25, p = 0.00781 (lost: T/0, T/1, T/2, …)"]),
    ],
    ids=str,
)
def test_gates_on_any_measure(tmp_path: Path, gates: Gates, why: list[str]) -> None:
    for name, score in (("a", 0.75), ("b", 0.5)):
        measured(tmp_path, name, scores(*[score] * 8))

    names = [str(tmp_path / f"{name}.json") for name in "ab"]
    answer = compare_runs(names, tmp_path, measure="score", gates=gates)

    assert len(answer.shut) == len(why)
    assert all(said.endswith(wanted) for said, wanted in zip(answer.shut, why, strict=True)), answer.shut


@pytest.mark.parametrize(
    ("value", "measure", "signed", "text"),
    [
        (0.713, Measure(name="x", direction="higher", two_valued=True), False, "71.3%"),
        (-0.05, Measure(name="x", direction="higher", two_valued=True), True, "-5.0 points"),
        (0.0012, Measure(name="cost", direction="lower", unit="$"), True, "+$0.00120"),
        (1234.5, Measure(name="tokens", direction="lower"), False, "1,234"),
        (-1.5, Measure(name="s", direction="lower", unit="s"), False, "-1.50 s"),
        (0.00012345, Measure(name="s", direction="lower"), True, "+0.000123"),
    ],
)
def test_measures_are_shown_in_their_unit(value: float, measure: Measure, signed: bool, text: str) -> None:
    assert shown(value, measure, signed=signed) == text


# What the tests claim, by simulation


def _skewed(rng: np.random.Generator, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(rng.lognormal(0, 0.5, size))


def _uniform(rng: np.random.Generator, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(rng.random(size))


@pytest.mark.slow
@pytest.mark.parametrize("draw", [_skewed, _uniform])
@pytest.mark.parametrize("tasks", [8, 20])
def test_permutation_rejects_what_is_alike_in_one_case_of_twenty(
    draw: Callable[[np.random.Generator, int], Any], tasks: int
) -> None:
    rng = np.random.default_rng(12)
    runs = 1000

    rejected = sum(statistics.sign_flip(list(draw(rng, tasks) - draw(rng, tasks))) <= 0.05 for _ in range(runs))

    assert 0.035 <= rejected / runs <= 0.065


@pytest.mark.slow
def test_permutation_of_different_tasks_rejects_equals_in_1_of_20(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 499)
    rng = np.random.default_rng(12)
    runs = 600

    rejected = sum(
        statistics.shuffle_labels(list(_skewed(rng, 15)), list(_skewed(rng, 20))) <= 0.05 for _ in range(runs)
    )

    assert 0.03 <= rejected / runs <= 0.07


def test_holm_claims_falsely_in_at_most_one_family_of_twenty() -> None:
    """Five measures a family, two of which differ in truth; those that don't are correlated with each other."""
    from scipy import stats

    rng = np.random.default_rng(12)
    families, tasks = 10_000, 20
    shared, own = rng.normal(size=(families, tasks, 1)), rng.normal(size=(families, tasks, 5))
    differences = shared + own + np.array([2.0, 1.5, 0.0, 0.0, 0.0])
    p_values = stats.ttest_1samp(differences, 0.0, axis=1).pvalue

    uncorrected = sum(bool((p[2:] <= 0.05).any()) for p in p_values)
    false = sum(any(p <= 0.05 for p in statistics.holm(list(map(float, p)))[2:]) for p in p_values)

    assert false / families <= 0.05 < uncorrected / families


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "least"), [(20, 0.935), (60, 0.935)])
def test_bootstrap_holds_the_mean_as_often_as_it_says(tasks: int, least: float) -> None:
    rng = np.random.default_rng(12)
    runs, held = 1000, 0
    for _ in range(runs):
        found = intervals.bootstrap_mean(list(_uniform(rng, tasks) - _uniform(rng, tasks)))
        assert found is not None
        held += found[0] <= 0 <= found[1]

    assert least <= held / runs <= 0.98


def test_cpu_and_wall_are_lower_is_better_without_declaration(tmp_path: Path) -> None:
    run = measured(tmp_path, "a", metric("cpu", 0.1, 0.2), measures=[])

    assert (measure_named("cpu", [run]).direction, measure_named("cpu", [run]).unit) == ("lower", "s")
