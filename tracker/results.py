"""Results: judged experiments, as a summary has them, and replies of which figures tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    # the part of `tokens_out` spent on reasoning, as far as servers tell
    tokens_reasoning: Count | None = None
    # calls and tokens by role, if other roles than main were asked
    roles: Mapping[str, Use] | None = None
    calls: Count = UNSAID  # requests to models
    depth: Count = 0  # the depth that a recursion reached
    latency: Amount = 0.0  # seconds spent waiting for models
    duration_seconds: Amount = 0.0  # seconds of the session that ended it
    cost_known: bool = True  # whether the price of every call is known
    # US dollars by tier of models; null: all models are local
    cost_by_tier: Mapping[str, float] | None = None
    score: float | None = None  # the score, from 0 to 1, if the suite gives one
    metrics: Mapping[str, float | None] | None = None  # by name; null as a value: not a number
    note: str = ""  # a remark of the solver on how it ended
    grades: Count = 0  # items that were graded within it
    # further facts from its suite; in JSON they are keys beside the others
    facts: Mapping[str, Any] = {}
    # limits that held, those `asked` for, and how each was `enforced`
    resources: Mapping[str, Any] | None = None
    # as read off the reply; null: unreadable; absent: never read
    answer: str | UnsetType | None = UNSET
    # the cut-off part of the last judged reply, "text" or "reasoning"; absent if none
    truncated: str = ""
    reused_calls: Count = 0  # calls that replies on record of other runs answered; absent if none
    saved_cost: Amount = 0.0  # US dollars that those replies cost then; absent if none
    # the numbers of those replies' calls, by RUN/EXPERIMENT; absent if none
    reused: Mapping[str, Sequence[Count]] = {}
    # of cost, tokens, iterations and latency what another tool's log lacks; absent if none
    untold: Sequence[str] = ()
    # the text, passage or repository that its task shares with others; absent if none
    cluster: str = ""


def untold(results: Sequence[Result]) -> frozenset[str]:
    """The quantities that none of the results tells."""
    names = (result.untold for result in results)
    return frozenset(next(names, ())).intersection(*names)


_MOST_TRUNCATED = 2.0  # per cent
_MOST_ENDS = 5  # words by which replies ended


@dataclass(frozen=True, slots=True)
class UnreadAnswers:
    """The replies in which no answer was found, or several."""

    count: int
    rate: float  # per cent of the results

    @property
    def text(self) -> str:
        """The share and the number, as text for people."""
        return f"unread {self.rate:.1f}% ({self.count})"


@dataclass(frozen=True, slots=True)
class Truncated:
    """The judged replies that ended by their length: within a text, and before there was any."""

    text: int = 0
    reasoning: int = 0

    def note(self, results: int) -> str:
        """A warning where they are more than 2 % of the results; empty otherwise."""
        count = self.text + self.reasoning
        if not results or 100 * count / results <= _MOST_TRUNCATED:
            return ""
        thought = (
            f", {self.reasoning} of them while the model still thought" if self.reasoning else ""
        )
        share = f"{100 * count / results:.1f}% of the replies ({count} of {results})"
        return f"{share} were cut off by their length{thought}: raise --max-tokens"


def told_ends(unknown: Mapping[str, int]) -> Iterator[str]:
    """Sentences on the replies that ended by words that koderz doesn't know, the commonest words first."""
    ends = sorted(unknown.items(), key=lambda end: (-end[1], end[0]))
    shown, rest = ends[:_MOST_ENDS], sum(count for _, count in ends[_MOST_ENDS:])
    for word, count in [*((repr(word), count) for word, count in shown), ("other words", rest)]:
        if count:
            yield f"{count} {'reply' if count == 1 else 'replies'} ended by {word}, which koderz doesn't know"


def told_reuse(calls: int, dollars: float) -> str:
    """The number of calls that replies of other runs answered, and what these had cost; empty if there are none."""
    if not calls:
        return ""
    return f"{calls:,} call{'s' * (calls > 1)} answered by replies of other runs, which saved ${dollars:.4f}"
