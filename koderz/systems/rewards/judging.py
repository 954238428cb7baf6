"""A judge of replies that stays open: calibrated once, with a queue, for rewards in training."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from koderz.errors import Fault, KoderzError, StorageError, writable
from koderz.runs.judge import Judge
from koderz.sandbox import NoSandbox, Sandbox
from koderz.sandbox.calibration import calibrated_sandbox
from koderz.settings.schema import Settings
from koderz.suites.references import references_of
from koderz.suites.suite import JudgeContext
from koderz.systems.rewards.record import Metrics, Recorder, measured_tasks
from koderz.systems.rewards.scores import DEADLINE, DISK, Item, Score, failed
from koderz.systems.rewards.subjects import ServedSuite, find_task, load_served, require_apart
from koderz.types import JUDGE, Task, Verdict

T = TypeVar("T")

LONG = 0.25  # seconds, after which work no longer counts against the lanes


class QueueFullError(KoderzError):
    """So much is waiting that nothing more is taken."""


class DeadlineError(Exception):
    """Work didn't begin in time."""


class Turn(Generic[T]):
    """A piece of work: its result, and when it arrived and began, by the event loop's clock."""

    def __init__(self, work: Callable[[], Awaitable[T]], now: float) -> None:
        self.work, self.arrived = work, now
        self.begun: float | None = None
        self.ended = 0.0
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None


