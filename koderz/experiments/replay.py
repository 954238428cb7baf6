"""The handles of a solver, which record every result, and replay the records when an experiment is resumed.

A solver is handed `ask`, `judge`, `grade` and `once`. Each records what it returns before it returns it. When an
experiment is picked up again, its solver runs from the start and is handed what is on record, in the
order in which it was recorded, until it passes the point where it stopped; only then does it go live.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import msgspec
import orjson

from koderz.errors import Fault, PromptTooLong
from koderz.experiments import recording
from koderz.experiments.experiment import Totals
from koderz.experiments.recording import JUDGE_ASK, Ask, Backend, Recording, Reuse, digest_of
from koderz.plans.plan import Identity
from koderz.solvers.definition import Rerun
from koderz.types import CONTEXT, JUDGE, MAIN, Lesson, Message, Reply, Task, Verdict
from koderz_tracker import records
from koderz_tracker.records import Blob, Call, Record

Items = Sequence[Mapping[str, Any]]


class Turns:
    """The items of the turns in one experiment, found by the conversation in which they came.

    A solver's messages hold a turn's text and tool calls alone, and so does the key by which a replay finds a request.
    """

    def __init__(self) -> None:
        self._in_place: dict[str, Items] = {}
        self._anywhere: dict[str, list[Items]] = defaultdict(list)

    def learn(self, ask: Ask, call: Call) -> None:
        """Takes in a call that is made or on record."""
        if not call.items or isinstance(call.items, Blob):
            return
        text = call.reply if call.text is None else call.text
        turn = _turn(ask.model, text if isinstance(text, str) else "", call.tool_calls)
        self._in_place[_place(ask.messages, turn)] = call.items
        if call.items not in self._anywhere[turn]:
            self._anywhere[turn].append(call.items)

    def brought_along(self, ask: Ask) -> Ask:
        """The call with the items of each turn of the model, in messages that are sent and not recorded.

        They are those of the conversation up to there; where it was shortened since, of the only turn that reads so.
        """
        if not self._anywhere:
            return ask
        return replace(
            ask,
            messages=tuple(self._with_items(ask, number) for number in range(len(ask.messages))),
        )

    def _with_items(self, ask: Ask, number: int) -> Message:
        message = ask.messages[number]
        if message["role"] != "assistant":
            return message
        turn = _turn(ask.model, message["content"], message.get("tool_calls") or ())
        items = self._in_place.get(_place(ask.messages[:number], turn))
        if items is None:
            alike = self._anywhere.get(turn, ())
            items = alike[0] if len(alike) == 1 else None
        return message if items is None else {**message, "items": [*items]}


def _turn(model: str | None, content: Any, calls: Sequence[Mapping[str, Any]]) -> str:
    return digest_of([model, content or "", [call.get("id") for call in calls]])


def _place(messages: Sequence[Message], turn: str) -> str:
    return digest_of([messages, turn])


T = TypeVar("T")


class NeedsCallError(Fault):
    """In rescoring, the solver asks for something new, which isn't allowed."""

    cause = "needs_call"


class NotRecordedError(Fault):
    """In an audit, the solver comes to something that isn't on record."""

    cause = "diverged"


class Audit(Protocol):
    """A check of records as a replay uses them. Whatever isn't on record is a NotRecordedError, and nothing is made."""

    def asked(self, ask: Ask, call: records.Call) -> None:
        """Takes what the solver asks, and the recorded call that answers it."""

    def judging(self, key: str, answer: Reply | str) -> None:
        """Takes an answer that the solver has judged, and the key of its verdict."""

    def graded(self, grade: records.Grade, recorded: records.Grade) -> None:
        """Takes a grade as it is computed now, and as it was recorded."""

    def made(self, value: Any, recorded: records.Once) -> None:
        """Takes a value that a replay makes again, and its record."""


@dataclass(frozen=True, slots=True)
class Replaying:
    """The treatment of existing records when an experiment is worked on again."""

    accept_divergence: bool = False
    rescore: bool = False  # judge every recorded attempt anew
    # whether the judge's model is asked anew, too, rather than its recorded replies used
    judge_anew: bool = False
    calls_allowed: bool = True  # False: a new call is a fault
    # False: only experiments that ended before are worked on; so does rescoring
    begins_new: bool = True
    buys: bool = True  # False: no more batches are sent, and those under way are cancelled
    # the solver can't replay: it starts over, and replies answer it while its requests match
    restart: bool = False
    audit: Audit | None = None  # what looks at the records as they are used; then nothing else is

    @property
    def is_lenient(self) -> bool:
        """Whether a solver may leave records unused and ask for something new."""
        return self.accept_divergence or self.rescore


