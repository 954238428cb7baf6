"""Messages between koderz and a process that it started in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from koderz.sandbox.workspace import Running

MOST = 256 << 20  # bytes of one message


class Lost(Exception):
    """The other side broke the protocol or fell silent."""


@dataclass(slots=True)
class Frames:
    """Messages to and from a process: four bytes of length, and as many more."""

    running: Running

    async def send(self, *contents: bytes) -> None:
        """Sends messages. Raises Lost if the process doesn't read any more."""
        framed = b"".join(len(content).to_bytes(4, "big") + content for content in contents)
        with _lost():
            await asyncio.get_running_loop().sock_sendall(self.running.channel, framed)

    async def receive(self) -> bytes:
        """The next message. Raises Lost if there is none, or it is too large."""
        size = int.from_bytes(await self._exactly(4), "big")
        if size > MOST:
            raise Lost(f"an output is larger than {MOST >> 20} MB")
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        loop, content = asyncio.get_running_loop(), bytearray()
        while len(content) < size:
            with _lost():
                part = await loop.sock_recv(self.running.channel, min(size - len(content), 1 << 20))
            if not part:
                raise Lost("")
            content += part
        return bytes(content)


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise Lost("") from None


async def how_ended(running: Running) -> str:
    """The way in which a process ended too early, as text."""
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            ended = await asyncio.shield(running.ended)
            return f"{ended.cause or f'exit code {ended.status}'}: {ended.output[-500:].strip()}"
    return "it says nothing more"
