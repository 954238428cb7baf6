"""Results broken down by what their tasks have in common."""

from __future__ import annotations

from koderz_tracker.breakdown import Spread, breakdown
from koderz_tracker.records import Arm, Plan
from koderz_tracker.results import Result

TASKS = ["vt/1K/0", "cwe/1K/0", "vt/2K/0", "cwe/2K/0"]
PLAN = Plan(
    run_id="bench_0badcafe_20260101_000000",
    mode="comparative",
    arms=[Arm(name="direct", solver="direct"), Arm(name="rlm", solver="rlm")],
    tasks=TASKS,
    samples=1,
    config={},
    environment={},
    groups={"length": ["1K", "1K", "2K", "2K"], "task": ["vt", "cwe", "vt", "cwe"], "data": ["x"] * 4},
)


def result(task: str, arm: str, cost: float, *, success: bool = False) -> Result:
    return Result(problem_id=task, success=success, arm=arm, cost=cost, calls=int(10 * cost), score=cost)


def test_breakdown_has_a_slice_per_group_value_and_arm() -> None:
    direct = [result(task, "direct", 0.1 * n, success=n == 0) for n, task in enumerate(TASKS)]
    rlm = [result(TASKS[0], "rlm", 1.0, success=True)]
    found = breakdown(PLAN, {"direct": direct, "rlm": rlm})

    assert [(one.by, one.value, one.arm, one.results, one.successes) for one in found] == [
        ("", "", "direct", 4, 1),
        ("", "", "rlm", 1, 1),
        ("length", "1K", "direct", 2, 1),
        ("length", "1K", "rlm", 1, 1),
        ("length", "2K", "direct", 2, 0),
        ("task", "vt", "direct", 2, 1),
        ("task", "vt", "rlm", 1, 1),
        ("task", "cwe", "direct", 2, 0),
    ]
    assert (found[0].success_rate, found[0].calls) == (25.0, Spread(1.5, 3))
    assert found[0].score is not None
    assert round(found[0].score.mean, 9) == 0.15


def test_percentile_95_is_a_measured_value() -> None:
    plan = Plan(
        **{name: getattr(PLAN, name) for name in ("run_id", "mode", "arms", "samples", "config", "environment")},
        tasks=[f"vt/{n}" for n in range(100)],
    )
    found = breakdown(plan, {"rlm": [result(task, "rlm", float(n)) for n, task in enumerate(plan.tasks)]})

    assert found[0].cost == Spread(49.5, 94.0)
