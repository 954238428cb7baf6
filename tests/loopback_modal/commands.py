"""Commands in sandboxes, as Modal's task command router runs them: started, fed, read and waited for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from tests.loopback_modal.processes import WORK, Box, installed, kill, start
from tests.loopback_modal.store import Bells, new_id

PIECE = 1 << 16  # bytes


@dataclass(slots=True)
class Output:
    """What came out of a stream so far."""

    data: bytearray = field(default_factory=bytearray)
    closed: bool = False


class Command:
    """A process with its streams; rings `id` when there is more to read, or it has ended."""

    def __init__(self, process: asyncio.subprocess.Process, bells: Bells) -> None:
        self.id = new_id("ex")
        self.process, self._bells = process, bells
        self.stdout, self.stderr = Output(), Output()
        self.written, self.stdin_closed = 0, False
        self.finished = asyncio.create_task(self._drain())

    @classmethod
    async def start(
        cls, box: Box, arguments: Sequence[str], folder: str, variables: Mapping[str, str], bells: Bells
    ) -> Self:
        """Raises OSError for a program that isn't there."""
        environment = {"PYTHONPATH": os.pathsep.join(installed()), **box.environment, **variables}
        process = await start(box, list(arguments), environment, folder=folder or WORK, stdin=asyncio.subprocess.PIPE)
        return cls(process, bells)

    async def write(self, data: bytes, offset: int, *, eof: bool) -> None:
        """Feeds it; what was written already, as `offset` shows, isn't written again."""
        stdin = self.process.stdin
        assert stdin is not None
        fresh = data[max(self.written - offset, 0) :]
        try:
            stdin.write(fresh)
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            eof = True  # nobody reads it: as at a terminal, that isn't the writer's fault
        self.written += len(fresh)
        if eof and not self.stdin_closed:
            self.stdin_closed = True
            stdin.close()

    async def more(self, seconds: float) -> None:
        """Returns when there is more to read, or it has ended, or after so many seconds."""
        await self._bells.wait(self.id, seconds)

    @property
    def code(self) -> int | None:
        """None while it runs."""
        return self.finished.result() if self.finished.done() else None

    def kill(self) -> None:
        kill(self.process)

    async def _drain(self) -> int:
        """Its exit code, or minus the signal that ended it, once all its output is here."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        await asyncio.gather(self._pump(self.process.stdout, self.stdout), self._pump(self.process.stderr, self.stderr))
        code = await self.process.wait()
        self._bells.ring(self.id)
        return code

    async def _pump(self, stream: asyncio.StreamReader, output: Output) -> None:
        while piece := await stream.read(PIECE):
            output.data += piece
            self._bells.ring(self.id)
        output.closed = True
        self._bells.ring(self.id)
