"""Scores of rubrics, computed as in OneShot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from koderz.systems.rollouts.task import Rollout
from koderz.systems.workspaces.scripts import ScriptResult


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores from results of scripts, or from a reward."""

    evaluation: Mapping[str, Any]  # rubrics, total_score, max_score
    total_score: float  # sum of weight × score over the sum of weights; a rubric without tests counts as 0
    score_of_graded: float | None  # the same over the rubrics with tests; None where there is none
    success: bool  # every script of a rubric with a weight passed, and there is one


def scored(task: Rollout, results: Sequence[ScriptResult]) -> Scored:
    """The scores of a task from the `results` of its scripts, in their order."""
    scores: dict[str, tuple[float | None, int, int]] = {}
    for rubric in task.rubrics:
        own = [each for script, each in zip(task.scripts, results, strict=True) if script.rubric_id == rubric.id]
        passed = sum(each.success for each in own)
        scores[rubric.id] = (passed / len(own) if own else None, len(own), passed)
    weights = {rubric.id: rubric.weight for rubric in task.rubrics}
    deciding = [
        each.success for script, each in zip(task.scripts, results, strict=True) if weights[script.rubric_id] > 0
    ]
    return _summed(task, scores, success=bool(deciding) and all(deciding))


def rewarded(task: Rollout, rewards: Mapping[str, float]) -> Scored:
    """The scores of a task whose verifier gives rewards: their mean. It succeeds if all are 1."""
    score = sum(rewards.values()) / len(rewards)
    passed = sum(reward == 1 for reward in rewards.values())
    return _summed(task, {task.rubrics[0].id: (score, len(rewards), passed)}, success=passed == len(rewards))


def expected(task: Rollout, holds: Sequence[bool]) -> Scored:
    """The scores of a skill's eval by whether each of its expectations holds. It succeeds if all do."""
    scores = {rubric.id: (float(each), 0, 0) for rubric, each in zip(task.rubrics, holds, strict=True)}
    return _summed(task, scores, success=all(holds))


def _summed(task: Rollout, scores: Mapping[str, tuple[float | None, int, int]], *, success: bool) -> Scored:
    rubrics: dict[str, dict[str, Any]] = {}
    for rubric in task.rubrics:
        score, tests, passed = scores[rubric.id]
        rubrics[rubric.id] = {
            "criterion": rubric.criterion,
            "weight": rubric.weight,
            "score": score,
            "max_score": 1.0,
            "weighted_score": None if score is None else score * rubric.weight,
            "test_count": tests,
            "tests_passed": passed,
        }
    gained = sum(each["weighted_score"] or 0.0 for each in rubrics.values())
    weight = sum(rubric.weight for rubric in task.rubrics)
    graded = [each for each in rubrics.values() if each["score"] is not None]
    of_graded = sum(each["weight"] for each in graded)
    total = gained / weight if weight else 0.0
    evaluation = {"rubrics": rubrics, "total_score": total, "max_score": 1.0}
    return Scored(evaluation, total, gained / of_graded if of_graded else None, success)
