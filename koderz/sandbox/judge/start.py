"""What a judge's interpreter runs first: the zygote is forked, then this process goes on as the judge.

Until then nothing is loaded that a candidate may not find in its memory: no test, no key, no installed package, and
no module that the zygote wouldn't load itself.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import NoReturn

from koderz.sandbox.judge import zygote
from koderz.sandbox.linux import kernel


def main(arguments: Sequence[str]) -> NoReturn:
    """`arguments`: a `Premises` as JSON."""
    premises = json.loads(arguments[0])
    kernel.die_with_parent()
    _take_turns(premises["core"])
    forked = _forked(premises["container"])
    kernel.hide_memory()
    import site  # which a candidate doesn't find either

    site.main()  # tests may use what is installed
    from koderz.sandbox.judge.launch import Premises
    from koderz.sandbox.judge.process import judge

    judge(Premises(**premises), *forked)


def _take_turns(core: int) -> None:
    """Has judge, zygote and candidate share a core, and none of them interrupt another to be told of its news."""
    if core >= 0:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _forked(container: Sequence[str]) -> tuple[socket.socket, int]:
    """The socket to a zygote, or to the relay that leads to one in a container; and its process."""
    if not container:
        zygote.preload()  # this process needs some of it too: to be forked with it is cheaper than to load it twice
        return zygote.forked(lambda control: zygote.main([str(control.detach())]))

    def relay(control: socket.socket) -> NoReturn:
        from koderz.sandbox.judge import remote  # which starts programs, as nothing else here does

        remote.main(control, container)

    return zygote.forked(relay)
