"""The trusted process: holds the tests, asks the candidates, tells koderz what it found.

One socket to koderz as stdin; jobs come in one at a time as marshalled `Case`s from a side that is
trusted, findings go back as JSON. `start` makes it, with next to nothing in its environment.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from koderz.sandbox.judge import trial, wire
from koderz.sandbox.judge.cases import Case
from koderz.sandbox.judge.forks import Zygote
from koderz.sandbox.judge.launch import ENVIRONMENT, Premises
from koderz.sandbox.linux import kernel, limits

if TYPE_CHECKING:
    from koderz.sandbox.judge.remote import RemoteZygote

_ADDRESSES = 4 << 30  # bytes; a result that unfolds to more is the candidate's failure, not this process's


def judge(premises: Premises, forked: tuple[socket.socket, int] | None) -> NoReturn:
    """`forked`: the zygote's socket and process, unless candidates run in a container."""
    parent = socket.socket(fileno=os.dup(0))
    with _zygote(premises, forked) as zygote:
        if kernel.LINUX:  # not before: what a zygote inherits is the most that its candidates can be given
            limits.cap(resource.RLIMIT_AS, _ADDRESSES)
        _forget_passed()
        _hush()
        _tell(parent, sorted(zygote.layers))
        while (job := _received(parent)) is not None:
            finding = trial.hold(Case(*wire.from_trusted(job)), zygote, lambda: _tell(parent, None))
            _tell(parent, finding._asdict())
    sys.exit()


def _zygote(premises: Premises, forked: tuple[socket.socket, int] | None) -> Zygote | RemoteZygote:
    if forked is None:
        from koderz.sandbox.judge.remote import RemoteZygote  # which starts programs, as nothing else here does

        return RemoteZygote(premises.container, premises.layers)
    control, process = forked
    return Zygote(control, partial(os.waitpid, process, 0), premises.layers, premises.packages)


def _forget_passed() -> None:
    """What the container's command needed is no business of the tests."""
    for name in {*os.environ} - {*ENVIRONMENT}:
        del os.environ[name]


def _hush() -> None:
    """From here on, what tests print or complain of goes nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _received(parent: socket.socket) -> bytes | None:
    header = parent.recv(wire.HEADER.size, socket.MSG_WAITALL)
    if len(header) < wire.HEADER.size:
        return None
    (size,) = wire.HEADER.unpack(header)
    job = bytearray(size)
    view = memoryview(job)
    while view:
        view = view[parent.recv_into(view) or size :]
    return bytes(job)


def _tell(parent: socket.socket, message: object) -> None:
    data = json.dumps(message).encode()
    parent.sendall(wire.HEADER.pack(len(data)) + data)
