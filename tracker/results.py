"""Results: judged experiments, as a summary has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from koderz_tracker.basis import Use

Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]

ANSWER = "answer"
"""The fact of a verdict that is the answer as it was read off the reply; None where none could be read."""

UNSAID = -1
"""A count that an older file doesn't have, until its reader supplies it."""


class Result(Struct, frozen=True, kw_only=True):
    """One judged experiment."""

    experiment_id: str = ""  # the id by which the journal has it
    problem_id: Annotated[str, Meta(min_length=1)]  # the task
    success: bool  # whether it passed
    iterations: Count = 1  # attempts
    cost: Amount = 0.0  # US dollars
    solver: str = ""  # the solver that worked on it
    arm: str = ""  # the arm that it belongs to
    model: str = ""  # the model in the role main
    sample: Count = UNSAID  # the number of the sample, from 0
    verdict: str = ""  # the verdict on its last attempt, in one word
    cause: str = ""  # why it failed; empty if it passed
    tokens: Count = UNSAID  # tokens in and out
    tokens_in: Count = 0  # tokens of all requests
    tokens_out: Count = 0  # tokens of all replies
    tokens_reasoning: Count | None = None  # the part of `tokens_out` spent on reasoning, as far as servers tell
    roles: Mapping[str, Use] | None = None  # calls and tokens by role, if other roles than main were asked
    calls: Count = UNSAID  # requests to models
    depth: Count = 0  # the depth that a recursion reached
    latency: Amount = 0.0  # seconds spent waiting for models
    duration_seconds: Amount = 0.0  # seconds of the session that ended it
    cost_known: bool = True  # whether the price of every call is known
    cost_by_tier: Mapping[str, float] | None = None  # US dollars by tier of models; null: all models are local
    score: float | None = None  # the score, from 0 to 1, if the suite gives one
    metrics: Mapping[str, float | None] | None = None  # by name; null as a value: not a number
    note: str = ""  # a remark of the solver on how it ended
    grades: Count = 0  # items that were graded within it
    facts: Mapping[str, Any] = {}  # further facts from its suite; in JSON they are keys beside the others
    resources: Mapping[str, Any] | None = None  # limits that held, those `asked` for, and how each was `enforced`
    answer: str | UnsetType | None = UNSET  # as read off the reply; null: unreadable; absent: never read
    truncated: str = ""  # the cut-off part of the last judged reply, "text" or "reasoning"; absent if none
    reused_calls: Count = 0  # calls that replies on record of other runs answered; absent if none
    saved_cost: Amount = 0.0  # US dollars that those replies cost then; absent if none
    reused: Mapping[str, Sequence[Count]] = {}  # the numbers of those replies' calls, by RUN/EXPERIMENT; absent if none
    untold: Sequence[str] = ()  # of cost, tokens, iterations and latency what another tool's log lacks; absent if none
    cluster: str = ""  # the text, passage or repository that its task shares with others; absent if none


def untold(results: Sequence[Result]) -> frozenset[str]:
    """The quantities that none of the results tells."""
    names = (result.untold for result in results)
    return frozenset(next(names, ())).intersection(*names)
