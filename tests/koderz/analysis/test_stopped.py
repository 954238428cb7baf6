"""Runs that stopped once decided: what is said of them, and that nothing takes a number of tasks fixed beforehand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import koderz
from koderz.analysis.blocks import Table
from koderz.analysis.compare import compare_as_if_stopped, compare_runs, comparison_document
from koderz.analysis.comparison import comparison_blocks
from koderz.analysis.difficulty import difficulty
from koderz.analysis.gates import Gates, caution_on, ruling
from koderz.analysis.leaderboard import leaderboard, leaderboard_blocks
from koderz.analysis.measures import SUCCESS
from koderz.analysis.pairs import Side, matched, sides_of
from koderz.analysis.runs import Run, load_summary
from koderz.analysis.sequential import interval_of, p_of
from koderz.errors import KoderzError
from koderz.systems.optimizers.analysis.gains import gain_of
from koderz.systems.reports.panels import decision_charts
from koderz.systems.reports.versus import comparisons
from koderz.systems.reports.view import View
from koderz_tracker.sequential import STOPS, SettledOrder
from tests.koderz.analysis import builders

FIXED = re.compile(r"Wilson|Tango|Newcombe|McNemar|bootstrap|Student|Gaffke|permutation|sign-flip", re.IGNORECASE)
"""Names of methods that take a number of tasks fixed beforehand."""

COUNTED = 12


def texts_in(value: Any) -> Iterator[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from texts_in(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from texts_in(each)


def fixed_in(value: Any) -> list[str]:
    """The strings of an answer that name a method for a fixed number of tasks."""
    return [text for text in texts_in(msgspec.to_builtins(value, enc_hook=str)) if FIXED.search(text)]


def stopping(tasks: int = 40, **more: Any) -> dict[str, Any]:
    """The keys of a summary that stopped after `COUNTED` of its tasks."""
    decision = {
        "outcome": "shown", "a": "zero-shot", "b": "iterative", "tasks": COUNTED, "planned": tasks, "a_mean": 0.0,
        "b_mean": 100.0, "difference": 100.0, "interval": (60.0, 100.0), "interval_method": "betting", "e_value": 315.1,
        "alpha": 0.05, "margin": None, "measure": "success", "left_out": {}, "holds": True, "cost": 1.0,
        "cost_saved": 2.0, "path": [(1, 1.0, -98.7, 98.7), (COUNTED, 315.1, 60.0, 100.0)],
    }  # fmt: skip
    about = {"arm": "zero-shot", "order": [f"T/{number}" for number in range(tasks)], "fewest": 6}
    return {"until_decided": about, "decision": decision, "status": "decided", "planned": 2 * tasks, **more}


def stopped(folder: Path, name: str = "stopped.json", **more: Any) -> Run:
    """A run of two arms of which the second passed all of the tasks that were asked, and the first none."""
    document = builders.comparative([False] * COUNTED, [True] * COUNTED, **stopping(**more))
    return load_summary(builders.write(folder / name, document))


def test_stopped_run_is_tested_by_what_holds_at_any_stop(tmp_path: Path) -> None:
    run = stopped(tmp_path)

    found = koderz.compare(run)

    assert found.p_value == pytest.approx((COUNTED + 1) / 2**COUNTED)
    assert found.interval is not None
    assert 29 < found.interval[0] < found.interval[1] == 100
    assert (found.mcnemar_p, found.probability_better, found.smallest_difference) == (None, None, None)
    assert found.verdict.startswith("B is better: +")
    assert "to +100.0 points" in found.verdict
    assert (found.measures["cost"].p_value, found.measures["cost"].interval) == (None, None)
    assert fixed_in([comparison_document(found), [*comparison_blocks(found)]]) == []
    for arm in run.arms.values():
        assert arm.summary.success_rate_interval is not None
        assert fixed_in(arm) == []


@pytest.mark.parametrize("samples", [1, 3])
def test_stopped_run_has_no_fixed_test_beside_any_other(tmp_path: Path, samples: int) -> None:
    outcomes = {f"T/{number}": [number % 3 > 0] * samples for number in range(40)}
    other = builders.run(tmp_path, outcomes, "other.json", run_id=builders.OTHER, mode="zero-shot")
    run = stopped(tmp_path)

    for a, b in ((run, other), (other, run)):
        found = koderz.compare(a, b)
        assert found.pairs == COUNTED
        assert "valid at any stop" in found.method
        document = {**comparison_document(found), "b" if b is other else "a": None}  # the other has its own, rightly
        assert fixed_in([document, [*comparison_blocks(found)]]) == []
    board = leaderboard([*sides_of(run), *sides_of(other)])
    assert fixed_in(board.pairwise) == []
    assert any("its averages are over the 12 of 40 tasks that were asked" in note for note in board.notes)
    assert [*leaderboard_blocks(board)]


def test_stopped_run_without_common_tasks_claims_nothing(tmp_path: Path) -> None:
    other = builders.run(tmp_path, {f"U/{number}": [True] for number in range(40)}, "other.json", run_id=builders.OTHER)

    found = koderz.compare(stopped(tmp_path), other)

    (table, *_) = leaderboard_blocks(leaderboard([*sides_of(found.a.run, "iterative"), *sides_of(other)]))
    assert isinstance(table, Table)
    assert table.rows[1][-2] == "no claim"
    assert (found.p_value, found.interval) == (None, None)
    assert found.verdict == "No claim: a run stopped once it was decided, and there is no task in common."
    assert not found.significant


def test_order_of_the_older_run_holds(tmp_path: Path) -> None:
    turned = {"arm": "zero-shot", "order": [f"T/{number}" for number in reversed(range(40))]}
    older = stopped(tmp_path)
    newer = stopped(
        tmp_path, "newer.json", run_id=builders.OTHER, start_time="2026-02-01T12:00:00", until_decided=turned
    )

    assert koderz.compare(older, newer).p_value is not None
    again = stopped(tmp_path, "again.json", start_time="2026-03-01T12:00:00")
    assert koderz.compare(newer, again).method == "none: no task in common lies in the settled part of the order"


def test_gates_refuse_what_they_cannot_judge_of_a_stopped_run(tmp_path: Path) -> None:
    run = stopped(tmp_path)
    gates = Gates(fail_on_regression=True)

    assert not ruling(gates, koderz.compare(run).b, koderz.compare(run)).shut
    with pytest.raises(KoderzError, match=r"cost of .* can't be judged by a gate: a run stopped"):
        ruling(gates, koderz.compare(run).b, koderz.compare(run, measure="cost"))
    assert "stopped early: shown after 12 of 40" in caution_on(gates, Side(run, "iterative"))


def test_problems_of_stopped_runs_have_no_interval(tmp_path: Path) -> None:
    problem = difficulty(sides_of(stopped(tmp_path)))[0]

    assert (problem.interval, problem.interval_method) == (None, STOPS)


def test_stopped_run_is_marked_and_one_that_went_on_too(tmp_path: Path) -> None:
    assert stopped(tmp_path).progress == "stopped early: shown after 12 of 40"
    went_on = stopped(tmp_path, planned=2 * COUNTED, status="complete")
    assert went_on.early == "decided early, then run to the end: shown after 12 of 40"
    assert went_on.asked_of("iterative") == ""


def test_run_is_open_until_every_arm_is_decided(tmp_path: Path) -> None:
    run = stopped(tmp_path, until_decided={"arm": "other", "order": []})

    assert not run.is_decided


def test_report_draws_decisions_and_says_where_nothing_is_claimed(tmp_path: Path) -> None:
    run = stopped(tmp_path)
    other = builders.run(
        tmp_path, {f"U/{number}": [True] for number in range(40)}, "other.json", run_id=builders.OTHER, mode="plain"
    )

    charts = [*decision_charts([run])]
    assert [chart.title for chart in charts] == [
        "Decision: iterative less zero-shot",
        "Evidence: iterative less zero-shot",
    ]
    assert charts[0].rows[-1] == ["12", "315", "+60.0 to +100.0"]
    found = comparisons(View.of([run, other]).judged)
    assert found.shown[0].verdict.endswith("to 100.0 points better")
    assert "No claim in 2 of the comparisons: a run stopped once it was decided" in found.note


def test_sequential_looks_at_complete_runs_as_if_they_had_stopped(tmp_path: Path) -> None:
    builders.write(tmp_path / f"{builders.RUN}.json", builders.comparative([False] * 40, [True] * 40))

    found = compare_as_if_stopped([builders.RUN], tmp_path).found()["sequential"]

    assert (found["outcome"], found["tasks"], found["planned"]) == ("shown", 8, 40)
    assert found["e_value"] == pytest.approx(2**8 / 9)
    assert found["cost"] == pytest.approx(2 * 8 * 0.01)
    assert found["cost_saved"] == pytest.approx(2 * 32 * 0.01)
    with pytest.raises(KoderzError, match="cost has no bounds"):
        compare_as_if_stopped([builders.RUN], tmp_path, measure="cost")


def test_interval_of_a_stopped_run_is_of_the_difference_over_tasks() -> None:
    """B is better on 36 texts with one question, and A on 12 with 25: by 6 in 100 of all questions."""
    texts = [25 if n % 4 == 0 else 1 for n in range(48)]
    clusters = {f"{n}/{m}": str(n) for n, size in enumerate(texts) for m in range(size)}
    is_large = {task: texts[int(text)] > 1 for task, text in clusters.items()}
    number = {task: int(task.split("/")[1]) for task in clusters}
    a = {task: [float(is_large[task] and number[task] < 15)] for task in clusters}
    b = {task: [float(not is_large[task] or number[task] < 11)] for task in clusters}
    found = matched(SUCCESS, a, b, clusters, SettledOrder(clusters, 25))

    interval, p = interval_of(found, 0.05), p_of(found)
    assert interval
    assert interval[0] < (36 - 4 * 12) / 336 < interval[1] < 0.5
    assert p is not None
    assert p > 0.05


def test_sequential_takes_complete_runs_alone(tmp_path: Path) -> None:
    stopped(tmp_path, f"{builders.RUN}.json")

    with pytest.raises(KoderzError, match=r"looks at complete runs, and .* stopped early: shown after 12 of 40"):
        compare_as_if_stopped([builders.RUN], tmp_path)
    assert "B is better" in compare_runs([builders.RUN], tmp_path).title


def test_gain_that_is_not_tested_has_no_interval() -> None:
    scores = [{str(item): float(item % 2) for item in range(40)}]

    found = gain_of(scores, [{str(item): 1.0 for item in range(40)}], untested=STOPS)

    assert found is not None
    assert (found.interval, found.p, found.method, found.detectable) == (None, 1.0, STOPS, None)
    assert found.together(1, 0.01) is None


def test_stopped_run_is_not_corrected_for_its_judge(tmp_path: Path) -> None:
    figures = builders.calibration(50, 25, 5)
    run = stopped(tmp_path, calibration={"zero-shot": figures, "iterative": figures})

    found = koderz.compare(run)

    assert found.judged is not None
    assert (found.judged.difference, found.judged.interval) == (None, None)
    assert "judged by j; a run stopped once it was decided, so the difference isn't corrected" in found.judged.note
    assert found.significant
