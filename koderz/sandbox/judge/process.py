"""The trusted process: holds the tests, asks the candidates, tells koderz what it found.

One socket to koderz as stdin; jobs come in one at a time, marshalled by a side that is trusted;
results go back as lines of JSON. `start` makes it, with next to nothing in its environment.
"""

from __future__ import annotations

import json
import marshal
import os
import resource
import socket
import sys
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

from koderz.sandbox.judge import trial
from koderz.sandbox.judge.forks import Zygote
from koderz.sandbox.judge.jobs import Job
from koderz.sandbox.judge.launch import ENVIRONMENT, Premises
from koderz.sandbox.linux import kernel, limits

_ADDRESSES = 4 << 30  # bytes; a result that unfolds to more is the candidate's failure, not this process's


def judge(premises: Premises, control: socket.socket, process: int) -> NoReturn:
    """`control`: the socket to the zygote, which is `process`, or to the relay in its place."""
    parent = socket.socket(fileno=os.dup(0))
    with Zygote(control, partial(os.waitpid, process, 0), premises.layers, premises.packages) as zygote:
        if kernel.LINUX:  # not before: what a zygote inherits is the most that its candidates can be given
            limits.cap(resource.RLIMIT_AS, _ADDRESSES)
        _forget_passed()
        _hush()
        _tell(parent, sorted(zygote.layers))
        for job in _jobs(parent):
            _tell(parent, trial.hold(job, zygote, lambda: _tell(parent, None)))
    sys.exit()


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


def _jobs(parent: socket.socket) -> Iterator[Job]:
    with parent.makefile("rb") as stream:
        while True:
            try:
                yield Job(*marshal.load(stream))  # noqa: S302 - koderz sends it
            except EOFError:
                return


def _tell(parent: socket.socket, message: object) -> None:
    parent.sendall(json.dumps(message).encode() + b"\n")
