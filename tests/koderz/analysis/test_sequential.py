"""What is said of decisions that hold at any stop: who wins, by how much, and what stays open."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koderz.analysis.compare import compare_as_if_stopped
from koderz.analysis.sequential import decision_lines, regressions, sentence
from koderz.errors import KoderzError
from koderz_tracker.records import Measure
from koderz_tracker.summary import Summary
from tests.koderz.analysis import builders
from tests.koderz.analysis.test_stopped import stopping

SURE = "(95 %, valid at any stop)"
A_WINS = {"interval": (-100.0, -60.0), "difference": -100.0, "a_mean": 100.0, "b_mean": 0.0}


def decision(**more: Any) -> dict[str, Any]:
    """A decision that B is better by 60 to 100 points, but for `more`."""
    return {**stopping()["decision"], **more}


def summary(paid: float = 0.0, max_cost: float | None = None, **more: Any) -> Summary:
    """What is read of the summary of a run with such a decision."""
    cost = Measure(name="cost", direction="lower", unit="usd")
    about = {"measures": [cost], "results": [], "faults": [], "planned": 80}
    config = {"max_cost": max_cost}
    return cast(
        "Summary",
        SimpleNamespace(decision=decision(**more), paid={"total": paid} if paid else {}, config=config, **about),
    )


@pytest.mark.parametrize(
    ("more", "lower_is_better", "said"),
    [
        ({}, False, f"B beats A by 60.0 to 100.0 points {SURE}: 100.0 against 0 % on 12 of 40 tasks."),
        (A_WINS, False, f"A beats B by 60.0 to 100.0 points {SURE}: 100.0 against 0 % on 12 of 40 tasks."),
        ({"measure": "cost"}, True, f"A beats B by 60.0 to 100.0 in cost {SURE}: 0 against 100 on 12 of 40 tasks."),
        (
            {"outcome": "similar", "margin": 5.0, "interval": (-2.0, 0.04)},
            False,
            f"Similar within 5.0 points: B − A is between −2.0 and +0.04 points {SURE}, on 12 of 40 tasks.",
        ),
        (
            {"outcome": "tasks", "interval": (0.0, 0.05)},
            False,
            f"Not shown: B − A is between +0 and +0.1 points {SURE}, on 12 of 40 tasks; no task is left.",
        ),
        (
            {"outcome": "money", "interval": None},
            False,
            "Not shown: no task is counted of 40, and the cost cap is reached.",
        ),
    ],
)
def test_decision_is_one_sentence(more: dict[str, Any], *, lower_is_better: bool, said: str) -> None:
    assert sentence(decision(**more), lower_is_better=lower_is_better) == said


@pytest.mark.parametrize(
    ("more", "worse"),
    [
        ({}, []),
        (A_WINS, ["iterative"]),
        ({**A_WINS, "outcome": "tasks"}, []),
        ({**A_WINS, "interval_bounds": (1.0, 2.0)}, []),
        ({"measure": "cost"}, ["iterative"]),
        ({**A_WINS, "measure": "cost"}, []),
    ],
)
def test_regression_is_an_arm_that_is_shown_to_be_worse(more: dict[str, Any], worse: list[str]) -> None:
    assert regressions(summary(**more)) == worse


def test_decision_says_what_pairs_left_out_could_change() -> None:
    first, _, *last = decision_lines(summary())
    assert (first, last) == ("A: zero-shot; B: iterative", ["Stopped there: 28 tasks saved, which cost nothing."])

    more: dict[str, Any] = {
        "outcome": "tasks",
        "left_out": {"iterative": 2},
        "interval_bounds": (-5.0, 100.0),
        "holds": False,
    }
    for e_value, turned in ((20.0, ["Without them a difference would be shown; they could turn it."]), (19.9, [])):
        lines = [*decision_lines(summary(**more, e_value=e_value))]
        assert lines[2:-1] == [
            "Left out after a retry: 2 since iterative could not be judged.",
            "The interval holds whatever they would have been.",
            *turned,
            "If all pairs left out spoke against it, the difference would not be shown.",
        ]


def test_decision_of_an_older_version_has_no_caveats() -> None:
    recorded = {name: value for name, value in decision().items() if name not in ("holds", "left_out")}
    told = SimpleNamespace(**{**vars(summary()), "decision": recorded})
    assert len([*decision_lines(cast("Summary", told))]) == 3


@pytest.mark.parametrize(
    ("paid", "cap", "saved", "said"),
    [
        (0.0, None, 0, "28 tasks saved, which cost nothing"),
        (0.0, 2.0, 0, "$0.00 of $2.00 spent, about $0.00 saved"),
        (1.0, 2.0, 0.1, "$1.00 of $2.00 spent, about $0.10 saved"),
        (0.05, None, 0.099, "$0.0500 spent, about $0.0990 saved"),
    ],
)
def test_decision_says_what_it_cost_and_saved(paid: float, cap: float | None, saved: float, said: str) -> None:
    *_, last = decision_lines(summary(paid, cap, cost_saved=saved))
    assert last == f"Stopped there: {said}."


@pytest.mark.parametrize(
    ("left_out", "said"), [(2, "26 tasks saved, which cost nothing"), (28, "nothing saved"), (40, "nothing saved")]
)
def test_decision_saves_no_pair_that_was_left_out(left_out: int, said: str) -> None:
    *_, last = decision_lines(summary(left_out={"iterative": left_out}))
    assert last.endswith(f" there: {said}.")


@pytest.mark.parametrize(("a_passes", "difference"), [(False, 100.0), (True, -100.0)])
def test_sequential_difference_is_b_less_a(tmp_path: Path, *, a_passes: bool, difference: float) -> None:
    builders.write(tmp_path / f"{builders.RUN}.json", builders.comparative([a_passes] * 40, [not a_passes] * 40))

    found = compare_as_if_stopped([builders.RUN], tmp_path).found()["sequential"]

    assert (found["outcome"], found["difference"], found["b_mean"] - found["a_mean"]) == (
        "shown",
        difference,
        difference,
    )
    assert found["interval"][0 if a_passes else 1] == difference


def scored(folder: Path, a: float, b: float) -> None:
    """A complete run whose arms have these scores on each of 40 tasks."""
    document = builders.comparative([False] * 40, [True] * 40)
    for arm, score in (("zero_shot", a), ("iterative", b)):
        for row in document[arm]["results"]:
            row["score"] = score
    builders.write(folder / f"{builders.RUN}.json", document)


def test_sequential_difference_is_in_the_unit_of_its_measure(tmp_path: Path) -> None:
    scored(tmp_path, 0.75, 0.125)

    found = compare_as_if_stopped([builders.RUN], tmp_path, measure="score").found()["sequential"]

    assert (found["a_mean"], found["b_mean"], found["difference"]) == (0.75, 0.125, -0.625)
    assert -1 <= found["interval"][0] < -0.625 < found["interval"][1] < 0


def test_sequential_refuses_values_outside_of_bounds(tmp_path: Path) -> None:
    scored(tmp_path, 1.5, 0.5)
    with pytest.raises(KoderzError, match="lies outside of its bounds, 0 to 1"):
        compare_as_if_stopped([builders.RUN], tmp_path, measure="score")
