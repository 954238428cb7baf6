"""The workers of one run or manager, and their sessions."""

from __future__ import annotations

import asyncio
import itertools
import resource
import secrets
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from koderz.errors import Fault, Unreachable
from koderz.sandbox.wasm.cells import MEMORY_MB, Kind
from koderz.sandbox.wasm.image import Say, ready_image
from koderz.sandbox.wasm.link import Link
from koderz.sandbox.wasm.session import Session


class Pool:
    """Up to `workers` worker processes, each started when first needed, and replaced when it dies.

    Entering builds the image where it isn't there yet; `say` is told of that. It raises Unreachable where sessions of
    that kind can't be had. `at_once` cells execute at once, any number where it is None; those that wait for models
    don't count.
    """

    def __init__(self, kind: Kind, workers: int, *, at_once: int | None = None, say: Say = lambda _: None) -> None:
        self.kind = kind
        self.image = ""  # digest of what sessions are made from
        self._say = say
        self._arguments: Sequence[str] = ()
        self._links: list[Link | None] = [None] * workers
        self._doors = [asyncio.Lock() for _ in range(workers)]
        self.executing = asyncio.Semaphore(at_once or 1_000_000)
        self.sessions: dict[str, Session] = {}

    async def __aenter__(self) -> Self:
        compiled = ""
        if self.kind == "wasm":
            image = await asyncio.to_thread(ready_image, self._say)
            self.image, compiled = image.digest, str(image.compiled)
        self._arguments = (self.kind, compiled)
        try:
            self._links[0] = await Link.start(self._arguments)
        except Fault as error:
            raise Unreachable(str(error)) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sessions.clear()
        await asyncio.gather(*(link.kill() for link in self._links if link))

    def open(self, session_id: str = "", *, memory_mb: int = MEMORY_MB, seed: int = 0) -> Session:
        """A new session. It takes no room before its first use."""
        name = session_id or self.new_id()
        session = self.sessions[name] = Session(name, self, memory=memory_mb << 20, seed=seed)
        return session

    def new_id(self) -> str:
        names = (f"session-{secrets.token_hex(4)}" for _ in itertools.count())
        return next(name for name in names if name not in self.sessions)

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers."""
        return [link.process_id for link in self._links if link and not link.is_lost]

    @property
    def memory(self) -> int:
        """The bytes of memory that the workers use, as far as known."""
        return sum(_resident(process) for process in self.processes)

    async def link(self) -> Link:
        """The worker with the fewest sessions. Raises Fault if none can be started."""
        counts = [link.sessions if link and not link.is_lost else 0 for link in self._links]
        place = counts.index(min(counts))
        async with self._doors[place]:
            found = self._links[place]
            if found is None or found.is_lost:
                if found:
                    await found.kill()
                found = self._links[place] = await Link.start(self._arguments)
            found.sessions += 1
            return found


def _resident(process: int) -> int:
    file = Path(f"/proc/{process}/statm")
    try:
        return int(file.read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):  # it has just ended, or the system has no such file
        return 0
