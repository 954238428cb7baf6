"""pass@k, scores and their intervals, clustered by task."""

from __future__ import annotations

import pytest

from koderz.systems.rollouts.results.figures import CANARIES, FIGURES, canaries_line, lines_of
from koderz.testing import a_plan
from koderz_tracker.rates import pass_at_k, wilson
from koderz_tracker.results import Result
from koderz_tracker.summary import figures
from tests.tracker.builders import fault


def _results(scores: dict[str, list[float]]) -> list[Result]:
    return [
        Result(problem_id=task, success=score == 1, score=score, sample=sample)
        for task, own in scores.items()
        for sample, score in enumerate(own)
    ]


def _figures(scores: dict[str, list[float]]) -> dict[str, object]:
    return dict(FIGURES.summary(a_plan(1), {"codex": _results(scores), "empty": []})["codex"])


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
    found = FIGURES.summary(a_plan(1), {"codex": results})["codex"]
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
    (line,) = lines_of(FIGURES.summary(a_plan(1), {"codex": _results({"a": [1, 0.5], "b": [0, 0]})}))
    assert line.startswith("codex: score 0.38 on average (95% interval 0.03 to 0.91), 1.00 at best; pass@1 25.0% (95%")


def test_pass_hat_k_counts_tasks_that_always_pass() -> None:
    own = FIGURES.summary(a_plan(1), {"codex": _results({"a": [1, 1, 1], "b": [1, 1, 0], "c": [0, 0, 0]})})
    rates = own["codex"]["pass_hat_k"]
    assert [*rates] == ["pass^1", "pass^2", "pass^3"]
    assert [each["value"] for each in rates.values()] == pytest.approx([5 / 9, (1 + 1 / 3) / 3, 1 / 3])
    assert all(each["interval"][0] < each["value"] < each["interval"][1] for each in rates.values())
    (line,) = lines_of(own)
    assert "; pass^2 44.4% (95% interval " in line
    assert "pass^1" not in line


def test_faults_stand_apart_and_count_nothing_in_the_score_of_all() -> None:
    results = {"codex": _results({"a": [1, 1], "b": [0.5]}), "other": []}
    causes = ("unreachable", "judge", "image", "provider", "cost_cap")
    faults = [fault(1, solver="codex", cause=cause) for cause in causes]
    faults.append(fault(1, solver="other", cause="healthcheck"))
    found = FIGURES.with_faults(a_plan(1), FIGURES.summary(a_plan(1), results), results, faults)
    own = found["codex"]
    assert own["faults"] == {"provider": 2, "verifier": 1, "image": 1, "other": 1}
    assert (own["score"]["mean"], own["rollouts"]) == (pytest.approx(2.5 / 3), 3)
    assert (own["score_of_all"]["mean"], own["score_of_all"]["rollouts"]) == (pytest.approx(2.5 / 8), 8)
    assert found["other"]["score_of_all"]["mean"] == 0
    first, second = lines_of(found)
    assert first.endswith("faults: provider 2, verifier 1, image 1, other 1; score of all 0.31, where each counts 0")
    assert second == "other: faults: healthcheck 1; score of all 0.00, where each counts 0"
    without = FIGURES.with_faults(a_plan(1), FIGURES.summary(a_plan(1), results), results, [])
    assert without["codex"]["score_of_all"]["mean"] == without["codex"]["score"]["mean"]
    assert "faults" not in next(iter(lines_of(without)))


def test_canaries_are_counted_by_task_and_arm() -> None:
    results = {"codex": _results({"a#canary": [1, 0], "b#canary": [0, 0]}), "nop": _results({"a#canary": [0]}), "x": []}
    found = CANARIES.of_apart(a_plan(1), results)
    assert (found["tried"], found["passed"], found["rate"]) == (5, 1, 0.2)
    assert 0 <= found["interval"][0] < 0.2 < found["interval"][1] < 1
    assert found["tasks"] == {"a#canary": {"tried": 3, "passed": 1}, "b#canary": {"tried": 2, "passed": 0}}
    assert [*found["arms"]] == ["codex", "nop"]
    assert found["arms"]["nop"]["interval"] == pytest.approx(wilson(0, 1))
    assert canaries_line(found).startswith("canaries: 1 of 5 passed, 20.0% (95% interval ")
    assert CANARIES.of_apart(a_plan(1), {"codex": []}) == {}
    assert CANARIES.summary(a_plan(1), results) == {}


def test_figures_have_what_is_graded_only_as_published_apart() -> None:
    alone = [
        Result(problem_id="odd", success=success, score=float(success), sample=sample, facts={"published_only": True})
        for sample, success in enumerate([True, False])
    ]
    found = FIGURES.summary(a_plan(1), {"codex": [*_results({"a": [1, 1]}), *alone], "nop": alone})
    assert (found["codex"]["score"]["mean"], [*found["codex"]["tasks"]]) == (1, ["a"])
    apart = {"rollouts": 2, "successes": 1, "tasks": {"odd": {"rollouts": 2, "successes": 1}}}
    assert found["codex"]["published_only"] == apart
    assert found["nop"] == {"rollouts": 0, "published_only": apart}
    first, second = lines_of(found)
    assert first.endswith("; graded only as published, apart: 1 of 2 passed")
    assert second == "nop: graded only as published, apart: 1 of 2 passed"
