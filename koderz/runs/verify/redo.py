"""Does the experiments of a run anew: every verdict is made again, and every solver runs again over the record."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import asdict

from koderz.engines.resources import shared_of
from koderz.errors import Fault
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import PendingExperiment
from koderz.experiments.lines import Ask, digest_of, is_same_grade, reply_of
from koderz.experiments.recording import JUDGE_ASK
from koderz.experiments.replay import Handles, NeedsCallError, Replaying
from koderz.experiments.runner import ExperimentRunner, Resources
from koderz.plans.plan import Identity, Plan, needs_of
from koderz.sandbox import NoSandbox, Sandbox
from koderz.sandbox.calibration import calibrated_sandbox
from koderz.suites.references import references_of
from koderz.types import JUDGE, Reply, Task
from koderz_tracker import records
from koderz_tracker.plain_text import REDACTED
from koderz_tracker.records import Attempt, Call, Experiment, Grade, Record, Text, encode

if TYPE_CHECKING:
    from koderz.runs.verify.findings import Kind, Verification
    from koderz.runs.verify.subject import RestoredRun

_MEASURED = frozenset({"cpu", "wall"})
"""Metrics that a machine decides, which are taken as recorded."""

_COMPARED = ("verdict", "cause", "score", "passes")
_AS_RECORDED = frozenset({"time", "duration_seconds", "baseline_cost", "lesson", "lesson_cause"})
_MOST_DOUBTS = 500  # verdicts that differ and are judged again, one by one

_NO_CALLS = Replaying(rescore=True, calls_allowed=False)


class Doubt(NamedTuple):
    """A verdict that came out differently from the recorded one."""

    identity: Identity
    task: Task
    answer: Reply | str
    calls: Sequence[Call]
    recorded: Attempt
    derived: Attempt


@dataclass
class Redoing:
    """One verification's work on experiments."""

    run: RestoredRun
    resources: Resources
    result: Verification
    is_rescored: bool = False  # calls may be on record that no verdict rests on any more
    doubts: list[Doubt] = field(default_factory=list)

    @cached_property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks of the suite by id, since attempts may be at others than their experiment's."""
        return {task.id: task for task in self.run.plan.suite.tasks}

    async def experiment(self, identity: Identity, recorded: Sequence[Record]) -> None:
        """Judges an experiment's attempts anew and runs its solver again. Differences become findings."""
        if self.run.is_redacted and any(REDACTED.encode() in encode(record) for record in recorded):
            self.result.lacks("experiments with texts that were redacted before the run was published")
            return
        await self._judge(identity, recorded)
        if identity.arm.name in self.run.replayable and recorded:
            await self._replay(identity, recorded)

    async def settle(self) -> None:
        """Judges each verdict in doubt twice more, alone."""
        for doubt in self.doubts:
            anew = [await self._judged(doubt), await self._judged(doubt)]
            where = place_of(doubt.identity, doubt.recorded.number)
            if any(not _differences(doubt.recorded, each) for each in anew if each):
                self.result.unsteady.append(where)
                continue
            for name in _differences(doubt.recorded, doubt.derived):
                kind: Kind = "program" if name == "program" else "verdict"
                self.result.differs(kind, f"{where}, {name}", *_both(doubt.recorded, doubt.derived, name))

    # Verdicts

    async def _judge(self, identity: Identity, recorded: Sequence[Record]) -> None:
        calls = {record.call: record for record in recorded if isinstance(record, Call)}
        of_judge = [call for call in calls.values() if call.key.startswith(JUDGE_ASK)]
        last = {record.key or str(record.number): record for record in recorded if isinstance(record, Attempt)}
        for attempt in last.values():
            answer = self._answer(identity, attempt, calls)
            task = self.tasks.get(attempt.task_id) if attempt.task_id else identity.task
            if answer is None or task is None:
                self.result.unjudged += 1
                continue
            doubt = Doubt(identity, task, answer, of_judge, attempt, attempt)
            derived = await self._judged(doubt)
            if derived is None:
                self.result.unjudged += 1
                continue
            self.result.judged += 1
            if _differences(attempt, derived):
                self._doubt(doubt._replace(derived=derived))
            else:
                self.result.same += 1

    def _doubt(self, doubt: Doubt) -> None:
        if len(self.doubts) < _MOST_DOUBTS:
            self.doubts.append(doubt)
            return
        name = _differences(doubt.recorded, doubt.derived)[0]
        where = f"{place_of(doubt.identity, doubt.recorded.number)}, {name}"
        self.result.differs("verdict", where, *_both(doubt.recorded, doubt.derived, name))

    async def _judged(self, doubt: Doubt) -> Attempt | None:
        """The attempt as it is judged now; None where that can't be done here, which the result says."""
        book = Book()
        handles = Handles(doubt.identity, doubt.calls, self._runner(book, _NO_CALLS), _NO_CALLS)
        try:
            async with handles:
                await handles.judge(doubt.task, doubt.answer)
        except Fault as fault:
            self.result.lacks(f"verdicts: {fault}")
            return None
        return next((line for line in book.lines if isinstance(line, Attempt)), None)

    def _answer(self, identity: Identity, attempt: Attempt, calls: Mapping[int, Call]) -> Reply | str | None:
        """The judged answer: the reply that the attempt names, or a text that has the digest in its key."""
        task = attempt.task_id or identity.task.id
        digest = attempt.key.removeprefix("judge:").partition("/")[0]
        if attempt.call is not None:
            call = calls.get(attempt.call)
            if call is None:
                where = place_of(identity, attempt.number)
                self.result.differs("experiment", where, f"judges call {attempt.call}", "no such call is on record")
                return None
            reply = reply_of(call, self._runner(Book(), _NO_CALLS))
            if digest and digest != digest_of([task, reply.text]):
                self.result.differs(
                    "program", place_of(identity, attempt.number), "another text", f"the reply of call {call.call}"
                )
            return reply
        texts = [attempt.program, *(call.reply for call in calls.values()), *(call.text for call in calls.values())]
        for text in filter(None, texts):
            if isinstance(text, str) and digest == digest_of([task, text]):
                return text
        self.result.lacks("verdicts on texts that are on record by their digests alone")
        return None

    # Experiments

    async def _replay(self, identity: Identity, recorded: Sequence[Record]) -> None:
        ended = recorded[-1]
        if not isinstance(ended, Experiment | records.Fault):
            return
        where = place_of(identity)
        audit = AuditedExperiment(self.result, where)
        runner = self._runner(Book(), Replaying(calls_allowed=False, audit=audit))
        outcome = await runner.perform(PendingExperiment(identity, recorded))
        self.result.replayed += 1
        if isinstance(outcome.record, Experiment):
            if isinstance(ended, Experiment):
                self._compare(where, ended, outcome.record)
            else:
                self.result.differs("experiment", where, f"a fault: {ended.reason}", outcome.record.verdict)
        elif isinstance(ended, Experiment):
            self._not_replayed(where, ended, outcome.fault)
            return
        self._count_unused(where, recorded, ended, audit)

    def _count_unused(
        self, where: str, recorded: Sequence[Record], ended: Experiment | records.Fault, audit: AuditedExperiment
    ) -> None:
        """Calls that the solver's replay has no use for: replies may have been drawn until one passed."""
        if isinstance(ended, records.Fault):
            return
        asked = {line.key for line in recorded if isinstance(line, Call) and not line.key.startswith(JUDGE_ASK)}
        if unused := len(asked - audit.used):
            if self.is_rescored or ended.diverged:
                self.result.note("calls are on record that no verdict rests on, since the run was rescored or diverged")
            else:
                self.result.differs("experiment", where, f"{unused} calls that its solver doesn't make", "none")

    def _not_replayed(self, where: str, ended: Experiment, fault: Fault | None) -> None:
        match fault:
            case NeedsCallError():
                self.result.differs("prompt", where, "other messages", "a call that isn't on record")
            case Fault() if fault.cause == "diverged":
                self.result.differs("experiment", where, ended.verdict, str(fault))
            case _:
                self.result.lacks(f"experiments: {fault}")

    def _runner(self, book: Book, how: Replaying) -> ExperimentRunner:
        return ExperimentRunner(self.resources, Caller(self.run.plan.settings, {}, spent=0.0), book, how)

    def _compare(self, where: str, recorded: Experiment, derived: Experiment) -> None:
        own, new = to_builtins(asdict(recorded)), to_builtins(asdict(derived))
        for name in own:
            if name not in _AS_RECORDED and not _alike(own[name], new[name]):
                self.result.differs("experiment", f"{where}, {name}", own[name], new[name])


