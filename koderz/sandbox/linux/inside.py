"""Process 1 of a workspace's sandbox: makes the bounds, starts the command, watches it, and ends all with it.

Its descriptor 0 is a socket to koderz: a `Setup` as a line of JSON comes in, `Hello` and `Farewell` go out. A byte asks
for the end within the grace; the end of the socket is the end of everything, at once. A descriptor that comes in with
the line is the command's descriptor 3, to which one byte is written before the command begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from koderz.sandbox.linux import kernel, landlock, limits, namespaces, seccomp, tree

_LOOK = 0.1  # seconds between two looks at what is used
_SET_INTERFACE_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41
_OPEN_FILES = 4096
_CHANNEL = 3


class Setup(NamedTuple):
    """What koderz says first."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    entries: list[list[str]]  # of the file tree; empty where somebody else has made it
    writable: list[str]
    memory: int  # bytes
    processes: int
    file: int  # bytes of the largest file
    grace: float  # seconds
    core: int  # negative: any
    forks: bool
    port: int = 0  # of the loopback, for a socket that listens there and is handed to koderz; 0: none


def main(_arguments: Sequence[str]) -> NoReturn:
    control = socket.socket(fileno=os.dup(0))
    kernel.die_with_parent()
    setup, channel = _told(control)
    try:
        layers = _contain(setup)
        listening = socket.create_server(("127.0.0.1", setup.port)) if setup.port else None
    except OSError as error:
        _say(control, {"error": str(error)})
        sys.exit(1)
    _say(control, {"layers": layers}, listening)
    child = _start(setup, channel)
    if channel is not None:
        os.close(channel)
    status, cause = _watch(child, control, setup)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    _say(control, {"status": status, "cause": cause, "cpu": usage.ru_utime + usage.ru_stime})
    os._exit(0)


def _told(control: socket.socket) -> tuple[Setup, int | None]:
    line = b""
    descriptors: list[int] = []
    while not line.endswith(b"\n"):
        part, found, *_ = socket.recv_fds(control, 1 << 16, 1)
        if not part:
            sys.exit(1)
        line, descriptors = line + part, descriptors + found
    return Setup(*json.loads(line)), next(iter(descriptors), None)


def _contain(setup: Setup) -> list[str]:
    """The names of the layers that hold. OSError where one is refused that has to."""
    if setup.entries:
        entries = [tree.Entry(*entry) for entry in setup.entries]
        namespaces.enter(partial(_furnish, entries, setup.processes))
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # which process 1 of a namespace doesn't get from within
    kernel.hide_memory()
    layers = ["namespaces", "seccomp"]
    with contextlib.suppress(OSError):  # a kernel without it: the file tree holds all the same
        landlock.restrict([], executable=["/"], writable=setup.writable)
        layers.insert(1, "landlock")
    kernel.forgo_privileges()
    return layers


def _furnish(entries: Sequence[tree.Entry], processes: int) -> None:
    tree.furnish(entries, processes)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, struct.pack("16sh22x", b"lo", _UP_AND_RUNNING))


def _start(setup: Setup, channel: int | None) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(1, 2)
        limits.cap(resource.RLIMIT_CORE, 0)
        limits.cap(resource.RLIMIT_DATA, setup.memory)
        limits.cap(resource.RLIMIT_FSIZE, setup.file)
        limits.cap(resource.RLIMIT_NOFILE, _OPEN_FILES)
        limits.cap(resource.RLIMIT_NPROC, setup.processes)
        limits.cap(resource.RLIMIT_MEMLOCK, 0)
        limits.cap(resource.RLIMIT_MSGQUEUE, 0)
        if setup.core >= 0:
            os.sched_setaffinity(0, {setup.core})
        os.chdir(setup.folder)
        kernel.drop_capabilities()
        seccomp.workspaces(forks=setup.forks).install()
        if channel is not None:
            os.dup2(channel, _CHANNEL)
            os.set_inheritable(_CHANNEL, True)  # also where it was that already
            os.write(_CHANNEL, b".")
        os.execvpe(setup.argv[0], setup.argv, setup.environment)  # noqa: S606 there is a shell only where it is one
    except OSError as error:
        os.write(1, f"{setup.argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _watch(child: int, control: socket.socket, setup: Setup) -> tuple[int, str]:
    """How the command ended, and the limit that it was ended for. All its processes have ended then."""
    heard = select.poll()
    heard.register(control, select.POLLIN)
    heard.register(os.pidfd_open(child), select.POLLIN)
    cause, last = "", float("inf")
    while True:
        if any(descriptor == control.fileno() for descriptor, _ in heard.poll(1000 * _LOOK)):
            if not control.recv(1):
                os._exit(0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGTERM)
            last = time.monotonic() + setup.grace
        status = _reaped(child)
        if not cause:
            cause = _excess(setup)
        if status is not None or cause or time.monotonic() >= last:
            namespaces.sweep()
            return -signal.SIGKILL if status is None else status, cause


def _reaped(child: int) -> int | None:
    """The status of the command, once it has ended. Its orphans are reaped besides."""
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == child:
                return os.waitstatus_to_exitcode(status)
            if not process:
                break
    return None


def _excess(setup: Setup) -> str:
    """Which limit is exceeded by all processes together."""
    memory, tasks = 0, 0
    for process in os.listdir("/proc"):
        if process.isdigit() and process != "1":
            used, threads = _used(process)
            memory, tasks = memory + used, tasks + threads
    return "memory" if memory > setup.memory else "processes" if tasks > setup.processes else ""


def _used(process: str) -> tuple[int, int]:
    """Bytes of memory that are no file's, and threads, of one process."""
    memory, threads = 0, 1
    try:
        with open(f"/proc/{process}/status", "rb") as lines:
            for line in lines:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    memory += int(line.split()[1]) << 10
                elif line.startswith(b"Threads:"):
                    threads = int(line.split()[1])
    except OSError:  # it has ended meanwhile
        return 0, 0
    return memory, threads


def _say(control: socket.socket, message: object, handed: socket.socket | None = None) -> None:
    """Writes a line, and with it hands on a socket, which is closed here."""
    line = json.dumps(message).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):
        if handed is None:
            control.sendall(line)
            return
        with handed:
            socket.send_fds(control, [line], [handed.fileno()])
