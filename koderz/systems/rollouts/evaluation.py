"""The results of a task's tests, as an attempt's record has them in the artifact `evaluation_results.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

ARTIFACT = "evaluation_results.json"

Rewards = Mapping[str, float]


class Evaluation(TypedDict, total=False):
    """The results of a task or a step; see `docs/rollouts/reference.md`. Early records lack some of them."""

    task_id: str
    total_score: float
    score_of_graded: float | None
    evaluation: Mapping[str, Any]  # rubrics, total_score, max_score
    test_results: Mapping[str, Mapping[str, Any]]  # success and output, by path
    diff_lines: int
    tampering: Sequence[str]
    graded: str
    rewards: Rewards
    steps: Sequence[Mapping[str, Any]]  # name and rewards of each
    published: Mapping[str, Any] | None  # success and rewards, where the agent worked
    isolation: str
    carried: str
    lifted: Sequence[str]
    environment: str
    prompt: str
    verifier_tools: str
    verifier_environment_mode: str
    standard_metrics: Mapping[str, Any] | None
    custom_metrics: Mapping[str, Any] | None
    lm_evaluation: Mapping[str, Any] | None
    resources: Mapping[str, Any]


def recorded(evaluation: Evaluation) -> dict[str, str]:
    """The artifact of an evaluation."""
    return {ARTIFACT: json.dumps(evaluation, indent=2)}


def evaluation_in(artifacts: Mapping[str, object]) -> Evaluation:
    """The evaluation among artifacts; empty if there is none, or its file in blobs/ is lost."""
    try:
        found = json.loads(str(artifacts.get(ARTIFACT)))
    except ValueError:
        found = None
    return cast("Evaluation", found if isinstance(found, dict) else {})
