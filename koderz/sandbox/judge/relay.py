"""A zygote's two sockets carried over a pipe, such as a container's stdin and stdout.

Candidates are forked and held at its far end exactly as they are outside; `remote` is the near end. The far one
reads whatever the judge sends, so that no candidate that doesn't listen can hold the judge up. When
stdin ends, everything in the container does.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from typing import Any, NoReturn

from koderz.sandbox.frames import frame, take
from koderz.sandbox.judge import zygote

READY = b"r"  # to the judge, first: what the zygote said, once it was set up
SPAWN = b"s"  # to the zygote: an order
DATA = b"d"  # both ways: bytes from or for the candidate
GONE = b"x"  # both ways: who sent them hung up
END = b"e"  # to the zygote, and with its ending back again

_CHUNK = 64 << 10
FULL = 1 << 20  # bytes waiting to leave, beyond which those who bring more wait too


class Relay:
    """One end of the pipe, and the socket of the one candidate there is at a time: to that itself, or to the judge."""

    def __init__(self, control: socket.socket, source: int, sink: int) -> None:
        self.control, self.source, self._sink = control, source, sink
        self._candidate: socket.socket | None = None
        self.number = 0
        self._heard = True  # no more comes from the candidate's socket
        self._told = False  # no more comes for it
        self._read = bytearray()
        self.for_pipe = bytearray()
        self.for_candidate = bytearray()

    def run(self) -> None:
        """Returns when the other end hangs up, or who is at this one."""
        os.set_blocking(self._sink, False)
        while self._carry():
            pass

    def sources(self) -> list[Any]:
        """Descriptors that are polled besides the candidate's."""
        raise NotImplementedError

    def obey(self, kind: bytes, number: int, payload: bytes) -> bool:
        """Does what a frame says that isn't the candidate's. False when there is nothing more to be done."""
        raise NotImplementedError

    def asked(self) -> bool:
        """The same for what comes by the other socket."""
        raise NotImplementedError

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self.for_pipe += frame(kind, payload, self.number)

    def take_on(self, candidate: socket.socket, number: int) -> None:
        candidate.setblocking(False)
        self._candidate, self.number = candidate, number
        self._heard = self._told = False

    def drop(self) -> None:
        self.for_candidate.clear()
        if self._candidate:
            self._candidate.close()
            self._candidate = None

    def _carry(self) -> bool:
        """Waits, and carries what there is. False when there is nothing more to be done."""
        wanted = self.sources()
        pending: list[Any] = [self._sink] if self.for_pipe else []
        if self._candidate and not self._heard and len(self.for_pipe) < FULL:
            wanted.append(self._candidate)
        if self._candidate and (self.for_candidate or self._told):
            pending.append(self._candidate)
        readable, writable, _ = select.select(wanted, pending, [])
        if self._sink in writable:
            del self.for_pipe[: os.write(self._sink, self.for_pipe[:_CHUNK])]
        if self._candidate in writable:
            self._feed()
        if self._candidate in readable:
            self._listen()
        if self.control in readable and not self.asked():
            return False
        return self.source not in readable or self._taken(os.read(self.source, _CHUNK))

    def _taken(self, data: bytes) -> bool:
        self._read += data
        while found := take(self._read, FULL):
            kind, number, payload = found
            if kind not in (DATA, GONE):
                if not self.obey(kind, number, payload):
                    return False
            elif number == self.number and self._candidate:
                self.for_candidate += payload
                self._told = kind == GONE
        return bool(data)

    def _feed(self) -> None:
        assert self._candidate is not None
        try:
            del self.for_candidate[: self._candidate.send(self.for_candidate[:_CHUNK])]
            if self._told and not self.for_candidate:
                self._candidate.shutdown(socket.SHUT_WR)
                self._told = False
        except OSError:  # it is gone, which listening tells too
            self.for_candidate.clear()
            self._told = False

    def _listen(self) -> None:
        assert self._candidate is not None
        try:
            data = self._candidate.recv(_CHUNK)
        except OSError:
            data = b""
        self._heard = not data
        self.send(DATA if data else GONE, data)


class FarEnd(Relay):
    """Beside the zygote."""

    def sources(self) -> list[Any]:
        return [self.source]

    def obey(self, kind: bytes, number: int, payload: bytes) -> bool:
        if kind == SPAWN:
            ours, theirs = socket.socketpair()
            self.take_on(ours, number)
            with theirs:
                socket.send_fds(self.control, [payload], [theirs.fileno()])
            return True
        self.control.sendall(zygote.END)
        ending = self.control.recv(zygote.ENDING.size, socket.MSG_WAITALL)
        self.drop()
        self.send(END, ending)
        return len(ending) == zygote.ENDING.size


def main(setup: bytes) -> NoReturn:
    """`setup`: the line that the judge has for its zygote."""
    control, _ = zygote.forked(_become_zygote)
    control.sendall(setup)
    with control.makefile("rb") as answer:
        held = answer.readline()
    if held:
        end = FarEnd(control, 0, 1)
        end.send(READY, held)
        end.run()
    sys.exit(1)


def _become_zygote(control: socket.socket) -> NoReturn:
    sys.meta_path.pop(0)  # what found koderz' own modules
    zygote.main([str(control.detach())])
