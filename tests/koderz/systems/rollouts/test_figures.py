"""pass@k, scores and their intervals, clustered by task."""

from __future__ import annotations

import pytest

from koderz.systems.rollouts.figures import FIGURES, told
from tests.tracker.builders import plan
from tracker.rates import pass_at_k, wilson
from tracker.results import Result
from tracker.summary import figures


def _results(scores: dict[str, list[float]]) -> list[Result]:
    return [
        Result(problem_id=task, success=score == 1, score=score, sample=sample)
        for task, own in scores.items()
        for sample, score in enumerate(own)
    ]


def _figures(scores: dict[str, list[float]]) -> dict[str, object]:
    return dict(FIGURES.summary(plan(1), {"codex": _results(scores), "empty": []})["codex"])


def test_pass_at_k_is_told_up_to_the_fewest_rollouts() -> None:
    found = _figures({"a": [1, 0, 0.5], "b": [1, 1, 1, 0]})
    rates = found["pass_at_k"]
    assert isinstance(rates, dict)
    assert [*rates] == ["pass@1", "pass@2", "pass@3"]
    assert rates["pass@2"]["value"] == pytest.approx((pass_at_k(3, 1, 2) + pass_at_k(4, 3, 2)) / 2)
    low, high = rates["pass@1"]["interval"]
    assert 0.05 < low < 0.2  # two tasks say little
    assert 0.8 < high < 0.98
    assert found["rollouts"] == 7
    score = found["score"]
    assert isinstance(score, dict)
    assert (score["mean"], score["max"]) == (pytest.approx(4.5 / 7), 1)
    assert found["tasks"] == {
        "a": {"rollouts": 3, "successes": 1, "score_mean": 0.5, "score_max": 1},
        "b": {"rollouts": 4, "successes": 3, "score_mean": 0.75, "score_max": 1},
    }


def test_pass_at_1_has_the_interval_of_the_success_rate() -> None:
    results = _results({"a": [1, 1, 1, 0], "b": [1, 1, 1, 1], "c": [0, 1, 1, 0]})
    found = FIGURES.summary(plan(1), {"codex": results})["codex"]
    rate = figures(results)
    assert rate.success_rate_interval
    assert found["pass_at_k"]["pass@1"]["interval"] == pytest.approx([x / 100 for x in rate.success_rate_interval])
    assert found["pass_at_k"]["pass@1"]["interval_method"] == rate.success_rate_interval_method
    assert found["score"]["interval"] == pytest.approx(found["pass_at_k"]["pass@1"]["interval"])  # it is that rate


def test_twenty_of_twenty_is_no_certainty() -> None:
    found = _figures({f"t{number}": [1, 1] for number in range(20)})
    rates = found["pass_at_k"]
    assert isinstance(rates, dict)
    for name in ("pass@1", "pass@2"):
        low, high = rates[name]["interval"]
        assert 0.8 < low < 0.9
        assert high == 1


def test_interval_of_one_task_is_wilsons() -> None:
    rates = _figures({"a": [1, 0, 0, 0]})["pass_at_k"]
    assert isinstance(rates, dict)
    low, high = wilson(1, 4)
    assert rates["pass@1"]["interval"] == pytest.approx((low, high))
    assert rates["pass@2"]["interval"] == pytest.approx((1 - (1 - low) ** 2, 1 - (1 - high) ** 2))


def test_intervals_are_repeatable_and_hold_the_rate() -> None:
    scores = {f"t{number}": [float(number % 3 == 0), float(number % 2), 0.25] for number in range(30)}
    assert _figures(scores) == _figures(scores)
    rate = _figures(scores)["pass_at_k"]
    assert isinstance(rate, dict)
    low, high = rate["pass@1"]["interval"]
    assert low < rate["pass@1"]["value"] < high


def test_figures_have_a_line_per_arm() -> None:
    (line,) = told(FIGURES.summary(plan(1), {"codex": _results({"a": [1, 0.5], "b": [0, 0]})}))
    assert line.startswith("codex: score 0.38 on average (95% interval 0.03 to 0.91), 1.00 at best; pass@1 25.0% (95%")
