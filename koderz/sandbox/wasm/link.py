"""One worker process, used from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from typing import Any

from koderz.errors import Fault
from koderz.sandbox.judge.launch import ENVIRONMENT, command
from koderz.sandbox.wasm.frames import HEADER, packed

START_SECONDS = 60.0

Event = tuple[dict[str, Any], bytes]


class WorkerLostError(Exception):
    """The worker has died with all its sessions."""


class Link:
    """A worker process, and requests to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.is_lost = False
        self.sessions = 0  # that live there
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[Event | None]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, arguments: Sequence[str]) -> Link:
        """Starts a worker. Raises Fault if that fails. `arguments`: those of `worker.main`."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = _begun(arguments, theirs)
        link = cls(process)
        link._reader, link._writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(START_SECONDS):
                await link._received()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            await link.kill()
            assert process.stderr is not None
            said = (process.stderr.read() or b"").decode(errors="replace").strip().splitlines()
            raise Fault(
                f"the worker of sessions doesn't start: {(said or ['no reason given'])[-1]}", cause="sandbox"
            ) from None
        assert process.stderr is not None
        process.stderr.close()
        link._listening = asyncio.create_task(link._listen())
        return link

    @property
    def process_id(self) -> int:
        return self._process.pid

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
            self._writer.write(packed(head, data))
            await self._writer.drain()
        except OSError as error:
            self._lose()  # else the next try could come here again before the end is heard of
            raise WorkerLostError from error

    async def kill(self) -> None:
        """Ends the worker and all its children."""
        self._lose()
        self._writer.close()
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
        if self._listening:
            await self._listening

    def _lose(self) -> None:
        self.is_lost = True
        for events in self._waiting.values():
            events.put_nowait(None)

    async def _listen(self) -> None:
        try:
            while True:
                head, data = await self._received()
                if events := self._waiting.get(head["id"]):
                    events.put_nowait((head, data))
        except (asyncio.IncompleteReadError, OSError, ValueError):
            self._lose()

    async def _received(self) -> Event:
        head, data = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        return json.loads(await self._reader.readexactly(head)), await self._reader.readexactly(data)


async def next_of(events: asyncio.Queue[Event | None]) -> Event:
    """The next event. Raises WorkerLostError."""
    event = await events.get()
    if event is None:
        raise WorkerLostError
    return event


def _begun(arguments: Sequence[str], connection: socket.socket) -> subprocess.Popen[bytes]:
    """Starts the process without asyncio, which hangs if cancelled during a start (CPython issue 119710)."""
    return subprocess.Popen(
        command("wasm.worker", arguments, packages=("wasmtime",)),
        stdin=connection.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        cwd="/",
        start_new_session=True,  # Ctrl-C is koderz's to handle
    )
