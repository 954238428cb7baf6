"""Calls of solvers and their answers, and conversion between the values of handles and their records."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import orjson

from koderz.errors import Fault
from koderz.experiments.experiment import Ledger
from koderz.plans.plan import Identity
from koderz.solvers.handles import AskHandle
from koderz.types import Completion, Message, Reply, Sampling, Task, Verdict
from koderz_tracker import records
from koderz_tracker.records import Blob, Text

_OF_COMPLETION = (
    "reasoning", "tokens_in", "tokens_out", "tokens_reasoning", "cost", "cost_known", "cost_source", "latency",
    "finish_reason", "retries", "adapted", "throttled", "batch",
)  # fmt: skip
_OF_REPLY = ("call", "tokens_in", "tokens_out", "cost", "finish_reason", "tool_calls")
_AS_IT_IS = ("verdict", "cause", "score", "metrics", "sandbox", "passes", "facts")
OF_VERDICT = ("program", "feedback", "detail", *_AS_IT_IS)


@dataclass(frozen=True, slots=True)
class Ask:
    """One call as the solver asked for it, before any adaptation to a wire format."""

    messages: tuple[Message, ...]
    # the role of one of the arm's models, or its name; None: the one that answers
    model: str | None
    purpose: str
    sampling: dict[str, Any]  # only what the solver chose itself
    depth: int = 0  # of a recursion; this and the next are on record, and no part of the key
    parent: int | None = None  # the call that it is made for
    known_by: str = ""  # stands for the messages in the key
    # how many equal ones its experiment has asked with it; counted by whoever makes the key
    nth: int = 1
    key: str = ""  # under which its answer will be on record

    def digest(self) -> str:
        """The digest of the call, 32 hex digits. Raises Fault if the call can't be recorded."""
        try:
            return digest_of(
                [self.known_by or self.messages, self.model, self.purpose, self.sampling]
            )
        except TypeError as error:
            raise Fault(
                f"ask: what is asked can't be recorded as JSON: {error}", cause="user_code"
            ) from None


class Answer(NamedTuple):
    """The answer to one call."""

    completion: Completion
    role: str  # of the model within its arm
    model: str  # that was asked
    sampling: Sampling  # that was sent
    asked: str = ""  # the digest of all that decides the reply; empty: not all of it is known
    reused: records.Reused | None = None  # the call of another run whose reply it is
    cost_saved: float = 0.0  # US dollars that it cost there


class Backend(Ledger, Protocol):
    """The operations behind the handles. `complete` and `judge` raise Fault for what is not the model's doing."""

    async def complete(self, ask: Ask, identity: Identity) -> Answer:
        """One paid answer, with the model and sampling that produced it."""
        ...

    async def judge(
        self,
        task: Task,
        answer: Reply | str,
        identity: Identity,
        ask: AskHandle | None,
        workspace: Any,
    ) -> Verdict:
        """The verdict. `ask` reaches the model in the role `judge`; None if the arm has none."""
        ...


def checked_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with role and content first. Raises Fault for anything that is not a message."""
    found = []
    for number, message in enumerate(messages, 1):
        if not (
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and "content" in message
        ):
            raise Fault(
                f"ask: message {number} has to be a dict with role and content, not {message!r:.80}",
                cause="user_code",
            )
        if not isinstance(message["content"], str | list | None):
            kind = type(message["content"]).__name__
            raise Fault(
                f"ask: the content of message {number} has to be text, a list of parts or None, not {kind}",
                cause="user_code",
            )
        found.append({"role": message["role"], "content": message["content"], **message})
    return tuple(found)


def refers(messages: Sequence[Message]) -> bool:
    """Whether a message refers to a text that its suite makes when the message is sent."""
    contents = (message["content"] for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return any(isinstance(part, dict) and part.get("type") == "reference" for part in parts)


def digest_of(value: Any) -> str:
    data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def call_of(identity: Identity, number: int, ask: Ask, key: str, answer: Answer) -> records.Call:
    """The record of a call, the `number`th of its experiment."""
    completion = answer.completion
    raw = completion.text if completion.raw is None else completion.raw
    return records.Call(
        experiment_id=identity.experiment_id,
        call=number,
        purpose=ask.purpose,
        role=answer.role,
        model=answer.model,
        messages=ask.messages,
        reply=raw,
        text=None if completion.raw is None else completion.text,
        **{name: getattr(completion, name) for name in _OF_COMPLETION},
        answered_by=completion.model,
        sampling=sampling_sent(answer.sampling),
        depth=ask.depth,
        parent=ask.parent,
        tool_calls=[dict(each) for each in completion.tool_calls],
        body=completion.body,
        items=[dict(each) for each in completion.items],
        key=key,
        reused=answer.reused,
        cost_saved=answer.cost_saved,
        asked=answer.asked,
    )


def completion_of(call: records.Call) -> Completion:
    """The completion that a whole call on record was made of."""
    values = {name: getattr(call, name) for name in _OF_COMPLETION}
    return Completion(
        **{**values, "adapted": tuple(call.adapted)},
        text=str(call.reply if call.text is None else call.text),
        raw=None if call.text is None else str(call.reply),
        model=call.answered_by,
        tool_calls=tuple(call.tool_calls),
        body=str(call.body),
        items=() if isinstance(call.items, Blob) else tuple(call.items),
    )


def numbers_of(item: object, score: object, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers. Raises Fault for a grade that can't be recorded."""
    if not isinstance(item, str):
        raise Fault(f"grade: an item is named by a text, not {item!r:.80}", cause="user_code")
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, str)}
    for name, value in {"score": score, **numbers}.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise Fault(
                f"grade: the {name} of {item:.80} has to be a finite number, not {value!r:.80}",
                cause="user_code",
            )
    return {name: float(value) for name, value in numbers.items()}


def is_same_grade(one: records.Grade, other: records.Grade) -> bool:
    return (one.score, one.metrics, one.labels) == (other.score, other.metrics, other.labels)


def sampling_sent(sampling: Sampling) -> dict[str, Any]:
    """The sampling as it is recorded: without what is left to the server."""
    values = {name: getattr(sampling, name) for name in Sampling.__slots__}
    return {name: value for name, value in values.items() if value not in (None, ())}


def reply_of(call: records.Call, backend: Backend) -> Reply:
    return Reply(
        **{name: getattr(call, name) for name in _OF_REPLY},
        text=backend.text(call.reply if call.text is None else call.text),
        reasoning=backend.text(call.reasoning),
        model=call.answered_by or call.model,
        body=backend.text(call.body),
    )


def verdict_of(attempt: records.Attempt, backend: Backend) -> Verdict:
    return Verdict(
        **{name: getattr(attempt, name) for name in _AS_IT_IS},
        feedback=backend.text(attempt.feedback),
        detail=backend.text(attempt.detail),
        program=None if attempt.program is None else backend.text(attempt.program),
        artifacts={
            name: base64.b64decode(each.data)
            if isinstance(each, Blob) and each.binary
            else backend.text(each)
            for name, each in attempt.artifacts.items()
        },
    )


def artifact_text(name: object, artifact: object) -> Text:
    """An artifact in its recorded form. Raises Fault if it is neither text nor bytes."""
    if isinstance(name, str) and isinstance(artifact, str):
        return artifact
    if not (isinstance(name, str) and isinstance(artifact, bytes)):
        raise Fault(
            f"judge: the artifact {name!r:.80} has to be text or bytes, not {type(artifact).__name__}",
            cause="user_code",
        )
    return Blob(
        hashlib.sha256(artifact).hexdigest(),
        len(artifact),
        True,
        base64.b64encode(artifact).decode(),
    )
