"""Process 1 of a workspace's sandbox: sets up the bounds, starts the command, watches it, and ends everything with it.

Its descriptor 0 is a socket to koderz: a `Setup` comes in, and dicts go out, each a frame. A byte asks
for the end within the grace; the end of the socket is the end of everything, at once. A descriptor that comes in with
it is the command's descriptor 3, to which one byte is written before the command begins.

Where it may start processes, koderz is handed a descriptor that counts the CPU of all of them, if the kernel lets it.
Where koderz is to reach what listens in there, it is handed one end of a pair of sockets: each byte that it writes to
that is answered with a socket of this network, to be connected by koderz.

It is started for every command, so it loads as little as can be.
"""

from __future__ import annotations

import _socket
import fcntl
import marshal
import os
import resource
import select
import sys
import time

from koderz.sandbox.frames import frame, take
from koderz.sandbox.linux import kernel, landlock, limits, mounts, namespaces, seccomp

TYPE_CHECKING = False  # typing, collections, json and the like take longer to load than all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, NoReturn

_LOOK = 0.1  # seconds between two looks at what is used
_SET_INTERFACE_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41
_OPEN_FILES = 4096
_CHANNEL = 3
_HANG_UP, _INTERRUPT, _KILL, _TERMINATE = 1, 2, 9, 15
SETUP, TOLD = b"s", b"t"  # the kinds of frames that come in and go out


class Setup:
    """The first message from koderz."""

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
    counted: bool  # whether koderz is handed what counts the CPU of all processes
    port: int  # of the loopback, for a socket that listens there and is handed to koderz; 0: none
    reachable: bool  # whether koderz is handed sockets of this network, as it asks for them; not beside `port`

    def __init__(self, **values: Any) -> None:
        self.__dict__ = values

    def told(self) -> bytes:
        """The message as bytes for process 1."""
        return frame(SETUP, marshal.dumps(self.__dict__))


