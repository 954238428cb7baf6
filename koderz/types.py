"""The values that solvers, suites, models and sandboxes exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, cast

# a suite declares it, and the plan records it as it is
from koderz_tracker.records import Headline as Headline
from koderz_tracker.records import Measure as Measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import TypeVar

    P = TypeVar("P", default=Any)
else:
    from typing import TypeVar

    P = TypeVar("P")

Message = dict[str, Any]
"""A message of chat completions: `{"role": "system" | "user" | "assistant" | "tool", "content": text}`.

The content may also be a list of parts (`{"type": "text", "text": …}`, `{"type": "image_url", "image_url": {…}}`, or
`{"type": "reference", "name": …, "digest": …}` for a long text, which is recorded so and made when it is sent), or
None beside `tool_calls`; a tool's result has its `tool_call_id`. Every field is recorded, sent, and part of the key by
which a replay finds the reply.

Two roles are koderz' own, and stand first: `{"role": "tools", "content": [{"type": "function", "function": {name,
description, parameters}}, …]}` offers tools, and `{"role": "request", "content": None, "wire": …, "fields": …}` begins
what a client wrote on a wire of its own (see `koderz.models.clients`).
"""

REJECTED = "rejected"
"""The `finish_reason` if the server refuses a request that offers tools; the text holds the server's words."""

CONTEXT = "context"
"""The `finish_reason` if a prompt is longer than the model's context; the text holds the server's words."""

TIME = "time"
"""The `finish_reason` of a reply that didn't end in time, if that is the model's failure, and its verdict's cause."""

JUDGE = "judge"
"""The need of a task whose answers are programs: a place to run them."""

JUDGED = "judged.md"
"""The artifact that holds what a judge model saw of an answer, for people who judge it, too."""

NEEDS_REVIEW = "needs review"
"""The beginning of a verdict's note if somebody should examine it before it is believed."""

EXCLUSIVE = "exclusive"
"""The need of a task that has to be measured while nothing else is measured on the machine."""

PRIVACY = "privacy"
"""The need of a task whose text may be sent to models only, and is recorded in encrypted form."""

MAIN = "main"
"""The role of the model that answers. The models in a solver's other roles help it."""

SUB = "sub"
"""The role of the model that answers parts of the question, by default at the main model's address."""

SIMULATED = "simulated"
"""The model that needs no server. Its figures say nothing about any real model."""

NOBODY = "none"
"""The model of an arm that asks none."""

FeedbackKind = Literal["tests", "examples", "none"]
"""The feedback that a solver gets on a failure: the failing test, the task's own examples, or just the failure."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to think before it answers; models take some of these words."""

LENGTH_REASONING = "length_reasoning"
"""The cause of a verdict on a reply that ended by its length before the model had begun to answer."""

VerdictWord = Literal["passed", "failed", "timeout", "error"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling of a reply. None leaves the choice to the server."""

    temperature: float | None = None  # randomness, from 0 to 2
    max_tokens: int | None = None  # the maximum length of the reply
    top_p: float | None = None  # nucleus sampling, from 0 to 1
    seed: int | None = None  # the seed, for servers that take one
    stop: tuple[str, ...] = ()  # texts that end the reply
    # the JSON schema that the reply has to conform to
    response_format: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None  # how much the model should think: a word of `EFFORTS`
    reasoning_tokens: int | None = None  # the most that it may think, instead of an effort
    # merged into the request, whose own fields give way
    extra_body: Mapping[str, Any] | None = None

    @property
    def reasons(self) -> bool:
        """Whether it says how much the model should think."""
        return self.reasoning_effort is not None or self.reasoning_tokens is not None


@dataclass(frozen=True, slots=True)
class Completion:
    """One paid answer of a model, as received."""

    text: str
    reasoning: str = ""  # kept apart: a field of the wire or a leading <think> block
    tokens_in: int = 0
    tokens_out: int = 0  # reasoning included
    # of `tokens_out`, as the server counts them; None: it doesn't tell
    tokens_reasoning: int | None = None
    cost: float = 0.0  # US dollars
    cost_known: bool = True
    cost_source: str = ""  # how it is known: "server", "list", "own", "free" or "unknown"
    latency: float = 0.0  # seconds of the request that succeeded, without its retries
    finish_reason: str = "stop"  # "stop", "length", "refusal", or the provider's own word
    model: str = ""  # the model that the server says answered
    retries: int = 0
    throttled: int = 0  # how many of the tries before were refused for load, as with 429
    # what had to be changed for this model, e.g. "temperature dropped"
    adapted: tuple[str, ...] = ()
    raw: str | None = None  # the reply as sent, where `text` had a <think> block cut out of it
    # as chat completions have them: id, type, function{name, arguments}
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    body: str = ""  # the server's whole answer, where it is on the wire of the client that asked
    # the turn's items as sent, where later turns have to bring them along
    items: tuple[Mapping[str, Any], ...] = ()
    batch: dict[str, str] | None = None  # {id, custom_id} of the batch that it came in


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model that `ask` returns to a solver."""

    call: int  # from 1 within the experiment
    text: str  # the reply without its reasoning
    reasoning: str = ""  # the reasoning, if the server returns it
    tokens_in: int = 0  # tokens of the request
    tokens_out: int = 0  # tokens of the reply, reasoning included
    cost: float = 0.0  # US dollars
    finish_reason: str = "stop"  # "stop", "length", "refusal", or the provider's own word
    model: str = ""  # the model that the server says answered
    tool_calls: Sequence[Mapping[str, Any]] = ()  # as chat completions have them
    body: str = ""  # the server's whole answer, if it was passed on to a client as it is

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    @property
    def truncated(self) -> Literal["", "text", "reasoning"]:
        """The part that the limit of its length cut off: its text, or the thought before any text; empty if none."""
        if self.finish_reason != "length":
            return ""
        return "text" if self.text.strip() or self.tool_calls else "reasoning"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's verdict on one attempt, which `judge` returns to a solver."""

    verdict: str  # a VerdictWord, or one of the suite's own `words`
    # assertion, exception:TYPE, cpu, wall, memory, output, killed, syntax, no_code, …
    cause: str = ""
    feedback: str = ""  # what the model may be told; holds no hidden test unless the run allows it
    detail: str = ""  # the full explanation, for people
    program: str | None = None  # the program that was judged
    score: float | None = None  # from 0 to 1, if the suite grades
    metrics: dict[str, float] = field(default_factory=dict)  # numbers by name
    sandbox: str = ""  # what contained the program
    note: str = ""  # a remark of the solver on how it ended
    # further texts or bytes that the attempt left, by name
    artifacts: dict[str, Any] = field(default_factory=dict)
    passes: bool = False  # whether a word of the suite's own counts as passed
    # further facts: keys of the result in the summary
    facts: dict[str, Any] = field(default_factory=dict)
    tests_passed: int | None = None  # the number of `tests` that passed, if they were counted
    tests: int | None = None  # the number of tests, if they were counted
    tampering: tuple[str, ...] = ()  # signs of cheating that the judge saw; not recorded
    cost_known: bool = True  # whether every call that was paid for is on record

    @property
    def passed(self) -> bool:
        return self.passes or self.verdict == "passed"


_CUT = "The thinking used up the tokens of the reply, and no answer was begun. Think more briefly."

THOUGHT_CUT = Verdict("error", LENGTH_REASONING, feedback=_CUT, detail=_CUT)
"""The verdict on a reply that ended by its length before any text: its answer would have been anyone's guess."""


_CALL = (
    "The reply is a call of a tool, and holds no answer. Write the answer itself, without a call."
)

CALL_ALONE = Verdict("error", "tool_call", feedback=_CALL, detail=_CALL)
"""The verdict on a reply that is a call of a tool without a text."""


_TOO_LONG = "The prompt is longer than the model's context."

TOO_LONG = Verdict("failed", CONTEXT, feedback=_TOO_LONG, note=_TOO_LONG)
"""The verdict on a prompt that is longer than the model's context."""


_LATE = "The reply didn't end within the time that it had. Answer more briefly."

REPLY_LATE = Verdict("timeout", TIME, feedback=_LATE, detail=_LATE)
"""The verdict on a reply that didn't end in time, by `--timeout-is failure`."""


class Lesson(NamedTuple):
    """The lesson of an experiment, in words that hold neither a program nor a hidden test."""

    cause: str  # of the last failure before the attempt that passed
    text: str


class Expected(NamedTuple):
    """The calls that a solver expects to make of one role in one experiment, as the least and the most."""

    role: str
    calls: tuple[float, float]
    tokens_in: tuple[float, float]  # of all of them
    tokens_out: tuple[float, float]
    depth: int = 0  # of a recursion
    instead: str = ""  # the role that is asked where an arm has none such
    # calls and tokens in and out that are likely; None: unknown
    usual: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Task(Generic[P]):
    """One thing asked of a model. `payload` holds what only its suite understands."""

    id: str  # its name within the suite
    prompt: str = ""  # what is asked
    payload: P = field(repr=False, default=cast("P", None))  # data that only the suite understands
    # values that templates of prompts may contain
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    needs: frozenset[str] = frozenset({JUDGE})  # what has to be available to work on it
    digest: str = ""  # changes with everything that a verdict or a prompt may depend on
    # the length of texts that its messages only refer to, as far as it is known beforehand
    tokens: int = 0
    # properties by which results are broken down
    groups: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster: str = ""  # the text, repository, … that it shares with similar tasks; empty: none
    # whether its results count in no figure, and stand in a part of the summary
    apart: bool = False
    # whether koderz made it up, so that its figures don't belong beside published ones
    generated: bool = False
    # the first prompt, ready to be sent; made when the run is planned
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Judging:
    """The limits for judging one program with all its tests, and the kind of feedback on a failure."""

    timeout: float = 6.0  # CPU seconds
    memory_mb: int = 1024
    feedback: FeedbackKind = "tests"
    # CPU seconds of one call of the program; 0: no limit but that of all of them
    call_timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `missing` is fine for users who don't need the thing, `broken` is not."""

    what: str
    state: Literal["ok", "missing", "broken"]
    detail: str
    remedy: str = ""
