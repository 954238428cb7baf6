"""The records of one experiment, its solver's calls and answers among them, returned in their order in a replay."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import orjson

from koderz.errors import Fault
from koderz.experiments.experiment import Ledger
from koderz.plans.plan import Identity
from koderz.solvers.definition import AskHandle
from koderz.types import Completion, Message, Reply, Sampling, Task, Verdict
from koderz_tracker import records
from koderz_tracker.records import Blob, Call, Keyed, Once, Record, Text

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


JUDGE_ASK = "judge-ask"  # how the keys of a judge's own calls begin, which no solver asks for

GRACE = 1.0  # seconds, at least, in which a replay must ask for what is recorded next
_LONGEST_GRACE = 600.0  # seconds: a gap in the recording may also be a pause between two sessions
_NOTHING_DUE: deque[str] = deque()  # of which an own one takes as much memory as 50 records
# turns of the event loop in which a solver acts on one recorded result before it gets the next
_SETTLE = 10


class CodeCell:
    """A piece of code that runs again in a replay, during which requests are made."""

    def __init__(self, name: str, outer: CodeCell | None) -> None:
        self.name, self.outer = name, outer
        # requests that were made in it, or in a cell within it, and aren't answered
        self.waiting = 0

    def wait(self, change: int) -> None:
        """Counts a request that begins (+1) or ends (-1) to wait."""
        self.waiting += change
        if self.outer:
            self.outer.wait(change)


_CELL: ContextVar[CodeCell | None] = ContextVar("cell", default=None)


class Waiting(NamedTuple):
    """A request that waits for its result."""

    future: asyncio.Future[Record | None]
    task: asyncio.Task[object] | None
    cell: CodeCell | None


class Divergence(Fault):
    """The solver took another path than when its calls were recorded."""

    cause = "diverged"


class Recording:
    """The records of one experiment, returned in recorded order.

    A request for something recorded waits for its turn, and one for something new waits until all that is recorded
    was used. Where somebody waits although nobody asks for what comes next, for twice as long as the solver took
    when that was recorded, the replay has diverged. A strict recording then raises Divergence to whoever asks. Any
    other no longer waits for what nobody asks for, and hands it out later where somebody does.

    While code runs again that is on record (`cell`) and waits for nothing, it may yet ask, however long it takes.
    """

    def __init__(self, recorded: Sequence[Record], *, strict: bool) -> None:
        self.diverged = False
        # The results in recorded order; a later one may replace an earlier one, as in rescoring.
        found = ((record.key, record) for record in recorded if isinstance(record, Keyed))
        keyed = [(key, record) for key, record in found if key and not key.startswith(JUDGE_ASK)]
        self._due = dict(keyed)  # what was recorded before a verdict was made anew is stale
        self._order = deque(self._due) if self._due else _NOTHING_DUE
        self._strict = strict and len(self._due) == len(keyed)
        self._cells: list[CodeCell] = []
        self._late: dict[str, Record] = {}  # no longer waited for
        self._divergence: Divergence | None = None
        self._requested: dict[str, Waiting] = {}
        self._live: list[Waiting] = []
        # who got the last record, and may not have acted on it
        self._receiver: asyncio.Task[object] | None = None
        self._received: Record | None = None
        self._working = 0
        self._is_settling = False
        self._is_late = False  # nobody came within the grace
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, key: str) -> bool:
        return key in self._due or key in self._late

    def peek(self, key: str) -> Once | None:
        """The record of a `once` before it is asked for; None if there is none."""
        found = self._due.get(key) or self._late.get(key)
        return found if isinstance(found, Once) else None

    async def take(self, key: str) -> Record | None:
        """The recorded result of a request; None if it has to be made live. Raises Divergence."""
        if self._divergence:
            raise self._divergence
        if key in self._late:
            return self._late.pop(key)
        if not self._due:
            return None
        task = asyncio.current_task()
        if self._receiver and (task is self._receiver or self._receiver.done()):
            self._receiver = None  # it has acted
        # Nobody else waits or works, and this is the next record: no other order is possible, so no timer is needed.
        if (
            self._receiver is None
            and not (self._requested or self._live or self._working)
            and key == self._order[0]
        ):
            record = self._hand_out(task)
            await asyncio.sleep(0)
            return record
        return await self._wait(key, task)

    @contextmanager
    def working(self) -> Iterator[None]:
        """A block in which the solver waits for other work: nothing is returned, and time doesn't count."""
        self._working += 1
        self._is_late = False
        self._stop_waiting()
        try:
            yield
        finally:
            self._working -= 1
            self._advance()

    @contextmanager
    def cell(self, name: str) -> Iterator[None]:
        """A block in which recorded code runs again. Requests made in it get their records meanwhile."""
        cell = CodeCell(name, _CELL.get())
        token = _CELL.set(cell)
        self._cells.append(cell)
        self._is_late = False
        self._stop_waiting()
        try:
            yield
        finally:
            _CELL.reset(token)
            self._cells.remove(cell)
            self._advance()

    def close(self) -> None:
        """Stops returning records, and cancels all requests that wait."""
        self._due, self._late = {}, {}
        self._stop_waiting()
        for waiting in [*self._requested.values(), *self._live]:
            waiting.future.cancel()

    async def _wait(self, key: str, task: asyncio.Task[object] | None) -> Record | None:
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        waiting = Waiting(future, task, _CELL.get())
        if waiting.cell:
            waiting.cell.wait(+1)
        if key in self._due:
            self._requested[key] = waiting
        else:
            self._live.append(waiting)
        self._is_late = False
        self._advance()
        try:
            return await future
        except asyncio.CancelledError:
            if self._requested.get(key) is waiting:
                del self._requested[key]
            self._live = [other for other in self._live if other is not waiting]
            raise
        finally:
            if waiting.cell:
                waiting.cell.wait(-1)

    def _hand_out(self, receiver: asyncio.Task[object] | None) -> Record:
        record = self._due.pop(self._order.popleft())
        self._receiver, self._received = receiver, record
        return record

    def _advance(self) -> None:
        """Moves on as far as possible: to the request for the next record, or to requests for something new."""
        self._stop_waiting()
        if self._working or self._is_settling or not (self._requested or self._live):
            return
        # Whoever got the last record acts on it before anybody gets the next one: its request may be the next.
        if self._receiver is not None or self._is_late:
            self._is_settling = True
            self._settle(_SETTLE)
        elif not self._due:
            self._go_live()
        elif self._order[0] in self._requested:
            self._give_next()
        else:
            # all that wait want something else, so the next record's request has a time of grace to come
            self._timer = asyncio.get_running_loop().call_later(self._grace(), self._be_late)

    def _settle(self, turns: int) -> None:
        """Yields to the solver for a number of turns; fewer if the last record's request was followed by another."""
        if turns and (self._receiver is not None or self._is_late):
            asyncio.get_running_loop().call_soon(self._settle, turns - 1)
            return
        self._is_settling = False
        self._receiver = None
        if self._is_late:
            self._is_late = False
            self._go_past()
        self._advance()

    def _give_next(self) -> None:
        waiting = self._requested.pop(self._order[0])
        record = self._hand_out(waiting.task)
        if not waiting.future.done():
            waiting.future.set_result(record)
        self._advance()

    def _go_live(self) -> None:
        waiting, self._live = self._live, []
        for future, _, _ in waiting:
            if not future.done():
                future.set_result(None)

    # Divergence

    def _grace(self) -> float:
        """The seconds to wait: twice the time that the solver first took from the last record to the next."""
        if any(not cell.waiting for cell in self._cells):
            return _LONGEST_GRACE
        try:
            before = (
                datetime.fromisoformat(self._received.time) if self._received else self._beginning
            )
            own = (_begun(self._due[self._order[0]]) - before).total_seconds()
        except (OverflowError, TypeError, ValueError):  # somebody else's times
            return GRACE
        return min(max(GRACE, 2 * own), _LONGEST_GRACE)

    @cached_property
    def _beginning(self) -> datetime:
        """The time at which the first request was made."""
        return min(map(_begun, self._due.values()))

    def _be_late(self) -> None:
        self._timer = None
        # unless a request comes yet: the solver's own wait may have ended in the same turn
        self._is_late = True
        self._advance()

    def _stop_waiting(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _go_past(self) -> None:
        """Gives up on the records that no request asks for."""
        self.diverged = True
        if self._strict:
            self._diverge()
            return
        while self._due and self._order[0] not in self._requested:
            key = self._order.popleft()
            self._late[key] = self._due.pop(key)

    def _diverge(self) -> None:
        cells = dict.fromkeys(waiting.cell.name for waiting in self._live if waiting.cell)
        where = f" in {', '.join(cells)}" if cells else ""
        self._divergence = Divergence(
            f"the solver went another way than before{where}, with {len(self._due)} recorded results unused; "
            "--accept-divergence lets it go on"
        )
        stopped = [*self._requested.values(), *self._live]
        self._due, self._requested, self._live = {}, {}, []
        for waiting in stopped:
            if not waiting.future.done():
                waiting.future.set_exception(self._divergence)


class Reuse(Recording):
    """The records for a solver that can't be replayed, since it has effects beyond its requests: it starts over.

    Replies answer for as long as what it asks is on record. The first request that isn't ends that, and is no fault.
    Anything else is made again, unless what it can `rerun` is on record: then its work had ended, and all of it stands.
    """

    def __init__(self, recorded: Sequence[Record]) -> None:
        super().__init__(recorded, strict=False)
        self._has_ended = False

    def peek(self, key: str) -> Once | None:
        """The record of a `once` that can run again."""
        found = super().peek(key)
        self._has_ended = found is not None
        return found

    async def take(self, key: str) -> Record | None:
        """The record of a request; None if it has to be made."""
        if not key.startswith("ask:"):
            return self._due.pop(key, None) if self._has_ended else None
        found = self._due.pop(key, None)
        if found is None:
            self._due = {
                key: record for key, record in self._due.items() if not isinstance(record, Call)
            }
        return found


def _begun(record: Record) -> datetime:
    """When a result was requested, as far as its record shows."""
    waited = record.latency if isinstance(record, Call) else 0.0
    return datetime.fromisoformat(record.time) - timedelta(seconds=waited)
