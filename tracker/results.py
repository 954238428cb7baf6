"""Results: judged experiments, as a summary has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from koderz_tracker.basis import Use

Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]

ANSWER = "answer"
"""The fact of a verdict that is the answer as it was read off the reply; None where none could be read."""

UNSAID = -1
"""A count that an older file doesn't have, until its reader supplies it."""


class Result(Struct, frozen=True, kw_only=True):
    """One judged experiment."""

    experiment_id: str = ""
    problem_id: Annotated[str, Meta(min_length=1)]
    success: bool
    iterations: Count = 1
    cost: Amount = 0.0  # US dollars
    solver: str = ""
    arm: str = ""
    model: str = ""
    sample: Count = UNSAID
    verdict: str = ""
    cause: str = ""
    tokens: Count = UNSAID
    tokens_in: Count = 0
    tokens_out: Count = 0
    tokens_reasoning: Count | None = None  # of `tokens_out`, as far as servers tell
    roles: Mapping[str, Use] | None = None  # calls and tokens by role, where main isn't the only one
    calls: Count = UNSAID
    depth: Count = 0
    latency: Amount = 0.0  # seconds spent waiting for models
    duration_seconds: Amount = 0.0
    cost_known: bool = True
    cost_by_tier: Mapping[str, float] | None = None
    score: float | None = None
    metrics: Mapping[str, float | None] | None = None  # None: no number
    note: str = ""
    grades: Count = 0
    facts: Mapping[str, Any] = {}  # what else its suite tells of it; in JSON they are keys beside the others
    resources: Mapping[str, Any] | None = None  # that held for it, with what was `asked` and how it was `enforced`
    answer: str | UnsetType | None = UNSET  # as read off the reply; None: it can't be read; unset: nothing is read
    truncated: str = ""  # what of its last judged reply was cut off: "text", or "reasoning"; in JSON only if anything
    cluster: str = ""  # what its task shares with others, see `tracker.clusters`; in JSON only where there is one
