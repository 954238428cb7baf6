"""Sockets of another network, which process 1 of a sandbox makes there and hands out."""

from __future__ import annotations

import socket

_SECONDS = 30.0  # that it has for one


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
