"""One worker process, used from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from koderz.sandbox.launch import command
from koderz.sandbox.process import Process
from koderz.systems.long_context.wasm.messages import packed, unpacked

START_SECONDS = 60.0

Event = tuple[dict[str, Any], bytes]


class WorkerLostError(Exception):
    """The worker has died with all its sessions."""


class Link:
    """A worker process, and requests to it."""

    def __init__(self, process: Process) -> None:
        self.is_lost = False
        self.sessions = 0  # that live there
        self.process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[Event | None]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, arguments: Sequence[str]) -> Link:
        """Starts a worker. Raises Fault if that fails. `arguments`: those of `worker.main`."""
        line = command(f"{__package__}.worker", arguments, packages=("wasmtime",))
        process, _ = await Process.start(line, "the worker of sessions", START_SECONDS)
        return cls(process)

    async def ask(self, operation: str, session: str, data: bytes = b"", **head: Any) -> Event:
        """The answer to a request without events."""
        async with self.asking(operation, session, data, **head) as events:
            return await next_of(events)

    @contextlib.asynccontextmanager
    async def asking(
        self, operation: str, session: str, data: bytes = b"", **head: Any
    ) -> AsyncIterator[asyncio.Queue[Event | None]]:
        """The events of a request, then its answer; None if the worker is lost."""
        number = next(self._numbers)
        events = self._waiting[number] = asyncio.Queue()
        try:
            await self.send({"op": operation, "id": number, "session": session, **head}, data)
            yield events
        finally:
            del self._waiting[number]

    async def send(self, head: dict[str, Any], data: bytes = b"") -> None:
        if self.is_lost:
            raise WorkerLostError
        try:
            self.process.writer.write(packed(head, data))
            await self.process.writer.drain()
        except OSError as error:
            self._lose()  # else the next try could come here again before the end is heard of
            raise WorkerLostError from error

    async def kill(self) -> None:
        """Ends the worker and all its children."""
        self._lose()
        await self.process.kill()
        await self._listening

    def _lose(self) -> None:
        self.is_lost = True
        for events in self._waiting.values():
            events.put_nowait(None)

    async def _listen(self) -> None:
        try:
            while True:
                _, _, payload = await self.process.receive()
                head, data = unpacked(payload)
                if events := self._waiting.get(head["id"]):
                    events.put_nowait((head, data))
        except (EOFError, OSError, ValueError):
            self._lose()


async def next_of(events: asyncio.Queue[Event | None]) -> Event:
    """The next event. Raises WorkerLostError."""
    event = await events.get()
    if event is None:
        raise WorkerLostError
    return event
