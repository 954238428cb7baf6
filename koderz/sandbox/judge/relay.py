"""What runs in a container: a zygote, and its two sockets carried over stdin and stdout.

Candidates are forked and held there exactly as they are outside; `remote` is the other end. The relay
reads whatever the judge sends, so that no candidate that doesn't listen can hold the judge up. When
stdin ends, everything in the container does.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from koderz.sandbox.judge import zygote

FRAME = struct.Struct("<cII")  # kind, which candidate, bytes that follow

READY = b"r"  # to the judge, first: the layers that hold, as JSON
SPAWN = b"s"  # to the relay: an order for the zygote
DATA = b"d"  # both ways: bytes from or for the candidate
GONE = b"x"  # to the judge: the candidate hung up
END = b"e"  # to the relay, and with its ending back again

_CHUNK = 64 << 10
_FULL = 1 << 20  # bytes waiting for the judge, beyond which the candidate waits too


def framed(kind: bytes, number: int, payload: bytes = b"") -> bytes:
    return FRAME.pack(kind, number, len(payload)) + payload


def taken(buffer: bytearray) -> Iterator[tuple[bytes, int, bytes]]:
    """The whole frames at the head of a buffer, taken out of it one by one."""
    while len(buffer) >= FRAME.size:
        kind, number, size = FRAME.unpack_from(buffer)
        if len(buffer) < FRAME.size + size:
            return
        payload = bytes(buffer[FRAME.size : FRAME.size + size])
        del buffer[: FRAME.size + size]
        yield kind, number, payload


def main(layers: Sequence[str]) -> NoReturn:
    """`layers`: those wanted of the zygote."""
    control, theirs = socket.socketpair()
    if not os.fork():
        control.close()
        _become_zygote(theirs)
    theirs.close()
    control.sendall(json.dumps(zygote.Setup([*layers], {})).encode() + b"\n")
    with control.makefile("rb") as answer:
        held = answer.readline().strip()
    if held:
        Relay(control, held).run()
    sys.exit(1)


def _become_zygote(control: socket.socket) -> NoReturn:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    sys.meta_path.pop(0)  # what found koderz' own modules
    zygote.main([str(control.fileno())])


class Relay:
    """Between the judge's pipe, the zygote, and the one candidate there is at a time."""

    def __init__(self, control: socket.socket, held: bytes) -> None:
        self._control = control
        self._candidate: socket.socket | None = None
        self._number = 0
        self._heard = True  # no more comes from the candidate
        self._read = bytearray()
        self._for_judge = bytearray(framed(READY, 0, held))
        self._for_candidate = bytearray()

    def run(self) -> None:
        """Returns when the judge hangs up or the zygote is gone."""
        os.set_blocking(1, False)
        while True:
            readable, writable = self._ready()
            if 1 in writable:
                del self._for_judge[: os.write(1, self._for_judge[:_CHUNK])]
            if self._candidate in writable:
                self._feed()
            if self._candidate in readable:
                self._listen()
            if 0 in readable and not self._obey(os.read(0, _CHUNK)):
                return

    def _ready(self) -> tuple[list[Any], list[Any]]:
        talks = self._candidate and not self._heard and len(self._for_judge) < _FULL
        wanted: list[Any] = [0, *([self._candidate] if talks else [])]
        pending: list[Any] = [1] if self._for_judge else []
        pending += [self._candidate] if self._for_candidate else []
        readable, writable, _ = select.select(wanted, pending, [])
        return readable, writable

    def _obey(self, data: bytes) -> bool:
        """Does what the judge says. False when there is nothing more to be done."""
        self._read += data
        for kind, number, payload in taken(self._read):
            if kind == SPAWN:
                self._spawn(number, payload)
            elif kind == DATA and number == self._number and self._candidate:
                self._for_candidate += payload
            elif kind == END and not self._end():
                return False
        return bool(data)

    def _spawn(self, number: int, order: bytes) -> None:
        self._candidate, theirs = socket.socketpair()
        self._candidate.setblocking(False)
        self._number, self._heard = number, False
        with theirs:
            socket.send_fds(self._control, [order], [theirs.fileno()])

    def _end(self) -> bool:
        self._control.sendall(zygote.END)
        ending = self._control.recv(zygote.ENDING.size, socket.MSG_WAITALL)
        self._drop()
        self._for_judge += framed(END, self._number, ending)
        return len(ending) == zygote.ENDING.size

    def _drop(self) -> None:
        self._for_candidate.clear()
        if self._candidate:
            self._candidate.close()
            self._candidate = None

    def _feed(self) -> None:
        assert self._candidate is not None
        try:
            del self._for_candidate[: self._candidate.send(self._for_candidate[:_CHUNK])]
        except OSError:  # it is gone, which listening tells too
            self._for_candidate.clear()

    def _listen(self) -> None:
        assert self._candidate is not None
        try:
            data = self._candidate.recv(_CHUNK)
        except OSError:
            data = b""
        self._heard = not data
        self._for_judge += framed(DATA if data else GONE, self._number, data)