class Turns(Generic[T]):
    """Runs work on a number of lanes, one piece of each request after the other.

    Work that takes longer than `LONG` leaves its lane to others and goes on beside them, up to `spare` pieces of it.
    """

    def __init__(self, *, lanes: int, spare: int, queue: int) -> None:
        self._lanes, self._spare, self.queue = lanes, spare, queue
        self._requests: deque[deque[Turn[T]]] = deque()
        self._brisk = self._long = 0
        self.waiting = 0  # pieces
        self._running: set[asyncio.Task[None]] = set()

    def take(
        self, works: Sequence[Callable[[], Awaitable[T]]], deadlines: Sequence[float | None]
    ) -> list[Turn[T]]:
        """Takes a request's pieces of work. Raises QueueFullError, and takes none, while the queue is full."""
        if self.waiting >= self.queue:
            raise QueueFullError(
                f"{self.waiting:,} replies are waiting, which is as many as the queue takes"
            )
        loop = asyncio.get_running_loop()
        turns = [Turn(work, loop.time()) for work in works]
        for turn, deadline in zip(turns, deadlines, strict=True):
            if deadline is not None:
                turn.timer = loop.call_later(max(deadline, 0.0), self._miss, turn)
        self.waiting += len(turns)
        if turns:
            self._requests.append(deque(turns))
            self._begin()
        return turns

    async def drain(self) -> None:
        """Returns once all that was taken has been done."""
        while self.waiting or self._running:
            await asyncio.wait([*self._running] or [asyncio.create_task(asyncio.sleep(0))])

    async def cancel(self) -> None:
        """Ends all work."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for turn in (turn for request in self._requests for turn in request):
            if turn.timer:
                turn.timer.cancel()
            turn.result.cancel()
        self._requests.clear()
        self.waiting = 0

    def _miss(self, turn: Turn[T]) -> None:
        if not turn.result.done():
            self.waiting -= 1  # where it stands it is passed over
            turn.result.set_exception(DeadlineError())

    def _begin(self) -> None:
        while self._brisk < self._lanes and self._requests:
            request = self._requests.popleft()
            turn = request.popleft()
            if request:
                self._requests.append(request)
            if turn.result.done():
                continue
            if turn.timer:
                turn.timer.cancel()
            self.waiting -= 1
            self._brisk += 1
            task = asyncio.create_task(self._run(turn))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, turn: Turn[T]) -> None:
        loop = asyncio.get_running_loop()
        turn.begun = loop.time()
        is_long = False

        def lengthen() -> None:
            nonlocal is_long
            if self._long < self._spare:
                is_long = True
                self._long, self._brisk = self._long + 1, self._brisk - 1
                self._begin()

        timer = loop.call_later(LONG, lengthen)
        try:
            found = await turn.work()
            turn.ended = loop.time()
            if not turn.result.done():
                turn.result.set_result(found)
        except asyncio.CancelledError:
            turn.result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - who waits for it is told
            turn.ended = loop.time()
            if not turn.result.done():
                turn.result.set_exception(error)
        finally:
            timer.cancel()
            if is_long:
                self._long -= 1
            else:
                self._brisk -= 1
            self._begin()


QUEUE = 4096
SPARE = 8  # judges beyond the workers, for programs that take long while others wait


class RewardJudge:
    """A judge of replies to the tasks of some suites. Made by `open_judge`."""

    def __init__(
        self,
        served: Sequence[ServedSuite],
        judges: Mapping[str, Judge],
        turns: Turns[Verdict],
        recorder: Recorder,
    ) -> None:
        self.served, self._judges, self._turns, self._recorder = served, judges, turns, recorder
        self._metrics = Metrics()
        self.notes: Sequence[str] = ()
        """What its user should know, such as tasks that runs have measured."""

    @property
    def waiting(self) -> int:
        """The number of replies that wait for a judge."""
        return self._turns.waiting

    @property
    def queue(self) -> int:
        """The number of replies that may wait."""
        return self._turns.queue

    @property
    def folder(self) -> Path | None:
        """The folder of the record; None if there is none."""
        return self._recorder.folder

    async def score(
        self,
        task: str,
        reply: str,
        *,
        suite: str = "",
        graded: bool = False,
        deadline: float | None = None,
        step: int | None = None,
        id: str = "",  # noqa: A002 - the field's name
    ) -> Score:
        """The score of one reply; its parameters are the fields of `Item`.

        Raises UnknownTaskError, and QueueFullError while too many wait.
        """
        return (await self.score_many([Item(task, reply, suite, graded, deadline, step, id)]))[0]

    async def score_many(self, items: Iterable[Item]) -> list[Score]:
        """The scores of replies, in their order. Errors as for `score`; then none of them is judged."""
        asked = [
            replace(item, reply=writable(item.reply), id=writable(item.id) or secrets.token_hex(8))
            for item in items
        ]
        found = [find_task(self.served, item.task, item.suite) for item in asked]
        works = [
            partial(self._verdict, item, *place) for item, place in zip(asked, found, strict=True)
        ]
        turns = self._turns.take(works, [item.deadline for item in asked])
        ending = (self._ended(*each) for each in zip(asked, found, turns, strict=True))
        return [*await asyncio.gather(*ending)]

    def metrics(self, step: int | None = None) -> dict[str, Any]:
        """The figures of a step of the training; None: of all scores."""
        return self._metrics.of(step)

    def all_metrics(self) -> dict[str, Any]:
        """All figures, by step and in all, and the length of the queue."""
        return self._metrics.as_dict(self.waiting)

    async def drain(self) -> None:
        """Returns once nothing waits and nothing is judged."""
        await self._turns.drain()

    async def _verdict(self, item: Item, served: ServedSuite, task: Task) -> Verdict:
        judge = self._judges[served.argument]
        if judge.references:
            await judge.references.require(task)
        context = replace(judge.context, graded=item.graded)
        try:
            return await served.suite.judge(task, item.reply, context)
        except Fault:
            raise
        except Exception as error:  # noqa: BLE001 - the suite's own code may do anything
            await self._require_sound(served, task, context)
            # It is this reply that the suite's code can't take. If that were a fault, a model could make faults.
            return Verdict("error", f"exception:{type(error).__name__}", detail=str(error)[:300])

    async def _require_sound(self, served: ServedSuite, task: Task, context: JudgeContext) -> None:
        """Raises Fault if the suite's code raises an error also for an empty reply."""
        try:
            await served.suite.judge(task, "", context)
        except Fault:
            raise
        except OSError as error:
            raise Fault(f"this machine refuses it: {error}", cause="sandbox") from error
        except Exception as error:
            raise Fault(
                f"the suite's judge raised {type(error).__name__}: {error}", cause="user_code"
            ) from error

    async def _ended(
        self, item: Item, place: tuple[ServedSuite, Task], turn: Turn[Verdict]
    ) -> Score:
        served, task = place
        program: str | None = None
        fault = partial(failed, item, served.argument, task.digest)
        try:
            verdict = await turn.result
        except DeadlineError:
            score = fault(DEADLINE, f"no judge was free within {item.deadline:g} s")
        except Fault as error:
            score = fault(error.cause, str(error))
        else:
            program = verdict.program
            score = Score(
                id=item.id,
                suite=served.argument,
                task=task.id,
                task_digest=task.digest,
                reward=_reward(verdict, graded=item.graded),
                verdict=verdict.verdict,
                cause=verdict.cause,
                tests_passed=verdict.tests_passed,
                tests=verdict.tests,
                tampering=verdict.tampering,
                seconds=round(turn.ended - (turn.begun or turn.ended), 6),
            )
        waited = (turn.begun or asyncio.get_running_loop().time()) - turn.arrived
        try:
            await self._recorder.record(item, score, program)
        except StorageError as error:
            score = fault(DISK, str(error), seconds=score.seconds)
        self._metrics.add(score, waited, item.step)
        return score