@dataclass(slots=True)
class AuditedExperiment:
    """The check of one experiment's records as its solver's replay uses them."""

    result: Verification
    where: str
    used: set[str] = field(default_factory=set)

    def asked(self, ask: Ask, call: Call) -> None:
        """Compares the recorded messages with what the solver asks."""
        self.used.add(call.key)
        self.result.prompts += 1
        recorded, derived = [dict(each) for each in call.messages], to_builtins(list(ask.messages))
        if recorded != derived and not is_private(call):
            self.result.differs("prompt", f"{self.where}, call {call.call}", recorded, derived)

    def graded(self, grade: Grade, recorded: Grade) -> None:
        """Compares a recorded score with the one that is computed now."""
        if not is_same_grade(grade, recorded):
            self.result.differs("verdict", f"{self.where}, item {grade.item:.60}", recorded.score, grade.score)


@dataclass(slots=True)
class Book:
    """A ledger that keeps what would be recorded and writes nothing."""

    lines: list[Record] = field(default_factory=list)

    async def record(self, *lines: Record) -> None:
        self.lines += lines

    def text(self, text: Text) -> str:
        return str(text)


@asynccontextmanager
async def open_offline(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[Resources]:
    """Opens the resources for judging and replaying on this machine: a contained sandbox, and no models.

    Raises Unreachable where nothing contains programs here.
    """
    async with AsyncExitStack() as stack:
        sandbox: Sandbox = NoSandbox()
        if JUDGE in needs_of(plan) or any(JUDGE in task.needs for task in plan.tasks):
            sandbox = await stack.enter_async_context(
                calibrated_sandbox(
                    "contained",
                    judges=plan.settings.judge_count,
                    memory_mb=plan.judging.memory_mb,
                    settings=plan.settings,
                )
            )
        shared = await stack.enter_async_context(shared_of(plan, environ))
        references = None if isinstance(sandbox, NoSandbox) else references_of(plan.suite, sandbox)
        yield Resources(plan, {}, sandbox, shared=shared, references=references)


def is_private(call: Call) -> bool:
    """Whether a call's messages are recorded by their digests alone."""
    return any(isinstance(message.get("content"), dict) for message in call.messages)


def place_of(identity: Identity, attempt: int | None = None) -> str:
    """How a finding names an experiment, or one of its attempts."""
    sample = f", sample {identity.sample}" if identity.sample else ""
    number = f", attempt {attempt}" if attempt else ""
    return f"{identity.experiment_id} ({identity.task.id}, {identity.arm.name}{sample}){number}"


def _differences(recorded: Attempt, derived: Attempt) -> list[str]:
    """The fields of an attempt that came out differently."""
    found = [name for name in _COMPARED if not _alike(*_both(recorded, derived, name))]
    found += [] if str(recorded.program) == str(derived.program) else ["program"]
    own, new = _steady(recorded.metrics), _steady(derived.metrics)
    return found + ([] if _alike(own, new) else ["metrics"])


def _both(recorded: Attempt, derived: Attempt, name: str) -> tuple[Any, Any]:
    return asdict(recorded)[name], asdict(derived)[name]


def _steady(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in _MEASURED}


def _alike(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, numbers but for how sums were rounded."""
    if isinstance(one, float) or isinstance(other, float):
        if isinstance(one, int | float) and isinstance(other, int | float):
            return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)
