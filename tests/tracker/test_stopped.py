"""The summary of a run that stops once it is decided: its intervals, those of its parts, and its decision."""

from __future__ import annotations

from pathlib import Path

from koderz.testing import a_journal, a_plan
from koderz_tracker.basis import UntilDecided
from koderz_tracker.outline import is_decided, stopped_early, went_on
from koderz_tracker.records import Decision, Finished
from koderz_tracker.results import Result
from koderz_tracker.sequential import STOPS, settled_order, without_intervals
from koderz_tracker.sinks.mlflow.run import figures_file
from koderz_tracker.summary import Summary, summarize
from tests.tracker import builders

ARMS = ("zero-shot", "iterative")
ORDER = [f"T/{task}" for task in (4, 2, 0, 5, 1, 3)]


def stopped(results: Path, *extra: str) -> Summary:
    """A run of which four tasks were asked, T/4, T/2, T/0 and T/1, and three of them follow on each other."""
    about = UntilDecided(arm="zero-shot", order=ORDER)
    plan = a_plan(6, arms=ARMS, until_decided=about, compared=ARMS, parts=extra)
    ended = [builders.judged(task, arm == "iterative", solver=arm) for arm in ARMS for task in (4, 2, 0, 1)]
    decision = Decision(
        outcome="shown", a="zero-shot", b="iterative", tasks=3, planned=6, a_mean=0, b_mean=100, difference=100,
        interval=(1, 100), interval_method="betting", e_value=21, alpha=0.05,
    )  # fmt: skip
    return summarize(a_journal(results, *ended, decision, Finished(status="decided"), plan=plan))


def test_stopped_run_has_confidence_sequences_along_its_order(tmp_path: Path) -> None:
    summary = stopped(tmp_path)

    figures = summary.arms["iterative"].summary
    assert figures.total_problems == 4
    assert figures.success_rate_interval_method == "betting confidence sequence, valid at any stop"
    assert figures.success_rate_interval is not None
    assert 10 < figures.success_rate_interval[0] < 25  # of three tasks: T/1 isn't in the settled part of the order
    assert summary.decision is not None
    assert (summary.decision["outcome"], summary.decision["tasks"]) == ("shown", 3)
    assert is_decided(summary)
    assert stopped_early(summary.decision, went_on=went_on(summary)) == "stopped early: shown after 3 of 6"
    assert b'"passed_low": 0.1' in figures_file(summary, ["iterative"])


def test_parts_of_a_stopped_run_have_no_intervals(tmp_path: Path) -> None:
    summary = stopped(tmp_path, "rollouts")

    own = summary.parts["rollouts"]["iterative"]
    assert own["pass_at_k"] == {"pass@1": {"value": 1.0, "interval": None, "interval_method": STOPS}}
    assert own["score"]["interval"] is None


def test_parts_keep_all_but_their_intervals() -> None:
    part = {
        "items": [{"interval": [0, 1], "value": 2}], "exact_interval": {"1": [0, 1]},
        "exact_interval_method": {"1": "Gaffke"}, "intervals": 3,
    }  # fmt: skip

    assert without_intervals(part) == {
        "items": [{"interval": None, "value": 2}], "exact_interval": None, "exact_interval_method": STOPS,
        "intervals": 3,
    }  # fmt: skip


def test_settled_tasks_have_all_their_samples() -> None:
    about = UntilDecided(arm="a", order=ORDER, samples={"a": dict.fromkeys(ORDER, 2), "b": {"T/2": 1, "T/0": 1}})
    once = [Result(problem_id=task, success=True) for task in ORDER]

    assert settled_order(about, "a", once, ()) == []
    assert settled_order(about, "a", [*once, *once[:2]], ["T/0"]) == ["T/4", "T/2", "T/0"]
    assert settled_order(about, "b", once, ()) == ["T/2", "T/0"]
