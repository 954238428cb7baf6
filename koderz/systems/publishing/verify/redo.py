"""Does the experiments of a run anew: every verdict is made again, and every solver runs again over the record."""

from __future__ import annotations

import math
import platform
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import asdict

from koderz._version import __version__
from koderz.engines.resources import shared_of
from koderz.errors import Fault
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
from koderz.experiments.recording import JUDGE_ASK, digest_of, reply_of
from koderz.experiments.replay import Handles, NeedsCallError, Replaying
from koderz.experiments.runner import ExperimentRunner, Resources
from koderz.plans.plan import Identity, Plan, needs_of
from koderz.sandbox import NoSandbox, Sandbox
from koderz.sandbox.calibration import calibrated_sandbox
from koderz.suites.references import references_of
from koderz.systems.publishing.verify.asked import AuditedExperiment, CallCheck, offline_caller
from koderz.systems.publishing.verify.findings import (
    EXPLAINING,
    EXPLANATIONS,
    Verification,
    as_json,
    is_redacted,
)
from koderz.types import JUDGE, Reply, Task
from koderz_tracker import records
from koderz_tracker.records import Attempt, Call, Experiment, Keyed, Once, Record, Text

if TYPE_CHECKING:
    from koderz.systems.publishing.verify.files import ExperimentLines
    from koderz.systems.publishing.verify.findings import Kind
    from koderz.systems.publishing.verify.subject import RestoredRun

_MEASURED = frozenset({"cpu", "wall", "resources"})
"""Metrics and facts that a machine decides, which are taken as recorded."""

_COMPARED = ("verdict", "cause", "score", "passes")
_AS_RECORDED: Mapping[type[Record], frozenset[str]] = {
    Experiment: frozenset({"time", "duration_seconds", "cost", "cost_by_tier"}),
    records.Fault: frozenset({"time", "reason", "cause", "frames", "throttled", "cost"}),
}
"""Fields of an end that a replay doesn't show to be right. Costs are compared with the sums over its lines."""

_MOST_DOUBTS = 500  # verdicts that differ and are judged again, one by one

