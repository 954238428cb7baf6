"""Carries out a plan: gives experiments to an engine, and their results to the tracker."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from koderz.engines import Engine
from koderz.errors import FatalFault, Fault, RunStopped
from koderz.experiments.experiment import ExperimentOutcome, PendingExperiment
from koderz.experiments.replay import Replaying
from koderz.plans.plan import Identity, Plan
from koderz.runs.deciding import Decider
from koderz_tracker.blobs import read_text
from koderz_tracker.index import experiment_number
from koderz_tracker.privacy import public_reason
from koderz_tracker.recorded import RecordedReplies
from koderz_tracker.records import Call, Experiment, Record, Submitted, Text
from koderz_tracker.records import Fault as Faulted
from koderz_tracker.tracker import Tracker

DECIDED = "decided"
"""The status of a run that stopped since its comparison was decided."""

# statuses that give way where what is under way decides the run
_OVERRIDDEN = ("stopped", "incomplete", "interrupted")
_FAULTS_IN_A_ROW = 10  # and at least two rounds of what runs at once: then the run stops
# causes of faults that say nothing about the next one
_OF_ONE_EXPERIMENT = ("needs_call", "reference", "cost_cap")


@dataclass(slots=True)
class Progress:
    """The state of a running session, for display."""

    planned: int
    started: float = field(default_factory=time.monotonic)
    in_flight: int = 0  # experiments
    done_before: int = 0  # experiments that ended in earlier sessions
    stopping: str = ""  # why no more experiments are begun
    tokens_out: int = 0  # of this session
    evidence: Callable[[], str] = str  # of a run that stops once it is decided


Observer = Callable[[Record], None]


class SessionEnd(NamedTuple):
    """The end of a session."""

    status: str  # complete | decided | incomplete | interrupted | stopped | failed
    reason: str = ""
    # by the user, though the experiments under way may have been the last ones
    was_called_off: bool = False

    @property
    def ends_all(self) -> bool:
        """Whether planned runs after this one are not begun: no model could be asked, or the user called it off."""
        return self.status == "failed" or self.was_called_off


class Orchestrator:
    """One session of one run: the `Driver` of its engine."""

    def __init__(
        self,
        plan: Plan,
        tracker: Tracker,
        engine: Engine,
        *,
        how: Replaying | None = None,
        observe: Observer | None = None,
        detach: bool = False,
        decider: Decider | None = None,
        replies: RecordedReplies | None = None,
    ) -> None:
        """`decider`: stops the run once it is decided; without it, all that is planned is asked.

        `replies`: those of other runs, which come before a model's.
        """
        self.progress = Progress(
            plan.record.planned, done_before=tracker.tally.judged + tracker.tally.faults
        )
        self.plan = plan
        self.how = how or Replaying()
        self.spent = tracker.tally.cost
        self.detach, self.replies = detach, replies
        self._tracker, self._engine = tracker, engine
        tracker.privacy = plan.privacy
        self._observe = observe
        self._ended: SessionEnd | None = None
        self._faults_in_a_row = 0
        self._audience_error: Exception | None = None
        self._decider = decider
        # experiments that ended in a fault, which may well be one again
        self._retried: set[str] = set()
        if decider:
            self.progress.evidence = decider.text
        self._moved = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    async def run(self) -> SessionEnd:
        """Runs the remaining experiments of the plan. Raises StorageError if the disk refuses."""
        engine = self._working = asyncio.create_task(self._carry_out())
        with self._signals():
            try:
                await engine
            except BaseExceptionGroup as group:
                raise _first(group) from None
            except asyncio.CancelledError:
                if self._ended is None:
                    raise
        tally = self._tracker.tally
        left = self.plan.record.planned - tally.judged - tally.faults
        if left and self._ended and self._is_decided and tally.faults:
            return self._ended._replace(status="incomplete")
        if left:
            return self._ended or SessionEnd("incomplete", f"{left} experiments have not ended")
        called_off = self._ended is not None and self._ended.was_called_off
        return SessionEnd("incomplete" if tally.faults else "complete", was_called_off=called_off)

    async def _carry_out(self) -> None:
        """Runs the engine over the plan, and again over faults that came when nothing else was left to begin."""
        await self._decide()
        await self._engine.run(self)
        while self._has_retries:
            self.spent = self._tracker.tally.cost
            await self._engine.run(self)
        if self._decider and self._ended and self._ended.status == "stopped":
            for decision in self._decider.out_of_money():
                await self.record(decision)

    async def _decide(self, *lines: Record) -> None:
        """Records the decisions that follow from new lines, and stops the run once all are made."""
        if self._decider is None:
            return
        for decision in self._decider.take(lines):
            await self.record(decision)
        if self._decider.leaves_rest and (self._ended is None or self._ended.status in _OVERRIDDEN):
            called_off = self._ended is not None and self._ended.was_called_off
            self._end(SessionEnd(DECIDED, "every comparison is decided", was_called_off=called_off))

    # What the engine reaches

    @property
    def stopping(self) -> str:
        return self.progress.stopping

    async def room(self) -> None:
        """Waits while a run to be decided is too far ahead of what it may count, unless nothing is under way."""
        while self._decider and self.progress.in_flight and not self.stopping and not self.detach:
            if not self._decider.is_far_ahead:
                return
            self._moved.clear()
            await self._moved.wait()

    def work(self) -> Iterator[PendingExperiment]:
        """Draws the remaining experiments, until the session is stopping.

        Once it is decided, those that an engine elsewhere has begun already, since they are paid for.
        """
        for experiment in self._next():
            if self.stopping and (
                not self._is_decided or (self._ended and self._ended.was_called_off)
            ):
                return
            is_settled = self._decider and (
                self.stopping or self._decider.is_settled(experiment.arm.name)
            )
            if is_settled and not self._engine.outlives:
                continue
            recorded = self._tracker.recorded(experiment.experiment_id)
            if is_settled:
                # What was handed to an engine elsewhere, and hasn't come back, is paid for.
                handed = [
                    line for line in recorded if isinstance(line, Submitted | Experiment | Faulted)
                ]
                if not (handed and isinstance(handed[-1], Submitted)):
                    continue
            self.progress.in_flight += 1
            if self._decider and experiment.experiment_id not in self._retried:
                self._decider.begins(experiment.task.id)
            yield PendingExperiment(
                experiment, recorded, is_whole=self._tracker.is_whole(experiment.experiment_id)
            )

    async def record(self, *lines: Record) -> None:
        recorded = await self._tracker.record(*lines)
        self.progress.tokens_out += sum(line.tokens_out for line in lines if isinstance(line, Call))
        if self._observe:
            try:
                for line in recorded:
                    self._observe(line)
            except Exception as error:
                self._audience_error = error  # which is not the solver's doing
                raise

    def text(self, text: Text) -> str:
        return read_text(text, self._tracker.folder)

    async def settle(self, outcome: ExperimentOutcome) -> None:
        """Records the end of an experiment, or ends the run if it couldn't be run."""
        self.progress.in_flight -= 1
        try:
            await self._settled(outcome)
        finally:
            self._moved.set()

    async def _settled(self, outcome: ExperimentOutcome) -> None:
        if self._audience_error:
            raise self._audience_error
        if outcome.record:
            await self.record(outcome.record)
            await self._decide(outcome.record)
        fault = outcome.fault
        if isinstance(fault, RunStopped):
            self.stop("stopped", str(fault))
        elif isinstance(fault, FatalFault):
            self.stop("failed", self._reason(fault))
        elif fault is None:
            self._faults_in_a_row = 0
        elif fault.cause not in _OF_ONE_EXPERIMENT and not (
            outcome.record and outcome.record.experiment_id in self._retried
        ):
            self._count_fault(fault)

    def stop(self, status: str, reason: str) -> None:
        """Begins no more experiments. Those under way go on."""
        self._end(self._ended or SessionEnd(status, reason, was_called_off=status == "interrupted"))

    def _end(self, end: SessionEnd) -> None:
        self._ended = end
        self.progress.stopping = end.reason
        self._moved.set()

    @property
    def _is_decided(self) -> bool:
        return self._ended is not None and self._ended.status == DECIDED

    @property
    def _has_retries(self) -> bool:
        """Whether a fault of a run to be decided is to be tried again, which is done once and at once."""
        is_asking = self.how.calls_allowed and not self.stopping
        return is_asking and self._decider is not None and self._decider.has_retries

    def _next(self) -> Iterator[Identity]:
        """The experiments that are left of the plan, and before each of them those to be tried again."""
        left = self._left()
        while True:
            while self._decider and self._has_retries:
                experiment = self._decider.retry()
                self._retried.add(experiment.experiment_id)
                self._tracker.redo([experiment_number(experiment.experiment_id)])
                yield experiment
            following = next(left, None)
            if following is None:
                return
            # it may have ended in an earlier session
            if following.experiment_id not in self._retried:
                yield following

    def _left(self) -> Iterator[Identity]:
        left = self.plan.experiments(self._tracker.tally.ended)
        if self.how.begins_new and not self.how.rescore:
            return left
        return (
            experiment for experiment in left if self._tracker.is_redone(experiment.experiment_id)
        )

    def _count_fault(self, fault: Fault) -> None:
        self._faults_in_a_row += 1
        if self._faults_in_a_row >= max(_FAULTS_IN_A_ROW, 2 * self.plan.settings.concurrency):
            self.stop(
                "incomplete",
                f"{self._faults_in_a_row} experiments in a row ended in a fault, the last with: {self._reason(fault)}",
            )

    def _reason(self, fault: Fault) -> str:
        return public_reason(str(fault)) if self.plan.privacy else str(fault)

    # Ending early

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop, handled = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        # not in the main thread: its owner handles them
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in handled:
                loop.add_signal_handler(number, self.interrupt)
        try:
            yield
        finally:
            with suppress(NotImplementedError):
                for number in handled:
                    loop.remove_signal_handler(number)

    def interrupt(self) -> None:
        """Ends the session as Ctrl-C does: at once where it is ending, else experiments under way have `grace`."""
        if self.stopping and self._working:
            self._working.cancel()
            return
        self.stop("interrupted", "interrupted")
        if self._working:
            grace = 0 if self._engine.rests else self.plan.settings.grace
            asyncio.get_running_loop().call_later(grace, self._working.cancel)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
