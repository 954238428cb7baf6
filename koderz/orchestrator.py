"""Carries out a plan: hands experiments to an engine, and what comes back to the tracker."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import orjson

from koderz.budget import CapReached
from koderz.calls import Caller
from koderz.engines.local import run_local
from koderz.errors import FatalFault, Fault, StorageError
from koderz.plan import Plan
from koderz.recalling import Lessons, recall_for
from koderz.references import ReferenceFault
from koderz.replay import Ask, Handles, Identity, NeedsCallError, Replaying, Settled
from koderz.sandbox import Sandbox
from koderz.solvers import Solver
from koderz.types import Completion, Judging, Reply, Sampling, Task, Verdict
from tracker import records
from tracker.blobs import read_text
from tracker.records import Record, Text
from tracker.tracker import Tracker

if TYPE_CHECKING:
    from koderz.models import Model, Price

_FAULTS_IN_A_ROW = 10  # and at least two rounds of what runs at once: then the run stops


@dataclass(slots=True)
class Progress:
    """What a run is doing right now, for whoever shows it."""

    planned: int
    started: float = field(default_factory=time.monotonic)
    in_flight: int = 0  # experiments
    done_before: int = 0  # experiments that ended in earlier sessions
    stopping: str = ""  # why no more experiments are begun


Observer = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended."""

    status: str  # complete | incomplete | interrupted | stopped | failed
    reason: str = ""


