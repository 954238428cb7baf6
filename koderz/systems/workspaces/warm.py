"""The host's python3 with what a script needs loaded, from which the sandboxes that run it are forked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from koderz.sandbox.launch import command
from koderz.sandbox.process import begin, reap
from koderz.systems.workspaces import userland

_LOAD_SECONDS = 30.0
_END_SECONDS = 1.0
_OF_THE_START = ("PATH", "LD_", "GLIBC_", "MALLOC_")  # variables that `python3 -I` heeds as it starts


class Interpreter:
    """One that is ready."""

    def __init__(self, process: asyncio.subprocess.Process, orders: socket.socket) -> None:
        self._process, self._orders = process, orders

    @classmethod
    async def started(cls, script: Path) -> Self | None:
        """With what the script's `load()` loads; None where that isn't to be had, or can't be forked."""
        orders, theirs = socket.socketpair()
        orders.setblocking(False)
        with theirs:
            boot = command("koderz.systems.workspaces.inside.warm", [])[-1]
            process = await begin([userland.python().executable, "-I", "-B", "-c", boot, str(script)], theirs)
        ready = b""
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                ready = await asyncio.get_running_loop().sock_recv(orders, 1)
        except (TimeoutError, OSError):
            pass
        finally:
            if not ready:
                await cls(process, orders).end()
        return cls(process, orders) if ready else None

    @asynccontextmanager
    async def forked(self, control: socket.socket) -> AsyncIterator[asyncio.StreamReader]:
        """Output of a fork that becomes process 1 of a sandbox with that socket; None if it can't be made."""
        reading, writing = os.pipe()
        printed = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(printed), os.fdopen(reading, "rb", 0)
        )
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(self._orders, [b"."], [control.fileno(), writing])
            os.close(writing)
            yield printed
        finally:
            with contextlib.suppress(TimeoutError):  # all that had the other end is gone when it closes
                async with asyncio.timeout(_END_SECONDS):
                    await asyncio.sleep(0)
                    while await printed.read(1 << 16):
                        pass
            transport.close()

    async def end(self) -> None:
        """Ends it, and what is forked from it."""
        self._orders.close()
        await reap(self._process)


def fits(environment: Mapping[str, str]) -> bool:
    """Whether `python3 -I` with these variables would start as one that is running already."""
    return not any(name.startswith(_OF_THE_START) for name in environment)
