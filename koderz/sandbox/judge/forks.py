"""A zygote and its candidates, as their judge sees them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from koderz.sandbox.judge.zygote import END, ENDING, ORDER, SECONDS, USED, Setup, sealed_file


class Ending(NamedTuple):
    """How a candidate ended."""

    status: int  # exit code, or minus the signal
    cpu: float  # seconds
    overdue: bool  # it used up its CPU


class Zygote:
    """A zygote as its judge sees it: the other end of its socket, and how its end is waited for.

    Where candidates run elsewhere, a relay stands in for it (see `remote`), which says in a line what went wrong there.
    `guest`: source whose `serve(descriptor)` is what each candidate is, in place of one that answers calls.
    EOFError from any method when it is gone.
    """

    def __init__(
        self,
        control: socket.socket,
        wait: Callable[[], object],
        layers: Sequence[str],
        packages: Mapping[str, str],
        guest: str = "",
        *,
        yields: bool = False,
    ) -> None:
        self._control, self._wait = control, wait
        setup = Setup([*layers], dict(packages), guest, yields)
        self._control.sendall(json.dumps(setup).encode() + b"\n")
        with self._control.makefile("rb") as answer:
            told = json.loads(_something(answer.readline()))
        if isinstance(told, str):
            raise EOFError(told)  # noqa: TRY004 - it is what went wrong
        self.layers = frozenset[str](told)

    def spawn(self, cpu: float, memory: int, stdin: bytes | None = None) -> socket.socket:
        """Forks a candidate and returns the judge's end of its socket. `memory` in bytes.

        With `stdin`, a file of these bytes is the candidate's standard input, which it can read and not change.
        """
        ours, theirs = socket.socketpair()
        with theirs, _file(stdin) as files:
            try:
                socket.send_fds(self._control, [ORDER.pack(cpu, memory)], [theirs.fileno(), *files])
            except OSError as error:
                ours.close()
                raise EOFError("the zygote is gone") from error
        return ours

    def used(self) -> float:
        """CPU seconds that the candidate has used so far."""
        return float(SECONDS.unpack(self._asked(USED, SECONDS.size))[0])

    def end(self) -> Ending:
        """Ends the candidate, if it hasn't ended by itself."""
        status, cpu, overdue = ENDING.unpack(self._asked(END, ENDING.size))
        return Ending(os.waitstatus_to_exitcode(status), cpu, overdue)

    def _asked(self, question: bytes, size: int) -> bytes:
        try:
            self._control.sendall(question)
            return _something(self._control.recv(size, socket.MSG_WAITALL))
        except OSError as error:
            raise EOFError("the zygote is gone") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._wait()


@contextmanager
def _file(data: bytes | None) -> Iterator[list[int]]:
    """The descriptor of a file with these bytes; none for None."""
    descriptors = [] if data is None else [sealed_file(data)]
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _something(data: bytes) -> bytes:
    if not data:
        raise EOFError("the zygote is gone")
    return data
