"""As many warm judges as may run at once, started when first needed and replaced when they die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

from koderz.sandbox.trial import Case, Finding
from koderz.sandbox.worker import Worker, WorkerLostError

DEATHS = 3  # of judges in a row over the same candidate, before they are its verdict
HANGS = 2


class Pool:
    """Runs cases on up to `size` judges. Entering starts the first, which finds out what holds here."""

    def __init__(self, size: int, layers: Sequence[str], packages: Mapping[str, str]) -> None:
        self.layers: frozenset[str] = frozenset()
        self._size = size
        self._wanted = (layers, packages)
        self._slots: asyncio.LifoQueue[Worker | None] = asyncio.LifoQueue()  # the warmest first
        self._alone = asyncio.Lock()

    async def __aenter__(self) -> Self:
        first = await Worker.start(*self._wanted)
        self.layers = first.layers
        for _ in range(self._size - 1):
            self._slots.put_nowait(None)
        self._slots.put_nowait(first)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers = [self._slots.get_nowait() for _ in range(self._slots.qsize())]
        await asyncio.gather(*(worker.end() for worker in workers if worker))

    async def run(self, case: Case) -> Finding:
        """Fault when no judge can be started. A case that several judges die over has itself to blame."""
        deaths = hangs = 0
        while deaths < DEATHS and hangs < HANGS:
            try:
                async with self._worker() as worker:
                    return await worker.run(case)
            except WorkerLostError as lost:
                deaths, hangs = deaths + (not lost.hung), hangs + lost.hung
        what = "the tests never came to an end on its results" if hangs else "the process that judged it died"
        return Finding("error", "killed", f"{what}, {deaths + hangs} times")

    async def run_alone(self, case: Case) -> Finding:
        """The same, with no other candidate of this pool running beside it."""
        async with self._alone, AsyncExitStack() as held:
            for _ in range(self._size - 1):
                await held.enter_async_context(self._slot())
            return await self.run(case)

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Worker]:
        """A judge to oneself. Whatever goes wrong meanwhile, also a cancellation, costs the judge its life."""
        worker = await self._slots.get()
        try:
            if worker is None or worker.process.returncode is not None:
                if worker:
                    await worker.kill()
                worker = None
                worker = await Worker.start(*self._wanted)
            yield worker
        except BaseException:
            self._slots.put_nowait(None)
            if worker:
                await asyncio.shield(worker.kill())
            raise
        self._slots.put_nowait(worker)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        worker = await self._slots.get()
        try:
            yield
        finally:
            self._slots.put_nowait(worker)
