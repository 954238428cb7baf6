"""The summary keeps its contract, and its statistics are those of the sources that they name."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from koderz.testing import a_journal, a_plan
from koderz_tracker.basis import TIMES
from koderz_tracker.errors import JournalError
from koderz_tracker.index import index_path
from koderz_tracker.journal import NAME
from koderz_tracker.rates import BETA, LOG_STUDENT, WILSON, effective_size, pass_at_k_of, success_interval, wilson
from koderz_tracker.records import Fault, Finished, Measure, Plan, Record, Resumed
from koderz_tracker.sinks.json import encode_summary
from koderz_tracker.summary import Summary, figures, summarize
from tests.tracker.builders import attempt, call, experiment_id, fault, judged

BOTH = ("zero-shot", "iterative")


def summary_of(tmp_path: Path, *records: Record, of: Plan | None = None) -> Summary:
    return summarize(a_journal(tmp_path, *records, plan=of))


# The contract


def test_results_hold_what_was_judged_and_nothing_else(tmp_path: Path) -> None:
    found = summary_of(tmp_path, judged(0, True), judged(1, False), fault(2), call(3), of=a_plan(5))

    assert [(r.problem_id, r.success) for r in found.results] == [("T/0", True), ("T/1", False)]
    assert (found.summary.total_problems, found.summary.successes, found.summary.success_rate) == (2, 1, 50.0)
    assert (found.planned, len(found.faults)) == (5, 1)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outcomes=st.lists(st.sampled_from(["pass", "fail", "fault", "none"]), max_size=8), data=st.data())
def test_totals_are_those_of_the_results_whatever_happened(
    tmp_path_factory: pytest.TempPathFactory, outcomes: list[str], data: st.DataObject
) -> None:
    cost = st.floats(0, 5, allow_nan=False)
    records: list[Record] = []
    for task, outcome in enumerate(outcomes):
        paid = data.draw(cost)
        records.append(call(task, cost=paid))
        if outcome == "fault":
            records.append(fault(task, cost=paid))
        elif outcome != "none":
            records.append(judged(task, outcome == "pass", cost=paid))

    found = summary_of(tmp_path_factory.mktemp("run"), *records, of=a_plan(8))

    total, passes = found.summary, outcomes.count("pass")
    assert len(found.results) == total.total_problems == passes + outcomes.count("fail")
    assert total.success_rate == (100 * passes / total.total_problems if total.total_problems else None)
    assert total.total_cost == math.fsum(r.cost for r in found.results)
    assert found.paid["total"] == pytest.approx(sum(v for name, v in found.paid.items() if name != "total"), abs=1e-9)
    assert len(found.faults) == outcomes.count("fault")


def test_parts_are_of_no_fault_on_tasks_that_stand_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[str]()

    def parts_of(plan: Plan, of_arms: object, faults: Sequence[Fault], apart: object) -> dict[str, Any]:
        given.extend(each.problem_id for each in faults)
        return {}

    monkeypatch.setattr("koderz_tracker.summary.parts_of", parts_of)
    found = summary_of(tmp_path, fault(0), fault(5), of=a_plan(6, apart=["T/5"], parts=["own"]))
    assert (given, len(found.faults)) == (["T/0"], 2)


def test_answers_that_could_not_be_read_are_counted(tmp_path: Path) -> None:
    results = summary_of(tmp_path, *(judged(task) for task in range(4)), of=a_plan(4)).results
    assert figures(results).unread is None

    answered = [
        structs.replace(each, answer=answer) for each, answer in zip(results, ["A", None, "B", "C"], strict=True)
    ]
    unread = figures(answered).unread
    assert unread is not None
    assert (unread.count, unread.rate) == (1, 25.0)


def test_results_come_in_the_order_of_the_plan_sample_by_sample(tmp_path: Path) -> None:
    pairs = [(2, 1), (0, 0), (1, 1), (2, 0), (0, 1), (1, 0)]
    found = summary_of(tmp_path, *(judged(task, sample=s) for task, s in pairs), of=a_plan(3, samples=2))

    assert [(r.problem_id, r.sample) for r in found.results] == [
        ("T/0", 0),
        ("T/1", 0),
        ("T/2", 0),
        ("T/0", 1),
        ("T/1", 1),
        ("T/2", 1),
    ]


def test_fault_has_its_reason_and_cost(tmp_path: Path) -> None:
    found = summary_of(tmp_path, fault(1, reason="the server is gone", cost=0.5))

    assert found.faults == [
        {
            "experiment_id": experiment_id(1),
            "problem_id": "T/1",
            "solver": "zero-shot",
            "arm": "zero-shot",
            "sample": 0,
            "reason": "the server is gone",
            "cause": "unreachable",
            "cost": 0.5,
        }
    ]


def test_rate_with_faults_has_bounds(tmp_path: Path) -> None:
    tasks = a_plan(6, arms=BOTH, apart=["T/5"])
    judged_of_both = [judged(0), judged(1, False), judged(0, solver="iterative"), judged(1, solver="iterative")]
    summary = summary_of(tmp_path, *judged_of_both, fault(2), fault(3), fault(5), of=tasks)

    figures = summary.arms["zero-shot"].summary
    assert (figures.success_rate, figures.success_rate_bounds) == (50.0, (25.0, 75.0))
    assert figures.bounds_text == "25.0% with its faults as failures, 75.0% as passes"
    assert summary.planned == 10, "those apart count in no figure"
    assert summary.arms["iterative"].summary.success_rate_bounds is None
    written = json.loads(b"".join(encode_summary(summary)))
    assert written["arms"]["zero-shot"]["summary"]["success_rate_bounds"] == [25.0, 75.0]
    assert "success_rate_bounds" not in written["arms"]["iterative"]["summary"]


def test_result_has_the_fields_of_its_experiment(tmp_path: Path) -> None:
    tiers = {"local": 0.1, "spec": 0.15}
    experiment = judged(
        0, False, cause="cpu", cost_by_tier=tiers, metrics={"x": 1.0}, score=0.5, note="n", verdict="timeout"
    )
    (result,) = summary_of(tmp_path, experiment).results

    assert (result.experiment_id, result.verdict, result.cause) == (experiment_id(0), "timeout", "cpu")
    assert (result.tokens, result.tokens_in, result.tokens_out) == (10, 7, 3)
    assert (result.cost_by_tier, result.metrics, result.score, result.note) == (tiers, {"x": 1.0}, 0.5, "n")


def test_arm_has_mean_score_and_metrics(tmp_path: Path) -> None:
    values = [0.1, 0.4, 0.4, 0.9]
    records = [judged(task, score=score, metrics={"exact": float(task > 0)}) for task, score in enumerate(values)]
    of = a_plan(5, measures=[Measure(name="exact", direction="higher", two_valued=True)])
    found = summary_of(tmp_path, *records, judged(4), of=of)

    means = found.summary.measures
    assert means["score"].mean == pytest.approx(0.45)
    assert means["score"].results == 4
    assert means["score"].interval == pytest.approx((0.152, 0.793), abs=0.001)
    assert means["score"].interval_method == BETA
    assert (means["exact"].mean, means["exact"].interval_method) == (0.75, "Wilson")
    assert [measure.name for measure in found.measures] == ["exact"]


def test_mean_of_ratios_is_geometric(tmp_path: Path) -> None:
    ratios = [0.5, 1.0, 2.0, 16.0]
    records = [judged(task, metrics={"speedup": ratio, "other": ratio}) for task, ratio in enumerate(ratios)]
    of = a_plan(4, measures=[Measure(name="speedup", direction="higher", unit=TIMES)])
    means = summary_of(tmp_path, *records, of=of).summary.measures
    assert means["speedup"].mean == pytest.approx(2.0)
    low, high = means["speedup"].interval or (0.0, 0.0)
    assert 0 < low < 0.5 < 16 < high
    assert low * high == pytest.approx(4.0)
    assert means["other"].mean == pytest.approx(4.875)


def test_metric_that_counts_one_is_no_rate(tmp_path: Path) -> None:
    records = [judged(task, metrics={"failed": float(task < 1), "share": 1.0, "exact": 1.0}) for task in range(4)]
    declared = [
        Measure(name="failed", direction="lower", unit="requests"),
        Measure(name="share", direction="higher", unit="share"),
        Measure(name="exact", direction="higher", two_valued=True),
    ]
    means = summary_of(tmp_path, *records, of=a_plan(4, measures=declared)).summary.measures
    methods = [means[name].interval_method for name in ("failed", "share", "exact")]
    assert methods == [LOG_STUDENT, BETA, WILSON]
    undeclared = summary_of(tmp_path / "undeclared", *records).summary.measures
    assert undeclared["exact"].interval is None


def test_score_that_repeats_success_has_the_interval_of_the_rate(tmp_path: Path) -> None:
    records = [judged(task, task > 0, score=float(task > 0)) for task in range(5)]
    found = summary_of(tmp_path, *records, of=a_plan(5)).summary
    (low, high), score = found.success_rate_interval or (0, 0), found.measures["score"]
    assert score.interval == pytest.approx((low / 100, high / 100))
    assert score.interval_method == found.success_rate_interval_method == WILSON


# Later sessions


def test_result_of_a_retry_or_rescore_is_its_last(tmp_path: Path) -> None:
    records: list[Record] = [fault(0), judged(1, True), judged(2, False), Resumed(how="retry"), judged(0, True)]
    again: list[Record] = [
        Resumed(how="rescore"),
        judged(1, False),
        judged(2, True),
        fault(0, reason="rescore: needs a call"),
    ]
    found = summary_of(tmp_path, *records, *again)

    assert [(r.problem_id, r.success) for r in found.results] == [("T/1", False), ("T/2", True)]
    assert [row["reason"] for row in found.faults] == ["rescore: needs a call"]
    assert found.summary.total_problems == 2


def test_cost_that_was_paid_before_a_retry_stays_paid_once(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path, call(0, cost=1.0), fault(0, cost=1.0), Resumed(), call(0, 2, cost=0.5), judged(0, cost=1.5)
    )

    assert found.paid == {"total": 1.5, "results": 1.5, "faults": 0, "unfinished": 0}


def test_cost_of_unended_experiments_is_unfinished(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path, call(0, cost=1.0), judged(0, cost=1.0), call(1, cost=0.5), call(2, cost=2), fault(2, cost=2)
    )

    assert found.paid == {"total": 3.5, "results": 1.0, "faults": 2.0, "unfinished": 0.5}


def at(seconds: float) -> str:
    return f"2026-01-31T12:{int(seconds) // 60:02d}:{seconds % 60:09.6f}"


def test_duration_leaves_pauses_out(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path,
        call(0, time=at(1)),
        judged(0, time=at(5.5)),  # killed here
        Resumed(time=at(100)),
        judged(1, time=at(103)),
        Finished(time=at(104), status="stopped"),
        Resumed(time=at(600)),
        Finished(time=at(600.25), status="complete"),
        of=a_plan(time=at(0)),
    )

    assert found.duration_seconds == 5.5 + 4 + 0.25
    assert (found.start_time, found.end_time) == (at(0), at(600.25))


def test_duration_survives_a_clock_set_back(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path, judged(0, time=at(10)), Resumed(time=at(20)), judged(1, time=at(25)), of=a_plan(time=at(60))
    )

    assert found.duration_seconds == 5.0


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([], "unfinished"),
        ([Finished(status="stopped", reason="the cap")], "stopped"),
        ([Finished(status="stopped"), Resumed()], "unfinished"),
        ([Finished(status="stopped"), Resumed(), Finished(status="complete")], "complete"),
    ],
)
def test_status_is_that_of_the_last_session(tmp_path: Path, ends: list[Record], status: str) -> None:
    found = summary_of(tmp_path, judged(0), *ends)

    assert found.status == status
    assert found.reason == ("the cap" if len(ends) == 1 else "")


# Comparison


def test_comparison_uses_tasks_judged_in_both_arms(tmp_path: Path) -> None:
    zero: list[Record] = [
        judged(0, True, cost=1),
        judged(1, False, cost=1),
        judged(2, False, cost=1),
        fault(3),
        judged(4, True, cost=9),
    ]
    iterative: list[Record] = [
        judged(0, True, solver="iterative", cost=1, iterations=1),
        judged(1, True, solver="iterative", cost=3, iterations=4),
        judged(2, False, solver="iterative", cost=5, iterations=10),
        judged(3, True, solver="iterative", cost=9),
        fault(4, solver="iterative"),
    ]
    found = summary_of(tmp_path, *zero, *iterative, of=a_plan(5, arms=BOTH))

    comparison = found.comparison
    assert comparison is not None
    assert comparison.problems == 3
    assert comparison.success_rate_improvement == pytest.approx(100 / 3)
    assert (comparison.cost_difference, comparison.avg_cost_difference, comparison.iteration_difference) == (6, 2, 4)
    assert (comparison.both_passed, comparison.only_zero_shot, comparison.only_iterative, comparison.neither) == (
        1,
        0,
        1,
        1,
    )
    assert {name: len(arm.results) for name, arm in found.arms.items()} == {"zero-shot": 4, "iterative": 4}


def test_samples_are_compared_one_with_its_like(tmp_path: Path) -> None:
    records = [judged(0, s == 0, sample=s) for s in range(2)]
    records += [judged(0, s == 1, sample=s, solver="iterative") for s in range(2)]
    found = summary_of(tmp_path, *records, of=a_plan(1, arms=BOTH, samples=2))

    assert found.comparison is not None
    assert (found.comparison.problems, found.comparison.only_zero_shot, found.comparison.only_iterative) == (2, 1, 1)


def test_comparison_without_common_tasks_has_no_improvement(tmp_path: Path) -> None:
    found = summary_of(tmp_path, judged(0), of=a_plan(2, arms=BOTH))

    assert found.comparison is not None
    assert (found.comparison.problems, found.comparison.cost_difference) == (0, 0)
    assert (found.comparison.success_rate_improvement, found.comparison.iteration_difference) == (None, None)


def test_comparison_needs_two_solvers(tmp_path: Path) -> None:
    assert summary_of(tmp_path, judged(0)).comparison is None


# A pure function


def test_summary_bytes_depend_on_the_journal_alone(tmp_path: Path) -> None:
    records: list[Record] = [call(0), attempt(0), judged(0), fault(1), Finished(status="incomplete")]
    folder = a_journal(tmp_path, *records)
    first = b"".join(encode_summary(summarize(folder)))
    (tmp_path / "moved").mkdir()
    copy = tmp_path / "moved" / "elsewhere"
    copy.mkdir()
    (copy / NAME).write_bytes((folder / NAME).read_bytes())
    index_path(folder / NAME).unlink()

    assert b"".join(encode_summary(summarize(folder))) == first
    assert b"".join(encode_summary(summarize(copy))) == first
    assert sorted(path.name for path in copy.iterdir()) == [NAME]


def test_summary_of_an_unfinished_run(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0), judged(1, False))
    whole = (folder / NAME).read_bytes()
    for cut in range(whole.rindex(b"\n", 0, -1) + 1, len(whole), 9):
        (folder / NAME).write_bytes(whole[:cut])
        assert len(summarize(folder).results) == 1


def test_kinds_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0))
    with (folder / NAME).open("ab") as file:
        file.write(b'{"kind":"artifact","time":"2030-01-01T00:00:00.000000","cost":3}\n')
    asyncio.run(_append(folder, judged(1), Finished(status="complete")))

    found = summarize(folder)

    assert (found.status, len(found.results), found.paid["total"]) == ("complete", 2, 0)


def test_summary_leaves_out_a_last_line_of_unknown_kind(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0), Finished(status="complete"))
    with (folder / NAME).open("ab") as file:
        file.write(b'{"kind":"artifact","time":"2030-01-01T00:00:00.000000"}\n')

    assert summarize(folder).status == "complete"


def test_plan_that_is_lost_names_file_and_byte(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0))
    (folder / NAME).write_bytes(b"\0" + (folder / NAME).read_bytes())

    with pytest.raises(JournalError, match=rf"{folder / NAME}: byte 0: it doesn't begin with a plan"):
        summarize(folder)


def test_lines_before_the_plan_are_left_out(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0))
    before = summarize(folder)
    (folder / NAME).write_bytes(b"somebody else's\n" + (folder / NAME).read_bytes())

    assert summarize(folder) == replace(before, damaged_lines=1)


async def _append(folder: Path, *records: Record) -> None:
    from koderz_tracker.tracker import Tracker

    with Tracker.reopen(folder) as tracker:
        for record in records:
            await tracker.record(record)


def test_counts_of_all_experiments_and_faults_add_up(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path,
        judged(0, answered_by={"m": {"m-1": 2}}, unknown_ends={"odd": 1}, throttled={"openai": 1}),
        judged(1, answered_by={"m": {"m-1": 1, "m-2": 4}}, reused={"run/a": [1, 2], "run/b": [1]}),
        fault(2, unknown_ends={"odd": 2, "new": 1}, throttled={"openai": 2}),
    )

    assert found.answered_by == {"m": {"m-1": 3, "m-2": 4}}
    assert found.unknown_ends == {"odd": 3, "new": 1}
    assert found.throttled == {"openai": 3}
    assert [result.reused_calls for result in found.results] == [0, 3]


def test_cautions_say_what_figures_are_to_be_read_with(tmp_path: Path) -> None:
    cut = [judged(task, False, solver=arm, truncated="text") for task in range(2) for arm in BOTH]
    found = summary_of(tmp_path, *cut, fault(2, unknown_ends={"odd": 2}), of=a_plan(arms=BOTH, notes=["few tasks"]))
    told = "100.0% of the replies (2 of 2) were cut off by their length: raise --max-tokens"

    usual = [*(f"{arm}: {told}" for arm in BOTH), "2 replies ended by 'odd', which koderz doesn't know", "few tasks"]
    assert found.cautions == usual
    judge = {"caveats": ["a judge that is no person"]}
    further = replace(found, simulated=True, generated="mini", rewarded_in=["training"], judge=judge).cautions
    assert [caution.partition(":")[0].partition(",")[0] for caution in further[:2]] == [
        "SIMULATED MODEL",
        "GENERATED DATA",
    ]
    assert further[2:5] == usual[:3]
    assert further[5].endswith("were rewarded on these tasks in training")
    assert further[6:] == ["few tasks", "a judge that is no person"]


def test_cautions_name_the_arms_that_are_simulated(tmp_path: Path) -> None:
    found = summary_of(tmp_path, judged(0), of=a_plan(arms=BOTH))
    one = replace(found, arms={name: replace(arm, simulated=name == BOTH[1]) for name, arm in found.arms.items()})
    every = replace(found, arms={name: replace(arm, simulated=None) for name, arm in found.arms.items()})

    assert one.cautions == [f"SIMULATED ARMS, {BOTH[1]}: their figures say nothing about any real model"]
    assert every.cautions == []
    assert replace(every, simulated=True).is_simulated(BOTH[0])


def test_truncated_replies_of_a_single_arm_are_told_without_its_name(tmp_path: Path) -> None:
    (caution,) = summary_of(tmp_path, judged(0, truncated="reasoning")).cautions

    assert caution.startswith("100.0% of the replies (1 of 1) were cut off by their length, 1 of them while")


def test_results_on_tasks_that_stand_apart_are_those_of_their_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict[str, list[tuple[str, str]]]()

    def parts_of(plan: Plan, of_arms: object, faults: object, apart: dict[str, list[Any]]) -> dict[str, Any]:
        given.update({name: [(each.arm, each.problem_id) for each in results] for name, results in apart.items()})
        return {}

    monkeypatch.setattr("koderz_tracker.summary.parts_of", parts_of)
    results = [judged(task, solver=arm) for task in (0, 5) for arm in BOTH]
    summary_of(tmp_path, *results, of=a_plan(6, arms=BOTH, apart=["T/5"], parts=["own"]))
    assert given == {arm: [(arm, "T/5")] for arm in BOTH}


# Figures


def test_figures_add_up_costs_tokens_tiers_and_causes(tmp_path: Path) -> None:
    found = summary_of(
        tmp_path,
        judged(0, True, cost=0.3, cost_by_tier={"local": 0.1, "spec": 0.2}, baseline_cost=1.0, iterations=3),
        judged(1, False, cost=0.1, baseline_cost=0.5, latency=1.5),
        judged(2, False, cost=0.2, baseline_cost=0.25, cost_known=False, cause="cpu", verdict="timeout"),
    ).summary

    assert found.total_cost == pytest.approx(0.6)
    assert found.avg_cost == pytest.approx(0.2)
    assert found.cost_per_success == pytest.approx(0.6)
    twice = summary_of(tmp_path / "twice", *(judged(task, cost=0.3) for task in range(2))).summary
    assert twice.cost_per_success == pytest.approx(0.3)
    assert found.cost_by_tier == pytest.approx({"local": 0.4, "checkpoint": 0.0, "spec": 0.2})
    assert (found.baseline_cost, found.cost_known) == (1.75, False)
    assert (found.tokens_in, found.tokens_out) == (21, 9)
    assert found.avg_iterations == pytest.approx(5 / 3)
    assert found.avg_latency == pytest.approx(2.5 / 3)
    assert found.verdicts == {"passed": 1, "failed": 1, "timeout": 1}
    assert found.causes == {"assertion": 1, "cpu": 1}


def test_baseline_unknown_for_some_is_unknown(tmp_path: Path) -> None:
    assert summary_of(tmp_path, judged(0, baseline_cost=1.0), judged(1)).summary.baseline_cost is None


def test_figures_of_nothing_are_costs_of_zero_and_no_averages() -> None:
    found = figures([])
    assert found.bounds_text == ""

    assert (found.total_problems, found.successes, found.total_cost, found.avg_cost) == (0, 0, 0.0, 0.0)
    assert (found.success_rate, found.avg_iterations, found.avg_latency) == (None, None, None)
    assert (found.success_rate_interval, found.cost_per_success, found.pass_at_k) == (None, None, {})


def test_interval_of_single_samples_is_wilsons_in_per_cent(tmp_path: Path) -> None:
    found = summary_of(tmp_path, *(judged(task, task < 8) for task in range(10)), of=a_plan(10)).summary

    assert found.success_rate_interval == pytest.approx((49.02, 94.33), abs=5e-3)


def results_of(tmp_path: Path, *tasks: str) -> Any:
    """Results by tasks, each a word of samples: `+-` passed once and failed once."""
    samples = max(map(len, tasks))
    records = [judged(i, mark == "+", sample=s) for i, word in enumerate(tasks) for s, mark in enumerate(word)]
    return summary_of(tmp_path, *records, of=a_plan(len(tasks), samples=samples)).summary


def test_samples_of_one_task_count_as_a_cluster(tmp_path: Path) -> None:
    """Wilson's interval of so many as would vary like the tasks' rates: 0.75, 0.5, 0, 1 and 0.25."""
    found = results_of(tmp_path, "+++-", "++--", "----", "++++", "-+--")

    of_mean = statistics.variance([0.75, 0.5, 0, 1, 0.25]) / 5
    size = 0.25 / of_mean * (1.959964 / 2.776445) ** 2  # Student's t with 4 degrees of freedom
    assert size < 5, "so it counts as one each"
    assert found.success_rate_interval == pytest.approx([100 * limit for limit in wilson(2.5, 5)])
    assert found.success_rate_interval_method == "Wilson, clustered by task"

    wide = success_interval([[True, False, True]] * 8 + [[True, True, False]] * 8 + [[True] * 3] * 2)
    apart = statistics.variance([2 / 3] * 16 + [1] * 2) / 18
    assert wide is not None
    assert effective_size(38 / 54 * 16 / 54, apart, 18, 54) == 54, "no more than there are"
    assert wide[0] == pytest.approx([100 * limit for limit in wilson(38, 54)])


@pytest.mark.parametrize("word", ["+++", "---"])
def test_interval_of_few_agreeing_samples_is_not_certain(tmp_path: Path, word: str) -> None:
    low, high = results_of(tmp_path, word).success_rate_interval

    assert high - low > 10


# pass@k


def test_pass_at_k_is_the_mean_over_tasks(tmp_path: Path) -> None:
    found = results_of(tmp_path, "+----", "+++++", "-----").pass_at_k

    assert found == pytest.approx({"pass@1": (1 / 5 + 1) / 3, "pass@2": (2 / 5 + 1) / 3, "pass@5": 2 / 3})


def test_pass_hat_k_stands_beside_pass_at_k_with_intervals(tmp_path: Path) -> None:
    found = results_of(tmp_path, "+----", "+++++", "-----")
    assert {name: each.value for name, each in found.pass_hat_k.items()} == pytest.approx(
        {"pass^1": (1 / 5 + 1) / 3, "pass^2": 1 / 3, "pass^5": 1 / 3}
    )
    assert found.pass_hat_k["pass^1"].interval == pytest.approx(
        [limit / 100 for limit in found.success_rate_interval or ()]
    )
    for each in found.pass_hat_k.values():
        assert each.interval
        assert each.interval[0] < each.value < each.interval[1]
    assert "pass^2 33.3% (95% interval" in found.samples_text
    assert results_of(tmp_path / "one", "+", "-").samples_text == ""
    assert "pass@2" in results_of(tmp_path / "two", "+-", "--").samples_text


def test_pass_at_k_is_limited_by_the_task_with_fewest_samples(tmp_path: Path) -> None:
    assert list(results_of(tmp_path, "+----", "++").pass_at_k) == ["pass@1", "pass@2"]


def test_pass_at_1_is_the_success_rate(tmp_path: Path) -> None:
    found = results_of(tmp_path, "+-+", "---", "++-")

    assert found.pass_at_k["pass@1"] == pytest.approx(found.success_rate / 100)
    assert pass_at_k_of([]) == {}
