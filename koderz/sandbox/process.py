"""Starting koderz' own interpreters: judges, workers of sessions, and process 1 of a workspace.

They have no variable of koderz' and no terminal, and hear from koderz by a socket that is their stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

from koderz.errors import Fault
from koderz.sandbox.frames import take
from koderz.sandbox.launch import ENVIRONMENT

if TYPE_CHECKING:
    from koderz.sandbox.frames import Frame

_READ = 1 << 18


class Process:
    """One such interpreter at work: frames go to it, and come back, by the socket that is its stdin."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process, self._reader, self.writer = process, reader, writer
        self._buffer = bytearray()

    @classmethod
    async def start(
        cls,
        line: Sequence[str],
        name: str,
        seconds: float,
        environment: Mapping[str, str] = ENVIRONMENT,
    ) -> tuple[Process, Frame]:
        """One that runs a `command`, and the frame that it sends first.

        Raises Fault with the last line that it has to say where none comes within so many seconds.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            streams = await asyncio.open_connection(sock=ours)
            process = cls(_begun(line, theirs, environment), *streams)
        assert process._process.stderr is not None
        with process._process.stderr as complaints:
            try:
                async with asyncio.timeout(seconds):
                    return process, await process.receive()
            except (TimeoutError, EOFError, OSError) as error:
                await process.kill()
                raise Fault(
                    f"{name} doesn't start: {_last_line(complaints)}", cause="sandbox"
                ) from error
            except BaseException:
                await process.kill()
                raise

    @property
    def id(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def receive(self) -> Frame:
        """The next frame, whole or not at all: who is called off meanwhile takes nothing of it.

        Raises EOFError or OSError once the process has ended.
        """
        while not (found := take(self._buffer)):
            part = await self._reader.read(_READ)
            if not part:
                raise EOFError
            self._buffer += part
        return found

    async def end(self, grace: float) -> None:
        """Ends it as its socket does; one that doesn't end within so many seconds is killed."""
        try:
            self.writer.write_eof()
            async with asyncio.timeout(grace):
                await self._reader.read()
        except (TimeoutError, OSError):
            pass  # what it would be waited for in vain is done all the same
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Ends it and all that it started: one process group, which nothing contained can leave."""
        self.writer.close()
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.killpg(self.id, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)


async def begin(
    line: Sequence[str],
    connection: socket.socket,
    *,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
) -> asyncio.subprocess.Process:
    """A process whose stdin is a socket to koderz, for what is spoken to otherwise than in frames alone."""
    return await asyncio.create_subprocess_exec(
        *line,
        stdin=connection.fileno(),
        stdout=stdout,
        stderr=stderr,
        env=dict(ENVIRONMENT),
        cwd="/",
        start_new_session=True,  # Ctrl-C is koderz's to handle
    )


async def reap(process: asyncio.subprocess.Process) -> None:
    """Kills a process of asyncio's, unless it is known to have ended, and waits for its end.

    It waits however often it is cancelled: the pipes of a process that isn't waited for are left open. The process' own
    `kill` looks first whether it has ended: one that just has is reaped by that, and asyncio reports 255 as its exit
    code (CPython issue 87744).
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.kill(process.pid, signal.SIGKILL)
    waiting, cancelled = asyncio.create_task(process.wait()), False
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def _begun(
    line: Sequence[str], connection: socket.socket, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts the process without asyncio, which hangs if cancelled during a start (CPython issue 119710)."""
    return subprocess.Popen(
        line,
        stdin=connection.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        cwd="/",
        start_new_session=True,  # Ctrl-C is koderz's to handle
    )


def _last_line(stream: IO[bytes]) -> str:
    """The last line that a process which is no more had to say."""
    os.set_blocking(stream.fileno(), False)
    lines = (stream.read() or b"").decode(errors="replace").strip().splitlines() or [
        "no reason given"
    ]
    return lines[-1].removeprefix("EOFError: ")