def main(_arguments: Sequence[str]) -> NoReturn:
    setup = process_1(_socket.socket(fileno=os.dup(0)))
    try:
        os.execvpe(setup.argv[0], setup.argv, setup.environment)  # noqa: S606 there is a shell only where it is one
    except OSError as error:
        os.write(1, f"{setup.argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def process_1(control: _socket.socket) -> Setup:
    """Runs process 1 until all has ended, and exits. Returns only in the process that becomes the command."""
    kernel.die_with_parent()
    setup, channel = _told(control)
    try:
        layers = _contain(setup)
        listening = _listening(setup.port) if setup.port else None
        asked, door = _socket.socketpair() if setup.reachable else (None, None)
    except OSError as error:
        _say(control, {"error": str(error)})
        sys.exit(1)
    open_ones = {"counter": _counter() if setup.counted else -1, "socket": _detached(listening or door)}
    descriptors = {name: descriptor for name, descriptor in open_ones.items() if descriptor >= 0}
    _say(control, {"layers": layers, "descriptors": [*descriptors]}, descriptors.values())
    setup.entries = []
    child = _start(setup, control, channel)
    if not child:
        if asked:
            asked.close()
        return setup
    if channel is not None:
        os.close(channel)
    status, cause = _watch(child, control, asked, setup)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    _say(control, {"status": status, "cause": cause, "cpu": usage.ru_utime + usage.ru_stime})
    os._exit(0)


def _told(control: _socket.socket) -> tuple[Setup, int | None]:
    part, ancillary, *_ = control.recvmsg(1, _socket.CMSG_SPACE(4))
    data = bytearray(part)
    while not (found := take(data)):
        part = control.recv(1 << 16)
        if not part:
            sys.exit(1)
        data += part
    descriptors = [int.from_bytes(words[:4], sys.byteorder) for _, _, words in ancillary]
    setup = Setup(**marshal.loads(found[2]))  # noqa: S302 it comes from koderz
    return setup, descriptors[0] if descriptors else None


def _contain(setup: Setup) -> list[str]:
    """Sets up the layers and returns the names of those that hold. Raises OSError if a required one is refused."""
    if setup.entries:
        entries = [mounts.Entry(*entry) for entry in setup.entries]
        namespaces.enter(lambda: _furnish(entries, setup.processes))
    os.setsid()
    kernel.take_signals(_INTERRUPT, _TERMINATE, _HANG_UP)  # which process 1 of a namespace doesn't get from within
    kernel.hide_memory()
    layers = ["namespaces", "seccomp"]
    if _restricted(setup.writable):
        layers.insert(1, "landlock")
    kernel.forgo_privileges()
    return layers


def _restricted(writable: list[str]) -> bool:
    try:
        landlock.restrict([], executable=["/"], writable=writable)
    except OSError:  # a kernel without it: the file tree holds all the same
        return False
    return True


def _furnish(entries: Sequence[mounts.Entry], processes: int) -> None:
    mounts.furnish(entries, processes)
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    request = b"lo".ljust(16, b"\0") + _UP_AND_RUNNING.to_bytes(2, sys.byteorder) + bytes(22)
    fcntl.ioctl(any_socket.fileno(), _SET_INTERFACE_FLAGS, request)
    any_socket.close()


def _start(setup: Setup, control: _socket.socket, channel: int | None) -> int:
    """Starts the command; returns its process, or 0 within that process, which is bound by all layers by then."""
    child = os.fork()
    if child:
        return child
    try:
        control.close()
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
        kernel.show_memory()
        kernel.drop_capabilities()
        seccomp.Filter(seccomp.workspaces_steps(forks=setup.forks, keeps_core=setup.core >= 0)).install()
        if channel is not None:
            os.dup2(channel, _CHANNEL)
            os.set_inheritable(_CHANNEL, True)  # also where it was that already
            os.dup2(_CHANNEL, _CHANNEL + 1)
            os.write(_CHANNEL, b".")
    except OSError as error:
        os.write(1, f"{setup.argv[0]}: {error.strerror}\n".encode())
        os._exit(127)
    return 0


def _watch(child: int, control: _socket.socket, asked: _socket.socket | None, setup: Setup) -> tuple[int, str]:
    """The status of the command and the limit that ended it, after all its processes have ended."""
    heard = select.poll()
    heard.register(control.fileno(), select.POLLIN)
    heard.register(os.pidfd_open(child), select.POLLIN)
    if asked:
        heard.register(asked.fileno(), select.POLLIN)
    cause, last = "", float("inf")
    while True:
        ready = [descriptor for descriptor, _ in heard.poll(1000 * _LOOK)]
        if asked and ready == [asked.fileno()]:
            if not _handed_socket(asked):
                heard.unregister(asked.fileno())
            continue
        if control.fileno() in ready:
            if not control.recv(1):
                os._exit(0)
            _ask_to_end()
            last = time.monotonic() + setup.grace
        status = _reaped(child)
        if not cause:
            cause = _excess(setup)
        if status is not None or cause or time.monotonic() >= last:
            namespaces.sweep()
            return -_KILL if status is None else status, cause


def _reaped(child: int) -> int | None:
    """The status of the command once it has ended. Also reaps its orphans."""
    try:
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == child:
                return os.waitstatus_to_exitcode(status)
            if not process:
                return None
    except ChildProcessError:
        return None


def _ask_to_end() -> None:
    try:
        os.kill(-1, _TERMINATE)
    except ProcessLookupError:
        return


def _excess(setup: Setup) -> str:
    """The limit that all processes together exceed, if any."""
    memory, tasks = 0, 0
    for process in os.listdir("/proc"):
        if process.isdigit() and process != "1":
            used, threads = _used(process)
            memory, tasks = memory + used, tasks + threads
    return "memory" if memory > setup.memory else "processes" if tasks > setup.processes else ""


def _used(process: str) -> tuple[int, int]:
    """The anonymous memory in bytes, and the threads, of one process."""
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


def _counter() -> int:
    """A counter of CPU, see `kernel.count_cpu`; negative if the kernel refuses."""
    try:
        return kernel.count_cpu()
    except OSError:
        return -1


def _listening(port: int) -> _socket.socket:
    listening = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    return listening


def _detached(socket: _socket.socket | None) -> int:
    return -1 if socket is None else socket.detach()


def _handed_socket(asked: _socket.socket) -> bool:
    """Answers a request for a socket; false if there can be no more requests."""
    try:
        if not asked.recv(1):
            return False
        _hand(asked, b".", [_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).detach()])
    except OSError:
        return False
    return True


def _hand(to: _socket.socket, data: bytes, descriptors: Iterable[int]) -> None:
    """Sends bytes with descriptors, which are closed here."""
    descriptors = [*descriptors]
    packed = b"".join(each.to_bytes(4, sys.byteorder) for each in descriptors)
    to.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if packed else [])
    for each in descriptors:
        os.close(each)


def _say(control: _socket.socket, message: object, descriptors: Iterable[int] = ()) -> None:
    try:
        _hand(control, frame(TOLD, repr(message).encode()), descriptors)
    except BrokenPipeError:
        return
