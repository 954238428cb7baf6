"""A verifier in a container: this process starts it, and keeps the channel of its rewards (see `channel`).

It runs as the verifier's own user, since a container gives it no other; the filter of workspaces keeps everybody from
its memory. The folder of rewards is mounted twice: read-only where the verifier sees it, and for this process alone
below a folder that is closed to all others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time

from koderz.sandbox.linux import kernel, seccomp
from koderz.systems.workspaces.inside import filters
from koderz.systems.workspaces.inside.names import opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from koderz.systems.workspaces.inside.channel import Broker

FOLDER = "/opt/koderz/channel"
LOGS, TOLD, TERMS = f"{FOLDER}/logs", f"{FOLDER}/told", f"{FOLDER}/terms.json"
INSIDE, LINUX = f"{FOLDER}/inside", f"{FOLDER}/linux"
BOOT = f"""
import sys, types
for name in ("koderz", "koderz.sandbox", "koderz.systems", "koderz.systems.workspaces"):
    stub = sys.modules[name] = types.ModuleType(name)
    stub.__path__ = [{FOLDER!r}]
from koderz.systems.workspaces.inside.guarded import main
main(sys.argv[1:])
"""
_END_SECONDS = 10.0


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs a command with a channel, or without words shows whether that is possible: exit code 0."""
    if not arguments:
        terms: dict[str, Any] = {
            "target": "/nowhere",
            "agents": [],
            "homes": [],
            "hidden": [],
            "lifted": [],
        }
        sys.exit(_run(["true"], terms, "/")[0])
    with open(TERMS) as file:
        terms = json.load(file)
    status, facts = _run(arguments, terms, LOGS)
    _end_all()
    with open(f"{TOLD}/facts.json", "w") as file:
        json.dump(facts, file)
    sys.exit(status)


def _run(argv: Sequence[str], terms: dict[str, Any], logs: str) -> tuple[int, dict[str, Any]]:
    folder = os.open(logs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel.hide_memory()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        _become(argv, ours, theirs, folder)
    theirs.close()
    _, descriptors, *_ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        return 1, {}
    broker = opened({**terms, "closed": FOLDER}, folder, descriptors[0], child)
    return _answered(broker, child), broker.facts()


def _become(
    argv: Sequence[str], ours: socket.socket, theirs: socket.socket, folder: int
) -> NoReturn:
    try:
        ours.close()
        os.close(folder)
        os.setsid()
        kernel.show_memory()
        kernel.forgo_privileges()
        seccomp.Filter(filters.workspaces_steps()).install()
        listener = seccomp.Filter(filters.verifiers_steps()).listen()
        socket.send_fds(theirs, [b"."], [listener])
        os.close(listener)
        theirs.close()
        os.execvp(argv[0], [*argv])  # noqa: S606 there is a shell only where it is one
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _answered(broker: Broker, child: int) -> int:
    """The exit code of the command, whose calls are answered until it ends."""
    heard = select.poll()
    heard.register(broker.listener, select.POLLIN)
    heard.register(os.pidfd_open(child), select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in heard.poll()]
        if broker.listener in ready:
            if not broker.answer():
                heard.unregister(broker.listener)
            continue
        process, status = os.waitpid(child, os.WNOHANG)
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_all() -> None:
    """Ends all other processes of the container but its first, which only waits."""
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        if not [
            name
            for name in os.listdir("/proc")
            if name.isdigit() and int(name) not in (1, os.getpid())
        ]:
            return
        time.sleep(0.01)
    os._exit(1)
