"""A model's opinion of a diff, by rubric, reported beside the tests' verdict without changing it.

Where a skill's eval has no tests, it is the verdict: whether each of its expectations holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from koderz.suites.reviews import LONGEST, reviewed
from koderz.systems.rollouts.task import Rollout, Rubric
from koderz.types import Reply

_SCHEMA: Mapping[str, Any] = {
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
_EXPECTATION: Mapping[str, Any] = {
    "type": "object",
    "properties": {"passed": {"type": "boolean"}, "evidence": {"type": "string"}},
    "required": ["passed", "evidence"],
}
_ASKED_EXPECTATION = (
    "You judge whether an agent's work meets one criterion. It does only where the diff or the message show it, in "
    "substance and not in form alone; without evidence it doesn't. Quote the evidence."
)
_TEXTS = ("reasoning", "evidence", "suggestions")


async def opinions(task: Rollout, diff: str, ask: Callable[..., Awaitable[Reply]], message: str = "") -> dict[str, Any]:
    """The `lm_evaluation`: a score from 0 to 1 by rubric, and their weighted mean; null if the model gives none.

    Those of a skill's eval are 0 or 1 for each expectation, by the diff and the agent's last `message`.
    """
    rubrics, texts = task.rubrics, {"Diff": diff}
    if task.skill_eval:
        rubrics = tuple(Rubric(str(number), text) for number, text in enumerate(task.skill_eval.expectations, 1))
        texts["Message"] = message
    scores = [await _opinion(task, rubric, texts, ask) for rubric in rubrics]
    scored = [(rubric.weight, each["score"]) for rubric, each in zip(rubrics, scores, strict=True)]
    known = [(weight, score) for weight, score in scored if score is not None]
    weight = sum(weight for weight, _ in known)
    return {
        "weighted_score": sum(weight * score for weight, score in known) / weight if weight else None,
        "rubric_scores": scores,
        "summary": f"{len(known)} of {len(scores)} rubrics have a score",
        "metadata": {"diff_cut": len(diff) > LONGEST},
    }


async def _opinion(
    task: Rollout, rubric: Rubric, texts: Mapping[str, str], ask: Callable[..., Awaitable[Reply]]
) -> dict[str, Any]:
    told = f"# Task\n{task.instructions}\n\n# Criterion\n{rubric.criterion or rubric.id}"
    asked, schema, about = _ASKED, _SCHEMA, dict[str, str]()
    if of := task.skill_eval:
        asked, schema, about = _ASKED_EXPECTATION, _EXPECTATION, {"expectation": rubric.criterion}
        told += f"\n\n# Expected output\n{of.expected_output}" if of.expected_output else ""
    said = await reviewed(ask, asked, texts, schema, told=told)
    score: Any = said.get("passed" if of else "score")
    is_of_kind = isinstance(score, int | float) and isinstance(score, bool) == bool(of)
    usable = is_of_kind and math.isfinite(score) and 0 <= score <= 1
    words = {name: said[name] if isinstance(said.get(name), str) else "" for name in _TEXTS}
    return {"rubric_id": rubric.id, "score": float(score or 0) if usable else None, **about, **words}


def is_for_judge(text: str) -> bool:
    return text.startswith((_ASKED, _ASKED_EXPECTATION))


def simulated_opinion(text: str) -> str:
    """The simulated model's opinion in answer to a request that begins so, the same for every diff."""
    about: Mapping[str, Any] = {"passed": True} if text.startswith(_ASKED_EXPECTATION) else {"score": 0.5}
    return json.dumps({**about, "reasoning": "Made up by the simulated model."})
