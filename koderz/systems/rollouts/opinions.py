"""A model's opinion of a diff, by rubric, reported beside the tests' verdict without changing it."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from koderz.suites.reviews import LONGEST, reviewed
from koderz.systems.rollouts.tasks import Rollout, Rubric
from koderz.types import Reply

_SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "reasoning": {"type": "string"},
        "evidence": {"type": "string"},
        "suggestions": {"type": "string"},
    },
    "required": ["score", "reasoning"],
}
_ASKED = "You grade what a programmer changed in a repository, by one criterion."
_TEXTS = ("reasoning", "evidence", "suggestions")


async def opinions(task: Rollout, diff: str, ask: Callable[..., Awaitable[Reply]]) -> dict[str, Any]:
    """The `lm_evaluation`: a score from 0 to 1 by rubric, and their weighted mean; null if the model gives none."""
    scores = [await _opinion(task, rubric, diff, ask) for rubric in task.rubrics]
    scored = [(rubric.weight, each["score"]) for rubric, each in zip(task.rubrics, scores, strict=True)]
    known = [(weight, score) for weight, score in scored if score is not None]
    weight = sum(weight for weight, _ in known)
    return {
        "weighted_score": sum(weight * score for weight, score in known) / weight if weight else None,
        "rubric_scores": scores,
        "summary": f"{len(known)} of {len(scores)} rubrics have a score",
        "metadata": {"diff_cut": len(diff) > LONGEST},
    }


async def _opinion(task: Rollout, rubric: Rubric, diff: str, ask: Callable[..., Awaitable[Reply]]) -> dict[str, Any]:
    told = f"# Task\n{task.instructions}\n\n# Criterion\n{rubric.criterion or rubric.id}"
    said = await reviewed(ask, _ASKED, {"Diff": diff}, _SCHEMA, told=told)
    score = said.get("score")
    usable = isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score) and 0 <= score <= 1
    texts = {name: said[name] if isinstance(said.get(name), str) else "" for name in _TEXTS}
    return {"rubric_id": rubric.id, "score": float(score or 0) if usable else None, **texts}


def is_for_judge(text: str) -> bool:
    return text.startswith(_ASKED)


def simulated_opinion() -> str:
    """The simulated model's opinion, the same for every diff."""
    said: Mapping[str, Any] = {"score": 0.5, "reasoning": "Made up by the simulated model."}
    return json.dumps(said)
