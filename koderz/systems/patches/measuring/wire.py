"""Messages between koderz and a process that it started in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from koderz.sandbox.frames import OversizeError, frame, take
from koderz.sandbox.workspace import Running

MOST = 256 << 20  # bytes of one message
_MESSAGE = b"m"  # the kind of frame that one is


class ProtocolBroken(Exception):
    """The other side broke the protocol or fell silent."""


@dataclass(slots=True)
class Frames:
    """Messages to and from a process, each a frame."""

    running: Running
    _buffer: bytearray = field(default_factory=bytearray)

    async def send(self, *contents: bytes) -> None:
        """Sends messages. Raises Lost if the process doesn't read any more."""
        framed = b"".join(frame(_MESSAGE, content) for content in contents)
        with _lost():
            await asyncio.get_running_loop().sock_sendall(self.running.channel, framed)

    async def receive(self) -> bytes:
        """The next message. Raises Lost if there is none, or it is too large."""
        loop = asyncio.get_running_loop()
        try:
            while not (found := take(self._buffer, MOST)):
                with _lost():
                    part = await loop.sock_recv(self.running.channel, 1 << 20)
                if not part:
                    raise ProtocolBroken("")
                self._buffer += part
        except OversizeError:
            raise ProtocolBroken(f"an output is larger than {MOST >> 20} MB") from None
        return found[2]


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise ProtocolBroken("") from None


async def how_ended(running: Running) -> str:
    """The way in which a process ended too early, as text."""
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            ended = await asyncio.shield(running.ended)
            return f"{ended.cause or f'exit code {ended.status}'}: {ended.output[-500:].strip()}"
    return "it says nothing more"
