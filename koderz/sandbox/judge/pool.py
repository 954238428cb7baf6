"""As many warm judges as may run at once, started when first needed and replaced when they die."""

from __future__ import annotations

import asyncio
import itertools
import json
import marshal
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Self

from koderz.errors import Fault
from koderz.sandbox.frames import frame
from koderz.sandbox.judge.jobs import JOB, Job, JobResult
from koderz.sandbox.launch import ENVIRONMENT, command
from koderz.sandbox.linux import kernel, limits
from koderz.sandbox.process import Process

DEATHS = 3  # of judges in a row over the same candidate, before they are its verdict
HANGS = 2
GRACE_SECONDS = 5.0  # beyond a job's wall limit, before the judge itself is taken for stuck
# of that time; a judge that spends more of it on the processor isn't stuck, but busy with what it was told
BUSY = 0.05
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # seconds, after each try to start a judge but the last


class Premises(NamedTuple):
    """Where and how a judge's candidates are kept."""

    layers: Sequence[str]  # wanted
    packages: Mapping[str, str]  # beyond the standard library: name and folder
    container: Sequence[str] = ()  # the command that starts one; empty: candidates run here
    # the variables that this command needs, such as DOCKER_*; no candidate gets them
    passed: Sequence[str] = ()
    start_seconds: float = 30.0  # within which a judge has to be ready
    core: int = -1  # that judge and candidates are bound to, unless negative
    yields: bool = False  # whether a candidate that takes long lets others go first


class WorkerLostError(Exception):
    """A judge that died, or, if `hung`, had to be ended; if `busy`, because the candidate's results kept it so."""

    def __init__(self, *, hung: bool, busy: bool = False) -> None:
        super().__init__("hung" if hung else "died")
        self.hung, self.busy = hung, busy


class Worker:
    """One warm judge with its zygote; nothing here ever blocks the loop."""

    def __init__(self, process: Process, layers: frozenset[str]) -> None:
        self.process, self.layers = process, layers

    @classmethod
    async def start(cls, premises: Premises) -> Worker:
        """Raises Fault where it doesn't come up."""
        patterns = premises.passed
        passed = {
            name: value
            for name, value in os.environ.items()
            if any(fnmatchcase(name, each) for each in patterns)
        }
        line = command(
            f"{__package__}.start",
            [json.dumps({**premises._asdict(), "environment": [*ENVIRONMENT]})],
        )
        found = await Process.start(
            line, "the judge", premises.start_seconds, {**passed, **ENVIRONMENT}
        )
        process, (_, _, layers) = found
        return cls(process, frozenset(json.loads(layers)))

    async def run(self, job: Job) -> JobResult:
        """The judge's result. Raises WorkerLostError where it dies or gets stuck, after which it is of no more use."""
        self.process.writer.write(frame(JOB, marshal.dumps(tuple(job))))
        # None: the tests are loaded, and the clock starts anew
        while (result := await self._result(job.wall)) is None:
            pass
        return JobResult(*result)

    async def _result(self, wall: float) -> Any:
        """The judge's next message, within so many seconds and the grace. WorkerLostError as in `run`."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wall):
                    return await self._received()
            before = self._cpu_seconds()
            async with asyncio.timeout(GRACE_SECONDS):
                return await self._received()
        except TimeoutError as error:
            raise WorkerLostError(
                hung=True, busy=self._cpu_seconds() - before > BUSY * GRACE_SECONDS
            ) from error
        except (EOFError, OSError) as error:
            raise WorkerLostError(hung=False) from error

    async def _received(self) -> Any:
        _, _, message = await self.process.receive()
        return json.loads(message)

    def _cpu_seconds(self) -> float:
        """CPU that the judge has used; 0 once it has ended."""
        try:
            return limits.cpu_seconds(self.process.id)
        except OSError:
            return 0.0


@dataclass(slots=True)
class Slot:
    """Room for one judge."""

    core: int  # that is its own; negative for none
    worker: Worker | None = None

    async def discard(self) -> None:
        if worker := self.worker:
            self.worker = None
            await worker.process.kill()


class Pool:
    """Runs jobs on up to `size` judges. Entering starts the first, which finds out what holds here."""

    def __init__(self, size: int, premises: Premises) -> None:
        self.layers: frozenset[str] = frozenset()
        self._size = size
        self._premises = premises
        self._slots: asyncio.LifoQueue[Slot] = asyncio.LifoQueue()  # the warmest first
        self._alone = asyncio.Lock()
        self._hidden = ExitStack()

    async def __aenter__(self) -> Self:
        slots = [Slot(core) for core in itertools.islice(_cores(), self._size)][::-1]
        with ExitStack() as hidden:
            # Keys are in this process: where nothing else does, this keeps programs of the same user from reading them.
            hidden.enter_context(kernel.HiddenMemory())
            first = slots[-1].worker = await self._started(slots[-1].core)
            self._hidden = hidden.pop_all()
        self.layers = first.layers
        for slot in slots:
            self._slots.put_nowait(slot)
        return self

    async def __aexit__(self, *_: object) -> None:
        slots = [self._slots.get_nowait() for _ in range(self._slots.qsize())]
        with self._hidden:
            await asyncio.gather(
                *(slot.worker.process.end(GRACE_SECONDS) for slot in slots if slot.worker)
            )

    async def run(self, job: Job) -> JobResult:
        """Fault when no judge can be started. A job that several judges die over has itself to blame."""
        deaths = hangs = 0
        while deaths < DEATHS and hangs < HANGS:
            try:
                async with self._slot() as slot:
                    return await self._run(job, slot)
            except WorkerLostError as lost:
                deaths, hangs = (
                    deaths + (not lost.hung),
                    hangs + (HANGS if lost.busy else lost.hung),
                )
        if hangs:
            return JobResult("error", "killed", "the tests never came to an end on its results")
        return JobResult("error", "killed", f"the process that judged it died, {deaths} times")

    async def run_alone(self, job: Job) -> JobResult:
        """The same, with no other candidate of this pool running beside it."""
        async with self._alone, AsyncExitStack() as held:
            for _ in range(self._size - 1):
                await held.enter_async_context(self._slot())
            return await self.run(job)

    async def _run(self, job: Job, slot: Slot) -> JobResult:
        """Whatever goes wrong meanwhile, also a cancellation, costs the judge its life."""
        try:
            if slot.worker is None or not slot.worker.process.is_alive:
                await slot.discard()
                slot.worker = await self._started(slot.core)
            return await slot.worker.run(job)
        except BaseException:
            await asyncio.shield(slot.discard())
            raise

    async def _started(self, core: int) -> Worker:
        """A new judge; one that is killed on its way gets a successor. Fault when none comes up."""
        premises = self._premises._replace(core=core)
        began = time.monotonic()
        for pause in PAUSES:
            try:
                return await Worker.start(premises)
            except Fault:
                if time.monotonic() - began > premises.start_seconds:
                    raise  # it hangs, and so would the next
            await asyncio.sleep(pause)
        return await Worker.start(premises)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[Slot]:
        slot = await self._slots.get()
        try:
            yield slot
        finally:
            self._slots.put_nowait(slot)


def _cores() -> Iterator[int]:
    """The cores that judges are given: a judge and its candidate take turns, and do so best on one.

    They begin elsewhere in every process, so that two runs at once don't share one core. Judges beyond the number
    of cores go where there is room.
    """
    if not hasattr(os, "sched_getaffinity"):
        return itertools.repeat(-1)
    cores = sorted(os.sched_getaffinity(0))
    first = os.getpid() % len(cores)
    return itertools.chain(cores[first:], cores[:first], itertools.repeat(-1))