class Orchestrator:
    """One session of one run. It is the `World` that the experiments' handles reach."""

    def __init__(
        self,
        plan: Plan,
        tracker: Tracker,
        models: Mapping[str, Model],
        sandbox: Sandbox,
        *,
        how: Replaying | None = None,
        observe: Observer | None = None,
        baseline: Price | None = None,
        lessons: Lessons | None = None,
        broken: Callable[[Task], str] | None = None,
    ) -> None:
        self.progress = Progress(plan.record.planned, done_before=tracker.tally.judged + tracker.tally.faults)
        self.caller = Caller(plan.settings, models, spent=tracker.tally.cost, baseline=baseline)
        self._plan, self._tracker, self._sandbox = plan, tracker, sandbox
        self._how = how or Replaying()
        self._observe, self._lessons = observe, lessons
        self._broken = broken or (lambda _: "")  # why a task can't be judged, as far as is known
        settings = plan.settings
        self._judging = Judging(settings.test_timeout, settings.test_memory, settings.feedback)
        self._stopping = asyncio.Event()
        self._ended: Ended | None = None
        self._faults_in_a_row = 0
        self._audience_error: Exception | None = None

    async def run(self) -> Ended:
        """Performs what is left of the plan. Raises StorageError where the disk refuses."""
        engine = asyncio.create_task(
            run_local(self._left(), self._perform, concurrency=self._plan.settings.concurrency, stopping=self._stopping)
        )
        with self._signals(engine):
            try:
                await engine
            except BaseExceptionGroup as group:
                raise _first(group) from None
            except asyncio.CancelledError:
                if self._ended is None:
                    raise
        tally = self._tracker.tally
        if self._ended and tally.judged + tally.faults < self._plan.record.planned:
            return self._ended
        left = self._plan.record.planned - tally.judged - tally.faults
        if left:
            return Ended("incomplete", f"{left} experiments have not ended")
        return Ended("incomplete" if tally.faults else "complete")

    def stop(self, status: str, reason: str) -> None:
        """Begins no more experiments. What is under way goes on."""
        self._ended = self._ended or Ended(status, reason)
        self.progress.stopping = self._ended.reason
        if status in ("failed", "stopped"):
            self.caller.closed = self.caller.closed or CapReached(reason)
        self._stopping.set()

    # What the handles reach

    async def complete(self, ask: Ask, sample: int) -> tuple[Completion, str, Sampling]:
        return await self.caller.complete(ask, sample)

    async def judge(self, task: Task, answer: Reply | str) -> Verdict:
        return await self._plan.suite.judge(task, answer, self._sandbox, self._judging)

    async def record(self, *lines: Record) -> None:
        await self._tracker.record(*lines)
        if self._observe:
            try:
                for line in lines:
                    self._observe(line)
            except Exception as error:
                self._audience_error = error  # which is not the solver's doing
                raise

    def text(self, text: Text) -> str:
        return read_text(text, self._tracker.folder)

    # One experiment

    def _left(self) -> Iterator[Identity]:
        begins_new = self._how.begins_new and not self._how.rescore
        ended, is_redone = self._tracker.ended, self._tracker.is_redone
        return self._plan.experiments(lambda name: not ended(name) and (begins_new or is_redone(name)))

    async def _perform(self, experiment: Identity) -> None:
        solver = self._plan.solver(experiment.solver)
        recorded = self._tracker.recorded(experiment.experiment_id)
        how = replace(self._how, restart=True) if solver.restarts else self._how
        handles = Handles(experiment, recorded, self, how)
        started = time.monotonic()
        self.progress.in_flight += 1
        try:
            verdict = await self._solve(solver, handles)
            fault = handles.fault
        except Fault as error:
            verdict, fault = None, handles.fault or error
        finally:
            self.progress.in_flight -= 1
        if self._audience_error:
            raise self._audience_error
        if isinstance(fault, CapReached):
            self.stop("stopped", str(fault))
        elif isinstance(fault, FatalFault):
            self.stop("failed", str(fault))
        elif fault:
            await self.record(self._fault(experiment, handles, fault))
            if not isinstance(fault, NeedsCallError | ReferenceFault):
                self._count_fault(fault)
        elif verdict:
            self._faults_in_a_row = 0
            await self.record(self._experiment(experiment, handles, verdict, time.monotonic() - started))

    async def _solve(self, solver: Solver, handles: Handles) -> Verdict:
        if reason := self._broken(handles.identity.task):
            raise ReferenceFault(reason)
        async with handles:
            try:
                # In a task of its own, so that one that cancels itself isn't taken for the run being cut off.
                recall = recall_for(handles, self._lessons)
                solving = solver(handles, task=handles.identity.task, prompts=self._plan.prompts, recall=recall)
                verdict = await asyncio.create_task(_without_exit(solving))
            except Settled as settled:
                return settled.verdict
            except (Fault, StorageError):
                raise
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                raise Fault("the solver cancelled itself") from None
            except Exception as error:  # a solver may be anybody's code
                raise Fault(_writable(f"the solver raised {type(error).__name__}: {error}")) from error
        return _checked(verdict)

    def _experiment(
        self, experiment: Identity, handles: Handles, verdict: Verdict, seconds: float
    ) -> records.Experiment:
        totals = handles.totals
        return records.Experiment(
            experiment_id=experiment.experiment_id,
            problem_id=experiment.task.id,
            solver=experiment.solver,
            sample=experiment.sample,
            success=verdict.passed,
            verdict=verdict.verdict,
            cause=verdict.cause,
            score=verdict.score,
            metrics=verdict.metrics or None,
            iterations=totals.attempts,
            calls=totals.calls,
            cost=totals.cost,
            cost_known=totals.cost_known,
            cost_by_tier=totals.by_tier(),
            baseline_cost=self.caller.baseline_cost(*totals.local_tokens),
            tokens_in=totals.tokens_in,
            tokens_out=totals.tokens_out,
            latency=totals.latency,
            duration_seconds=round(seconds, 6),
            diverged=handles.diverged,
            note=verdict.note,
        )

    def _fault(self, experiment: Identity, handles: Handles, fault: Fault) -> records.Fault:
        return records.Fault(
            experiment_id=experiment.experiment_id,
            problem_id=experiment.task.id,
            solver=experiment.solver,
            sample=experiment.sample,
            reason=str(fault),
            cost=handles.totals.cost,
            calls=handles.totals.calls,
        )

    def _count_fault(self, fault: Fault) -> None:
        self._faults_in_a_row += 1
        if self._faults_in_a_row >= max(_FAULTS_IN_A_ROW, 2 * self._plan.settings.concurrency):
            self.stop(
                "incomplete",
                f"{self._faults_in_a_row} experiments in a row ended in a fault, the last with: {fault}",
            )

    # Ending early

    @contextmanager
    def _signals(self, engine: asyncio.Task[None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._interrupt, engine)
        except (NotImplementedError, RuntimeError, ValueError):  # not in the main thread: its owner handles them
            yield
            return
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _interrupt(self, engine: asyncio.Task[None]) -> None:
        if self._stopping.is_set():
            engine.cancel()
            return
        grace = self._plan.settings.grace
        self.stop("interrupted", "interrupted")
        asyncio.get_running_loop().call_later(grace, engine.cancel)


async def _without_exit(solving: Awaitable[Verdict]) -> Verdict:
    """The event loop would let a SystemExit through, and end everything."""
    try:
        return await solving
    except SystemExit as error:
        raise Fault(f"the solver raised SystemExit: {error}") from error


def _is_cancelled() -> bool:
    """Whether the run is being cut off, rather than a solver that cancelled something of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _checked(verdict: object) -> Verdict:
    """What a solver returned, if it can be recorded. Raises Fault."""
    if not isinstance(verdict, Verdict):
        raise Fault(f"the solver returned {type(verdict).__name__}, not the Verdict that judge gave it")
    try:
        msgspec.convert(msgspec.to_builtins(verdict), Verdict)
        orjson.dumps(verdict)
        if not all(map(math.isfinite, [verdict.score or 0.0, *verdict.metrics.values()])):
            raise ValueError("its score and metrics have to be finite numbers")
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise Fault(f"the solver returned a Verdict that can't be recorded: {error}") from None
    return verdict


def _writable(text: str) -> str:
    """The text without halves of characters, which no JSON can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
