"""The trusted process: holds the tests, asks the candidates, tells koderz what it found.

Its interpreter forks the zygote, then goes on as the judge. Until then nothing is loaded that a candidate may not find
in its memory: no test, no key, no installed package, and no module that the zygote wouldn't load itself.

One socket to koderz as stdin; jobs come in one at a time, marshalled by a side that is trusted; results go back as
JSON.
"""

from __future__ import annotations

import json
import marshal
import os
import resource
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from koderz.sandbox.frames import frame, incoming
from koderz.sandbox.judge import zygote
from koderz.sandbox.linux import kernel, limits

if TYPE_CHECKING:
    from koderz.sandbox.judge.jobs import Job

# bytes; a result that unfolds to more is the candidate's failure, not this process's
_ADDRESSES = 4 << 30


def main(arguments: Sequence[str]) -> NoReturn:
    """`arguments`: a `Premises` as JSON, with the names of variables that tests find."""
    premises = json.loads(arguments[0])
    kernel.die_with_parent()
    core = premises["core"]
    # On one core, where none of judge, zygote and candidate preempts another when it wakes up.
    if core >= 0:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    forked = _forked(premises["container"])
    kernel.hide_memory()
    import site  # which a candidate doesn't find either

    site.main()  # tests may use what is installed
    _judge(premises, *forked)


def _forked(container: Sequence[str]) -> tuple[socket.socket, int]:
    """The socket to a zygote, or to the relay that leads to one in a container; and its process."""
    if not container:
        # this process needs some of it too: to be forked with it is cheaper than to load it twice
        zygote.preload()
        return zygote.forked(lambda control: zygote.main([str(control.detach())]))

    def relay(control: socket.socket) -> NoReturn:
        from koderz.sandbox.judge import remote  # which starts programs, as nothing else here does

        remote.main(control, container)

    return zygote.forked(relay)


def _judge(premises: Mapping[str, Any], control: socket.socket, process: int) -> NoReturn:
    """`control`: the socket to the zygote, which is `process`, or to the relay in its place."""
    from koderz.sandbox.judge import trial
    from koderz.sandbox.judge.forks import Zygote

    parent = socket.socket(fileno=os.dup(0))
    reaped = partial(os.waitpid, process, 0)
    with Zygote(
        control, reaped, premises["layers"], premises["packages"], yields=premises["yields"]
    ) as forks:
        # not before: what a zygote inherits is the most that its candidates can be given
        if kernel.LINUX:
            limits.cap(resource.RLIMIT_AS, _ADDRESSES)
        for name in {*os.environ}.difference(
            premises["environment"]
        ):  # what the container's command needs is no business of the tests
            del os.environ[name]
        _hush()
        _tell(parent, sorted(forks.layers))
        for job in _jobs(parent):
            _tell(parent, trial.hold(job, forks, lambda: _tell(parent, None)))
    sys.exit()


def _hush() -> None:
    """From here on, what tests print or complain of goes nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _jobs(parent: socket.socket) -> Iterator[Job]:
    from koderz.sandbox.judge.jobs import Job

    for _, _, job in incoming(parent.recv):
        yield Job(*marshal.loads(job))  # noqa: S302 - koderz sends it


def _tell(parent: socket.socket, message: object) -> None:
    from koderz.sandbox.judge.jobs import RESULT

    parent.sendall(frame(RESULT, json.dumps(message).encode()))
