"""An interpreter that has loaded a script's modules, from which each sandbox that runs the script is forked.

It is the host's python3, which may be older than koderz asks for: then it ends at once. It never holds a task, a key or
a test: what a fork is to do reaches that fork alone, which goes into namespaces and a file tree of its own first.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location

from koderz.sandbox.linux import kernel
from koderz.systems.workspaces.inside.process_1 import process_1

_DESCRIPTORS = 1024  # far more than are open


def main(arguments: Sequence[str]) -> None:
    """Loads the script and forks on request. `arguments`: the script, which has `load()` and `main(arguments)`.

    Descriptor 0 is a socket to koderz. A byte goes out when all is loaded; each that comes in brings a fork its two
    descriptors: the socket of process 1, and where it prints.
    """
    kernel.die_with_parent()
    orders = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    spec = spec_from_file_location("guest", arguments[0])
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    script.load()
    for name in [name for name in sys.modules if name.partition(".")[0] == "koderz"]:
        del sys.modules[name]  # which tests may import from elsewhere
    if len([*os.scandir("/proc/self/task")]) > 1:
        sys.exit("what is loaded starts threads, which no fork would have")
    gc.collect()
    gc.freeze()
    orders.sendall(b".")
    control, output = _fork(orders)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    setup = process_1(socket.socket(fileno=control))
    os.closerange(3, _DESCRIPTORS)
    os.environ.clear()
    os.environ.update(setup.environment)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = setup.argv[setup.argv.index("-B") + 1 :]
    script.main(sys.argv[1:])


def _fork(orders: socket.socket) -> list[int]:
    """Returns in each fork, with its descriptors. The fork is made before they are read, so that all are alike."""
    while True:
        byte, descriptors, *_ = socket.recv_fds(orders, 1, 2)
        if not byte:
            os._exit(0)
        if not os.fork():
            orders.close()
            return descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