class Handles:
    """The `ask`, `judge`, `grade`, `once` and `rng` of one experiment; an async context manager around its solver."""

    def __init__(
        self,
        identity: Identity,
        recorded: Sequence[Record],
        backend: Backend,
        how: Replaying | None = None,
        *,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """`leave` is called when the solver waits for a verdict that is not on record."""
        self.identity = identity
        self.totals = Totals()
        self.fault: Fault | None = None  # the first one, also where the solver went on after it
        self.reused = 0  # replies that were on record
        self.verdicts: list[Verdict] = []  # on the task itself, in order
        self.truncated = ""  # what of the last judged reply was cut off
        self.lesson: Lesson | None = None  # what they teach, once the experiment has ended
        self.workspace: Any = None  # the opened handle of that name, if there is one
        self.is_concluded = False  # whether its verdict is that of a handle that its suite opened
        self._how = how or Replaying()
        self._backend = backend
        self._leave = leave
        self._nth: Counter[str] = Counter()
        self._in_flight: set[asyncio.Task[records.Call]] = set()
        self._is_over = False
        self._turns = Turns()
        self._judge_calls: dict[str, records.Call] = {}
        for record in recorded:
            if isinstance(record, records.Compute):
                self.totals.rent(record)
            elif isinstance(record, records.Call):
                self.totals.add(record)
                if record.key.startswith(JUDGE_ASK):
                    self._judge_calls[record.key] = record
        if self._how.restart and not self._how.rescore:
            self._recording: Recording = Reuse(recorded)
        else:  # one that can't replay is rescored by what it left: its calls aren't made again
            recorded = [
                each
                for each in recorded
                if not (self._how.restart and isinstance(each, records.Call))
            ]
            self._recording = Recording(recorded, strict=not self._how.is_lenient)

    @property
    def experiment_id(self) -> str:
        """The id of the experiment."""
        return self.identity.experiment_id

    @cached_property
    def rng(self) -> random.Random:
        """A random generator with the same seed each time the experiment runs."""
        return random.Random(self.identity.experiment_id)  # noqa: S311 repeatable on purpose

    @property
    def diverged(self) -> bool:
        return self._recording.diverged

    def waiting(self) -> AbstractContextManager[None]:
        """A block in which the solver waits for something else, so that time doesn't count in a replay."""
        return self._recording.working()

    async def __aenter__(self) -> Handles:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for calls that the solver has abandoned, since they are paid for all the same."""
        self._is_over = True
        self._recording.close()
        if kind is asyncio.CancelledError:  # the run is being cut off
            for call in self._in_flight:
                call.cancel()
        if self._in_flight:
            await asyncio.wait(self._in_flight)

    async def ask(
        self,
        messages: Sequence[Message],
        model: str | None = None,
        purpose: str = "attempt",
        *,
        depth: int = 0,
        parent: int | None = None,
        known_by: str = "",
        **sampling: Any,
    ) -> Reply:
        """Asks a model for one reply, paid for once. `sampling` overrides the run's temperature, max_tokens, …

        Its `response_format` is a JSON schema, which servers that know of such hold the reply to.

        `depth` and `parent`, the number of a call, say where in a recursion it is made; they are recorded, and a replay
        finds the call without them, and by `known_by`, if there is any, in place of the messages. All that a message
        holds is recorded and sent. Raises Fault where there is no reply to be had, or the model's wire format has no
        place for something in a message; PromptTooLong where the context of the main model doesn't hold the messages.
        """
        ask = Ask(
            recording.checked_messages(messages), model, purpose, sampling, depth, parent, known_by
        )
        key = self._key("ask", ask.digest())
        reply = recording.reply_of(
            await self._noted(self._recorded_or_called(ask, key)), self._backend
        )
        if reply.finish_reason == CONTEXT:
            raise PromptTooLong(reply)
        return reply

    async def judge(self, task: Task, answer: Reply | str) -> Verdict:
        """The verdict on an answer: a reply, or the text of one."""
        text = answer.text if isinstance(answer, Reply) else answer
        key = self._key("judge", recording.digest_of([task.id, text]))
        if self._how.audit:
            self._how.audit.judging(key, answer)
        verdict = await self._noted(self._recorded_or_judged(task, answer, key))
        if task.id == self.identity.task.id:
            self.verdicts.append(verdict)
            self.truncated = answer.truncated if isinstance(answer, Reply) else ""
        return verdict

    async def grade(self, item: str, score: float, **metrics: float | str) -> float:
        """Records the score of one of many items, and returns the recorded score. It doesn't count as an iteration.

        `metrics` are finite numbers, or words by which grades are told apart. An item may be graded several times.
        """
        numbers = recording.numbers_of(item, score, metrics)
        grade = records.Grade(
            experiment_id=self.identity.experiment_id,
            item=item,
            score=float(score),
            metrics=numbers,
            labels={name: value for name, value in metrics.items() if isinstance(value, str)},
            key=self._key("grade", item),
        )
        return await self._noted(self._recorded_or_graded(grade))

    async def once(self, name: str, fn: Callable[[], Any], *, rerun: Rerun = False) -> Any:
        """The value of `fn()`, or of the coroutine that it returns, made once and recorded as JSON.

        `rerun`: a replay runs `fn` all the same, for what it changes elsewhere, such as the variables of a session, and
        returns the recorded value. A `fn` that asks has to be run again, so that its requests are found on record. A
        function runs in its place, and is given the recorded value.
        """
        return await self._noted(
            self._recorded_or_made(name, fn, self._key("once", name), rerun=rerun)
        )

    async def note(self, name: str, value: Any) -> None:
        """Records a value that no replay asks for."""
        await self._backend.record(
            records.Once(experiment_id=self.identity.experiment_id, name=name, value=value)
        )

    def can_make(self, name: str) -> bool:
        """Whether the next `once` of this name can return a value; in rescoring only recorded ones can."""
        return (
            self._how.calls_allowed
            or f"once:{name}/{self._nth['once' + name] + 1}" in self._recording
        )

    async def _noted(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except Fault as fault:
            self.fault = self.fault or fault
            raise

    def _require_live(self, what: str) -> None:
        """Raises NotRecordedError in an audit, but for verdicts that are made anew."""
        if self._how.audit and not self._how.rescore:
            raise NotRecordedError(f"{what} that the solver comes to isn't on record")

    def _key(self, kind: str, what: str) -> str:
        self._nth[kind + what] += 1
        return f"{kind}:{what}/{self._nth[kind + what]}"

    async def _recorded_or_called(self, ask: Ask, key: str) -> records.Call:
        if not self._how.calls_allowed and key not in self._recording:
            raise NeedsCallError("rescore: needs a call")
        found = await self._recording.take(key)
        if isinstance(found, records.Call):
            self.reused += 1
            self._turns.learn(ask, found)
            if self._how.audit:
                self._how.audit.asked(ask, found)
            return found
        self._require_live("a call")
        if self._is_over:  # whoever asks isn't the solver, which has come to its end
            raise Fault("ask: the experiment is over", cause="user_code")
        return await self._live(ask, key)

    async def _live(self, ask: Ask, key: str) -> records.Call:
        """Makes a call that runs to its end even if the solver abandons it, since it is paid for."""
        task = asyncio.create_task(self._call(ask, key))
        self._in_flight.add(task)
        task.add_done_callback(self._landed)
        return await asyncio.shield(task)

    def _landed(self, task: asyncio.Task[records.Call]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()  # taken notice of here, since whoever asked may no longer wait

    async def _ask_of_judge(
        self,
        judged: str,
        messages: Sequence[Message],
        model: str | None = None,
        purpose: str = JUDGE,
        known_by: str = "",
        **sampling: Any,
    ) -> Reply:
        """Asks the model in the role `judge` for one reply, about the answer with the key `judged`.

        It is on record and paid for like any other, but no solver asks for it in a replay: it is used where that very
        thing is judged again, because the verdict is missing or to be made anew. `known_by`, if there is any, stands
        for what is judged and for the messages.
        """
        ask = Ask(
            recording.checked_messages(messages),
            model or JUDGE,
            purpose,
            sampling,
            known_by=known_by,
        )
        key = self._key(JUDGE_ASK, recording.digest_of(["" if known_by else judged, ask.digest()]))
        call = None if self._how.judge_anew else self._judge_calls.get(key)
        if call is None:
            if not (self._how.calls_allowed or self._how.judge_anew):
                raise NeedsCallError("rescore: needs a call of the judge")
            call = await self._live(ask, key)
        elif self._how.audit:
            self._how.audit.asked(ask, call)
        return recording.reply_of(call, self._backend)

    async def _call(self, ask: Ask, key: str) -> records.Call:
        ask = replace(ask, key=key, nth=int(key.rpartition("/")[2]))
        answer = await self._backend.complete(self._turns.brought_along(ask), self.identity)
        if (
            answer.completion.finish_reason == CONTEXT and answer.role != MAIN
        ):  # a judge or a helper, which the run does not measure
            raise Fault(
                f"{answer.model}, in the role {answer.role}: {answer.completion.text}",
                cause="rejected",
            )
        call = recording.call_of(self.identity, self.totals.calls + 1, ask, key, answer)
        self._turns.learn(ask, call)
        self.totals.add(call)
        await self._backend.record(call)
        return call

    async def _recorded_or_judged(self, task: Task, answer: Reply | str, key: str) -> Verdict:
        self.totals.attempts += 1
        number = self.totals.attempts
        found = await self._recording.take(key)
        before = found if isinstance(found, records.Attempt) else None
        if before and not self._how.rescore:
            if before.number != number:  # the solver came here by another way than before
                await self._backend.record(
                    msgspec.structs.replace(before, number=number, time=records.now())
                )
            return recording.verdict_of(before, self._backend)
        self._require_live("a verdict")
        self._leave()
        with self._recording.working():
            ask = partial(self._ask_of_judge, key) if JUDGE in self.identity.arm.models else None
            verdict = await self._backend.judge(task, answer, self.identity, ask, self.workspace)
            if before and not before.passed and not verdict.passed:
                verdict = replace(verdict, feedback=self._backend.text(before.feedback))
            await self._backend.record(self._attempt(task, verdict, answer, number, key))
        return verdict

    def _attempt(
        self, task: Task, verdict: Verdict, answer: Reply | str, number: int, key: str
    ) -> records.Attempt:
        return records.Attempt(
            **self.identity.of_line,
            **{name: getattr(verdict, name) for name in recording.OF_VERDICT},
            task_id="" if task.id == self.identity.task.id else task.id,
            number=number,
            call=answer.call if isinstance(answer, Reply) else None,
            artifacts={
                name: recording.artifact_text(name, value)
                for name, value in verdict.artifacts.items()
            },
            key=key,
        )

    async def _recorded_or_graded(self, grade: records.Grade) -> float:
        found = await self._recording.take(grade.key)
        if isinstance(found, records.Grade) and (
            not self._how.rescore or recording.is_same_grade(found, grade)
        ):
            if self._how.audit:
                self._how.audit.graded(grade, found)
            grade = found
        else:
            self._require_live("a grade")
            await self._backend.record(grade)
        self.totals.scores.append(grade.score)
        return grade.score

    async def _recorded_or_made(
        self, name: str, fn: Callable[[], Any], key: str, *, rerun: Rerun
    ) -> Any:
        value = None
        if rerun:
            before = self._recording.peek(key)
            with self._recording.cell(name):
                value = await self._made(
                    fn if before is None or rerun is True else partial(rerun, before.value)
                )
        found = await self._recording.take(key)
        if isinstance(found, records.Once):
            if rerun and self._how.audit:
                self._how.audit.made(value, found)
            return found.value
        self._require_live(f"the value {name!r:.80}")
        if not rerun:
            value = await self._made(fn)
        await self._backend.record(
            records.Once(experiment_id=self.identity.experiment_id, name=name, value=value, key=key)
        )
        return value

    async def _made(self, fn: Callable[[], Any]) -> Any:
        """The value that `fn` returns, converted as a replay would return it."""
        value = fn()
        if isinstance(value, Awaitable):
            value = await value
        return orjson.loads(orjson.dumps(value))
