"""A command at work, as backends follow it: its output, the disk that it takes, and sockets of its network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path

# seconds between two looks at the disk, and in times of what a look takes
_LEAST_PAUSE, _PAUSES = 1.0, 20
_SECONDS = 30.0  # that process 1 has for a socket


class Output:
    """Output of a command; its beginning and end if it exceeds the limit."""

    def __init__(self, limit: int) -> None:
        self._half, self._head, self._tail, self._size = limit // 2, bytearray(), bytearray(), 0

    async def read(self, stream: asyncio.StreamReader) -> None:
        while part := await stream.read(1 << 16):
            self.add(part)

    def add(self, part: bytes) -> None:
        self._size += len(part)
        room = self._half - len(self._head)
        self._head += part[:room]
        self._tail += part[room:] if room > 0 else part
        if len(self._tail) > self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        dropped = self._size - len(self._head) - len(self._tail)
        return f"{head}\n[{dropped:,} bytes dropped]\n{tail}" if dropped else head + tail


class Sockets:
    """Makes sockets of a command's own network, to be connected to what listens on its loopback."""

    def __init__(self) -> None:
        self._door: socket.socket | None = None

    def open(self, door: socket.socket) -> None:
        """By the socket that process 1 answers."""
        door.settimeout(_SECONDS)
        self._door = door

    def close(self) -> None:
        """Asks for no more."""
        if self._door:
            self._door.close()

    def __call__(self, _address: object) -> socket.socket:
        """A TCP socket that isn't connected yet. Raises OSError where there is nothing to be reached."""
        if self._door is None:
            raise ConnectionRefusedError("the command isn't reachable")
        self._door.sendall(b".")
        _, descriptors, *_ = socket.recv_fds(self._door, 1, 1)
        if not descriptors:
            raise ConnectionRefusedError("the command has ended")
        return socket.socket(fileno=descriptors[0])


async def too_large(place: Path, limit: int) -> None:
    """Returns when the folder takes more bytes than that."""
    while True:
        began = time.monotonic()
        if await asyncio.to_thread(occupied, place) > limit:
            return
        await asyncio.sleep(max(_LEAST_PAUSE, _PAUSES * (time.monotonic() - began)))


def occupied(folder: Path | str) -> int:
    """Bytes of disk that a folder takes; links in it aren't followed."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return total
