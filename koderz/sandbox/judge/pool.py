"""As many warm judges as may run at once, started when first needed and replaced when they die."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Self

from koderz.errors import Fault
from koderz.sandbox.judge.jobs import Job, JobResult
from koderz.sandbox.judge.launch import Premises
from koderz.sandbox.judge.worker import Worker, WorkerLostError
from koderz.sandbox.linux import kernel

DEATHS = 3  # of judges in a row over the same candidate, before they are its verdict
HANGS = 2
PAUSES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # seconds, after each try to start a judge but the last


@dataclass(slots=True)
class Slot:
    """Room for one judge."""

    core: int  # that is its own; negative for none
    worker: Worker | None = None

    async def discard(self) -> None:
        if worker := self.worker:
            self.worker = None
            await worker.kill()


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
            await asyncio.gather(*(slot.worker.end() for slot in slots if slot.worker))

    async def run(self, job: Job) -> JobResult:
        """Fault when no judge can be started. A job that several judges die over has itself to blame."""
        deaths = hangs = 0
        while deaths < DEATHS and hangs < HANGS:
            try:
                async with self._slot() as slot:
                    return await self._run(job, slot)
            except WorkerLostError as lost:
                deaths, hangs = deaths + (not lost.hung), hangs + (HANGS if lost.busy else lost.hung)
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
            if slot.worker is None or not slot.worker.is_alive:
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
                if time.monotonic() - began > premises.start_seconds:  # it hangs, and so would the next
                    raise
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