def _reward(verdict: Verdict, *, graded: bool) -> float:
    """1 for what passed, else 0; the suite's score where it has one; if graded, the share of tests passed."""
    if verdict.score is not None:
        return min(1.0, max(0.0, verdict.score))
    if verdict.passed:
        return 1.0
    if graded and verdict.tests and verdict.tests_passed is not None:
        return min(verdict.tests_passed, verdict.tests - 1) / verdict.tests
    return 0.0


@asynccontextmanager
async def open_judge(
    *suites: str | Path,
    workers: int | None = None,
    queue: int = QUEUE,
    record: bool = False,
    held_out: Iterable[str | Path] = (),
    settings: Settings | None = None,
) -> AsyncIterator[RewardJudge]:
    """Opens a judge of replies in this process.

    `suites` are names, SUITE=FILE, or files in HumanEval's format. `workers`: how many programs run at once; None: one
    a core. `queue`: replies that may wait. `record`: whether each score is written to a journal in the results folder.
    `held_out`: suites or files of which no task may be served. Raises KoderzError for tasks that can't be served,
    Unreachable where nothing contains programs here.
    """
    settings = settings or Settings()
    served = await asyncio.to_thread(load_served, map(str, suites), settings)
    kept = [*map(str, held_out)]
    await asyncio.to_thread(require_apart, served, kept, settings)
    lanes = workers or settings.judges or os.cpu_count() or 1
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(_sandbox(served, settings, lanes))
        judges = {each.argument: _judge(each, sandbox, lanes) for each in served}
        recorder = stack.enter_context(
            Recorder(settings, served) if record else Recorder(None, served)
        )
        turns: Turns[Verdict] = Turns(lanes=lanes + 1, spare=SPARE, queue=queue)
        opened = RewardJudge(served, judges, turns, recorder)
        opened.notes = (
            () if kept else await asyncio.to_thread(measured_tasks, settings.results, served)
        )
        try:
            yield opened
        finally:
            await turns.cancel()
            for judge in judges.values():
                if judge.references:
                    judge.references.remember()


@asynccontextmanager
async def _sandbox(
    served: Sequence[ServedSuite], settings: Settings, lanes: int
) -> AsyncIterator[Sandbox]:
    needy = [each.suite for each in served if any(JUDGE in task.needs for task in each.suite.tasks)]
    if not needy:
        yield NoSandbox()
        return
    memory = max(suite.limits.memory_mb for suite in needy)
    async with calibrated_sandbox(
        settings.sandbox, judges=lanes + SPARE, memory_mb=memory, settings=settings, yields=True
    ) as sandbox:
        yield sandbox


def _judge(served: ServedSuite, sandbox: Sandbox, lanes: int) -> Judge:
    context = JudgeContext(sandbox, served.suite.limits)
    return Judge(served.suite, context, lanes, references=references_of(served.suite, sandbox))