_HERE = {"koderz": __version__, "python": platform.python_version()}

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
    redacted: int = 0  # experiments with redacted texts
    # number of the last line, place, verdict
    missing_ends: list[tuple[int, str, str]] = field(default_factory=list)

    @cached_property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks of the suite by id, since attempts may be at others than their experiment's."""
        return {task.id: task for task in self.run.plan.suite.tasks}

    @cached_property
    def caller(self) -> Caller:
        """Makes calls that cost nothing."""
        return offline_caller(self.run.plan)

    @cached_property
    def calls(self) -> CallCheck:
        """The check of calls."""
        return CallCheck(self.run.plan, self._runner(Book(), _NO_CALLS), self.result)

    @cached_property
    def explains(self) -> bool:
        """Whether the texts of verdicts are compared: those of a rescoring were kept, and logs of workspaces vary."""
        about, tasks = self.run.plan.record.environment, self.run.plan.tasks
        is_here = all(about.get(name) == value for name, value in _HERE.items())
        if self.is_rescored or not is_here or any("workspace" in task.needs for task in tasks):
            self.result.trusts(EXPLANATIONS)
            return False
        return True

    async def experiment(self, identity: Identity, lines: ExperimentLines) -> None:
        """Judges an experiment's attempts anew and runs its solver again. Differences become findings."""
        recorded, end = lines.records, lines.end
        hides = any(map(self._hides, recorded))
        if hides:
            self.redacted += 1
            self.result.lacks(
                "experiments with texts that were redacted before the run was published"
            )
        counted = recorded if end is None else recorded[: end + 1]
        behind = recorded[len(counted) :]
        answers: dict[str, Reply | str] = {}
        if identity.arm.name in self.run.replayable and recorded:
            if end is not None:
                answers |= await self._replay(identity, counted, counted[-1], hides=hides)
            if end is None or any(
                isinstance(line, Keyed) and not line.key.startswith(JUDGE_ASK) for line in behind
            ):
                answers |= await self._replay_open(identity, recorded, lines.numbers[-1])
        # A later session may have replaced verdicts and not have come to an end: figures rest on the earlier ones.
        attempts = {id(each): each for part in (counted, recorded) for each in _last_attempts(part)}
        await self._judge(identity, recorded, [*attempts.values()], answers)

    async def settle(self) -> None:
        """Judges each verdict in doubt twice more, alone."""
        for doubt in self.doubts:
            anew = [await self._judged(doubt), await self._judged(doubt)]
            where = place_of(doubt.identity, doubt.recorded.number)
            every = [doubt.derived, *filter(None, anew)]
            names = [
                name
                for name in self._differences(doubt.recorded, doubt.derived)
                if not _vary(every, name)
            ]
            if not names or any(
                not self._differences(doubt.recorded, each) for each in anew if each
            ):
                self.result.unsteady.append(where)
                continue
            for name in names:
                kind: Kind = "program" if name == "program" else "verdict"
                self.result.differs(
                    kind, f"{where}, {name}", *_both(doubt.recorded, doubt.derived, name)
                )

    # Verdicts

    async def _judge(
        self,
        identity: Identity,
        recorded: Sequence[Record],
        attempts: Sequence[Attempt],
        answers: Mapping[str, Reply | str],
    ) -> None:
        """Judges attempts again. `answers`: those that the solver comes to, by the keys of their verdicts."""
        calls = {record.call: record for record in recorded if isinstance(record, Call)}
        of_judge = [call for call in calls.values() if call.key.startswith(JUDGE_ASK)]
        for attempt in attempts:
            if self._hides(attempt) or self._hides(calls.get(attempt.call or 0)):
                self.result.unjudged += 1
                continue
            answer = self._answer(identity, attempt, calls, answers)
            task = self.tasks.get(attempt.task_id) if attempt.task_id else identity.task
            if task is None and attempt.task_id:
                place = place_of(identity, attempt.number)
                self.result.differs(
                    "experiment", f"{place}, task_id", attempt.task_id, "a task of the suite"
                )
            if answer is None or task is None:
                self.result.unjudged += 1
                continue
            doubt = Doubt(identity, task, answer, of_judge, attempt, attempt)
            derived = await self._judged(doubt)
            if derived is None:
                self.result.unjudged += 1
                continue
            self.result.judged += 1
            if self._differences(attempt, derived):
                self._doubt(doubt._replace(derived=derived))
            else:
                self.result.same += 1

    def _doubt(self, doubt: Doubt) -> None:
        if len(self.doubts) < _MOST_DOUBTS:
            self.doubts.append(doubt)
            return
        name = self._differences(doubt.recorded, doubt.derived)[0]
        where = f"{place_of(doubt.identity, doubt.recorded.number)}, {name}"
        self.result.differs("verdict", where, *_both(doubt.recorded, doubt.derived, name))

    async def _judged(self, doubt: Doubt) -> Attempt | None:
        """The attempt as it is judged now; None where that can't be done here, which the result says."""
        book, audit = (
            Book(),
            AuditedExperiment(self.result, place_of(doubt.identity), self.run.is_redacted),
        )
        how = replace(_NO_CALLS, audit=audit)
        handles = Handles(doubt.identity, doubt.calls, self._runner(book, how), how)
        try:
            async with handles:
                await handles.judge(doubt.task, doubt.answer)
        except NeedsCallError as fault:
            if self.run.is_redacted:
                self.result.lacks(f"verdicts: {fault}")
            else:  # a verdict of a model rests on its replies
                self.result.differs(
                    "verdict",
                    audit.where,
                    "no call of the judge",
                    "the call that its verdict rests on",
                )
            return None
        except Fault as fault:
            self.result.lacks(f"verdicts: {fault}")
            return None
        await self.calls.check(doubt.identity, audit)
        return next((line for line in book.lines if isinstance(line, Attempt)), None)

    def _answer(
        self,
        identity: Identity,
        attempt: Attempt,
        calls: Mapping[int, Call],
        answers: Mapping[str, Reply | str],
    ) -> Reply | str | None:
        """The judged answer: the reply that the attempt names, or a text that has the digest in its key."""
        task = attempt.task_id or identity.task.id
        digest = attempt.key.removeprefix("judge:").partition("/")[0]
        if attempt.call is not None:
            call = calls.get(attempt.call)
            if call is None:
                where = place_of(identity, attempt.number)
                self.result.differs(
                    "experiment", where, f"judges call {attempt.call}", "no such call is on record"
                )
                return None
            reply = reply_of(call, self._runner(Book(), _NO_CALLS))
            if digest and digest != digest_of([task, reply.text]):
                self.result.differs(
                    "program",
                    place_of(identity, attempt.number),
                    "another text",
                    f"the reply of call {call.call}",
                )
            return reply
        if attempt.key in answers:
            return answers[attempt.key]
        texts = [
            attempt.program,
            *(call.reply for call in calls.values()),
            *(call.text for call in calls.values()),
        ]
        for text in filter(None, texts):
            if isinstance(text, str) and digest == digest_of([task, text]):
                return text
        self.result.lacks("verdicts on texts that are on record by their digests alone")
        return None

    # Experiments

    async def _replay(
        self, identity: Identity, recorded: Sequence[Record], ended: Record, *, hides: bool
    ) -> Mapping[str, Reply | str]:
        """Runs the solver again over the records up to the end that figures are made of, and compares that end.

        Returns the answers that it judges, by the keys of their verdicts.
        """
        where = place_of(identity)
        audit, book = AuditedExperiment(self.result, where, self.run.is_redacted), Book()
        outcome = await self._replayed(identity, recorded, audit, book)
        self.result.replayed += 1
        await self.calls.check(identity, audit)
        if hides and not isinstance(outcome.record, Experiment):
            return audit.answers  # a request that rests on a redacted text isn't found on record
        match ended, outcome.record:
            case Experiment(), Experiment():
                self._compare(where, ended, outcome.record)
                self._compare_numbers(where, book)
            case records.Fault(), Experiment():
                self.result.differs(
                    "experiment", where, f"a fault: {ended.reason}", outcome.record.verdict
                )
            case records.Fault(), records.Fault():
                self._compare(where, ended, outcome.record)
            case Experiment(), _:
                self._not_replayed(where, ended, outcome.fault)
                return audit.answers
        if isinstance(ended, Experiment):
            self._say_once(recorded, audit)
            self._count_unused(where, recorded, ended, audit)
        return audit.answers

    async def _replay_open(
        self, identity: Identity, recorded: Sequence[Record], last: int
    ) -> Mapping[str, Reply | str]:
        """Runs the solver again over records that no end follows. One that it comes to is missing on record."""
        where = place_of(identity)
        audit = AuditedExperiment(self.result, where, self.run.is_redacted)
        outcome = await self._replayed(identity, recorded, audit, Book())
        await self.calls.check(identity, audit)
        if isinstance(outcome.record, Experiment):
            self.missing_ends.append((last, where, outcome.record.verdict))
        return audit.answers

    async def _replayed(
        self, identity: Identity, recorded: Sequence[Record], audit: AuditedExperiment, book: Book
    ) -> ExperimentOutcome:
        runner = self._runner(book, Replaying(calls_allowed=False, audit=audit))
        return await runner.perform(PendingExperiment(identity, recorded))

    def _say_once(self, recorded: Sequence[Record], audit: AuditedExperiment) -> None:
        """Says that values are on trust which a replay takes from the record."""
        names = (line.key for line in recorded if isinstance(line, Once))
        if any(name not in audit.remade for name in names):
            self.result.trusts("values that were measured or noted once")

    def _compare_numbers(self, where: str, book: Book) -> None:
        """An attempt that the replay numbers otherwise is recorded again."""
        for line in book.lines:
            if isinstance(line, Attempt):
                self.result.differs(
                    "experiment", f"{where}, number of an attempt", "another", line.number
                )

    def _count_unused(
        self, where: str, recorded: Sequence[Record], ended: Experiment, audit: AuditedExperiment
    ) -> None:
        """Calls that the solver's replay has no use for: replies may have been drawn until one passed."""
        asked = {
            line.key
            for line in recorded
            if isinstance(line, Call) and not line.key.startswith(JUDGE_ASK)
        }
        if unused := len(asked - audit.used):
            if self.is_rescored or ended.diverged:
                self.result.note(
                    "calls are on record that no verdict rests on, since the run was rescored or diverged"
                )
            else:
                self.result.differs(
                    "experiment", where, f"{unused} calls that its solver doesn't make", "none"
                )

    def _not_replayed(self, where: str, ended: Experiment, fault: Fault | None) -> None:
        match fault:
            case NeedsCallError():
                self.result.differs(
                    "prompt", where, "other messages", "a call that isn't on record"
                )
            case Fault() if fault.cause == "diverged":
                self.result.differs("experiment", where, ended.verdict, str(fault))
            case _:
                self.result.lacks(f"experiments: {fault}")

    def _runner(self, book: Book, how: Replaying) -> ExperimentRunner:
        return ExperimentRunner(self.resources, self.caller, book, how)

    def _compare(
        self, where: str, recorded: Experiment | records.Fault, derived: Experiment | records.Fault
    ) -> None:
        own, new = as_json(recorded), as_json(derived)
        as_recorded = _AS_RECORDED[type(recorded)]
        # another version's list of prices was another
        if self.run.plan.record.environment.get("koderz") != __version__:
            as_recorded |= {"baseline_cost"}
        for name in own:
            if name in as_recorded or alike(own[name], new[name]) or self._hides(own[name]):
                continue
            self.result.differs("experiment", f"{where}, {name}", own[name], new[name])

    # Attempts

    def _differences(self, recorded: Attempt, derived: Attempt) -> list[str]:
        """The fields of an attempt that came out differently."""
        found = [name for name in _COMPARED if not alike(*_both(recorded, derived, name))]
        found += [] if str(recorded.program) == str(derived.program) else ["program"]
        found += [
            name
            for name in ("metrics", "facts")
            if not alike(*map(_steady, _both(recorded, derived, name)))
        ]
        if self.explains:
            own, new = as_json(recorded), as_json(derived)
            found += [
                name for name in EXPLAINING if own[name] != new[name] and not self._hides(own[name])
            ]
        return found

    def _hides(self, value: Any) -> bool:
        """Whether a text in a record was redacted, so that nothing that rests on it can be made anew."""
        return self.run.is_redacted and is_redacted(value)


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


