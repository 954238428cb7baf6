"""A model's review of a patch, and ISO-Bench's quadrants, which never change the measured verdict.

Source of the quadrants: arXiv 2602.19594. Where a patch makes its task faster by 5 % or more, it is a true success (Q1)
or a lucky win (Q3), as it does or doesn't change what had to be changed; else of good intent (Q2), or a failure (Q4).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from koderz.suites.reviews import reviewed
from koderz.systems.patches.tasks import PerfTask
from koderz.types import Reply, Verdict

QUADRANTS = ("Q1", "Q2", "Q3", "Q4")

_FASTER = 1.05  # than base, surely
_APPROACHES = ("same", "similar", "other")
_ASKED = (
    "You review a patch that is to make a repository faster, beside what a human did. right_target: does it change "
    "what makes the code slow, which is what the human's answer changes? approach: how near is its way to the human's? "
    "What was measured of it doesn't concern you."
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "right_target": {"type": "boolean"},
        "approach": {"enum": [*_APPROACHES]},
        "reasoning": {"type": "string"},
    },
    "required": ["right_target", "approach", "reasoning"],
}


async def with_review(verdict: Verdict, task: PerfTask, patch: str, ask: Callable[..., Awaitable[Reply]]) -> Verdict:
    """The verdict with `review` and `quadrant` among its facts; both are null if there is no usable review.

    A patch is reviewed once in an experiment, whatever is measured of it.
    """
    texts = {"Task": task.prompt, "The human's answer": task.human_patch or "(not shown)", "The patch": patch}
    known_by = hashlib.sha256(patch.encode("utf-8", "backslashreplace")).hexdigest()
    said = await reviewed(ask, _ASKED, texts, _SCHEMA, known_by=known_by)
    right, approach, why = (said.get(name) for name in _SCHEMA["required"])
    if not isinstance(right, bool):
        return replace(verdict, facts={**verdict.facts, "review": None, "quadrant": None})
    review = {
        "right_target": right,
        "approach": approach if approach in _APPROACHES else None,
        "reasoning": why if isinstance(why, str) else "",
    }
    quadrant = QUADRANTS[(0 if right else 2) if is_faster(verdict) else (1 if right else 3)]
    return replace(verdict, facts={**verdict.facts, "review": review, "quadrant": quadrant})


def is_faster(verdict: Verdict) -> bool:
    """Whether the patch works and is certainly faster than base by ISO-Bench's 5 %."""
    sound = verdict.facts["status"] == "passed" and not verdict.facts["hack"]
    return sound and verdict.metrics.get("speedup_base_low", 0.0) >= _FASTER


def is_for_judge(text: str) -> bool:
    return text.startswith(_ASKED)


def simulated_review() -> str:
    """The simulated model's review, the same for every patch."""
    said: dict[str, Any] = {"right_target": True, "approach": "similar", "reasoning": "Made up by the simulated model."}
    return json.dumps(said)