def place_of(identity: Identity, attempt: int | None = None) -> str:
    """How a finding names an experiment, or one of its attempts."""
    sample = f", sample {identity.sample}" if identity.sample else ""
    number = f", attempt {attempt}" if attempt else ""
    return f"{identity.experiment_id} ({identity.task.id}, {identity.arm.name}{sample}){number}"


def _last_attempts(lines: Sequence[Record]) -> list[Attempt]:
    """The attempts that count: of those with one key, the last."""
    last = {line.key or str(line.number): line for line in lines if isinstance(line, Attempt)}
    return [*last.values()]


def _vary(derived: Sequence[Attempt], name: str) -> bool:
    """Whether a field comes out differently each time that a verdict is made."""
    return any(
        _steady(getattr(each, name)) != _steady(getattr(derived[0], name)) for each in derived
    )


def _both(recorded: Attempt, derived: Attempt, name: str) -> tuple[Any, Any]:
    return asdict(recorded)[name], asdict(derived)[name]


def _steady(value: Any) -> Any:
    """A field of an attempt without what was measured."""
    if not isinstance(value, Mapping):
        return value
    return {name: each for name, each in value.items() if name not in _MEASURED}


def alike(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, numbers but for how sums were rounded."""
    if isinstance(one, float) or isinstance(other, float):
        if isinstance(one, int | float) and isinstance(other, int | float):
            return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)
