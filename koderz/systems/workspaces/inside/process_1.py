"""Process 1 of a workspace's sandbox: sets up the bounds, starts the command, watches it, and ends everything with it.

Its descriptor 0 is a socket to koderz: a `Setup` comes in, and dicts go out, each a frame. A byte asks
for the end within the grace; the end of the socket is the end of everything, at once. A descriptor that comes in with
it is the command's descriptor 3, to which one byte is written before the command begins; or the folder of a verifier,
whose calls are answered here then (see `channel`).

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
from koderz.sandbox.linux import kernel, landlock, limits, namespaces, seccomp
from koderz.systems.workspaces.inside import filters, roots

# typing, collections, json and the like take longer to load than all the rest
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, NoReturn

    from koderz.systems.workspaces.inside import channel

_LOOK = 0.1  # seconds between two looks at what is used
_SET_INTERFACE_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41
_OPEN_FILES = 4096
# processes more than the limit that the kernel grants, so that what exceeds it is seen and ended for it
_BEYOND = 64
_CHANNEL = 3
_HANG_UP, _INTERRUPT, _KILL, _TERMINATE = 1, 2, 9, 15
SETUP, TOLD = b"s", b"t"  # the kinds of frames that come in and go out


class Setup:
    """The first message from koderz."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    needed: list[str]  # folders that are made where an image's root lacks them
    entries: list[list[str]]  # of the file tree; empty where somebody else has made it
    overlay: list[str]  # of an image's root, see `roots.furnish_image`; empty where there is none
    hosted: list[list[str]]  # folders of this machine in that root, see there
    user: list[int]  # the user and the group that it runs as in an image's root
    writable: list[str]
    memory: int  # bytes
    processes: int
    file: int  # bytes of the largest file
    grace: float  # seconds
    cores: list[int]  # the only ones that it runs on; empty: any
    forks: bool
    counted: bool  # whether koderz is handed what counts the CPU of all processes
    port: int  # of the loopback, for a socket that listens there and is handed to koderz; 0: none
    # a `sandbox.workspace.RewardChannel`, whose folder comes with this; empty: there is none
    guarded: dict[str, Any]
    # whether koderz is handed sockets of this network, as it asks for them; not beside `port`
    reachable: bool

    def __init__(self, **values: Any) -> None:
        self.__dict__ = values

    def message(self) -> bytes:
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
    setup, channel = _message(control)
    if setup.guarded:  # loaded while its file is seen, and by few commands
        from koderz.systems.workspaces.inside.names import opened
    try:
        layers, made = _contain(setup)
        listening = _listening(setup.port) if setup.port else None
        asked, door = _socket.socketpair() if setup.reachable else (None, None)
    except OSError as error:
        _say(control, {"error": str(error)})
        sys.exit(1)
    open_ones = {
        "counter": _counter() if setup.counted else -1,
        "socket": _detached(listening or door),
    }
    descriptors = {name: descriptor for name, descriptor in open_ones.items() if descriptor >= 0}
    _say(
        control,
        {"layers": layers, "made": made, "descriptors": [*descriptors]},
        descriptors.values(),
    )
    setup.entries = []
    folder = -1
    if setup.guarded and channel is not None:
        folder, channel = channel, None
    ours, theirs = _socket.socketpair() if folder >= 0 else (None, None)
    child = _start(setup, control, channel, theirs)
    if not child:
        for each in (asked, ours, theirs):
            if each:
                each.close()
        if folder >= 0:
            os.close(folder)
        return setup
    if channel is not None:
        os.close(channel)
    answers = None
    if ours and theirs and (listener := _received(ours, theirs)) >= 0:
        answers = opened(setup.guarded, folder, listener, child)
    status, cause = _watch(child, control, asked, setup, answers)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = {"channel": answers.facts()} if answers else {}
    _say(
        control, {"status": status, "cause": cause, "cpu": usage.ru_utime + usage.ru_stime, **facts}
    )
    os._exit(0)


def _received(ours: _socket.socket, theirs: _socket.socket) -> int:
    """The descriptor that the command sends of itself; negative where it has ended before."""
    theirs.close()
    _, ancillary, *_ = ours.recvmsg(1, _socket.CMSG_SPACE(4))
    ours.close()
    return int.from_bytes(ancillary[0][2][:4], sys.byteorder) if ancillary else -1


def _message(control: _socket.socket) -> tuple[Setup, int | None]:
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


def _contain(setup: Setup) -> tuple[list[str], list[str]]:
    """Sets up the layers. Returns the names of those that hold, and the mount points that were made in an image's root.

    Raises OSError if a required layer is refused.
    """
    made: list[str] = []
    if setup.overlay:
        import warnings  # noqa: F401 `os.execvpe` does, and an image has no such file

        namespaces.enter(lambda: made.extend(_furnish(setup)), *setup.user)
    elif setup.entries:
        namespaces.enter(lambda: _furnish(setup))
    os.setsid()
    # signals that process 1 of a namespace doesn't get from within
    kernel.take_signals(_INTERRUPT, _TERMINATE, _HANG_UP)
    kernel.hide_memory()
    layers = ["namespaces", "seccomp"]
    if _restricted(setup.writable):
        layers.insert(1, "landlock")
    kernel.forgo_privileges()
    return layers, made


def _restricted(writable: list[str]) -> bool:
    try:
        landlock.restrict([], executable=["/"], writable=writable)
    except OSError:  # a kernel without it: the file tree holds all the same
        return False
    return True


def _furnish(setup: Setup) -> list[str]:
    """Makes the file tree, and brings the loopback up. Returns the mount points that were made in an image's root."""
    entries, made = [roots.Entry(*entry) for entry in setup.entries], []
    most = setup.processes + _BEYOND
    if setup.overlay:
        made = roots.furnish_image(setup.overlay, setup.hosted, entries, most, setup.needed)
    else:
        roots.furnish(entries, most)
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    request = b"lo".ljust(16, b"\0") + _UP_AND_RUNNING.to_bytes(2, sys.byteorder) + bytes(22)
    fcntl.ioctl(any_socket.fileno(), _SET_INTERFACE_FLAGS, request)
    any_socket.close()
    return made


def _start(
    setup: Setup, control: _socket.socket, channel: int | None, heard: _socket.socket | None
) -> int:
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
        limits.cap(resource.RLIMIT_NPROC, setup.processes + _BEYOND)
        limits.cap(resource.RLIMIT_MEMLOCK, 0)
        limits.cap(resource.RLIMIT_MSGQUEUE, 0)
        if setup.cores:
            os.sched_setaffinity(0, setup.cores)
        os.chdir(setup.folder)
        kernel.show_memory()
        kernel.drop_capabilities()
        seccomp.Filter(
            filters.workspaces_steps(forks=setup.forks, keeps_core=bool(setup.cores))
        ).install()
        if heard:
            _hand(heard, b".", [seccomp.Filter(filters.verifiers_steps()).listen()])
        if channel is not None:
            os.dup2(channel, _CHANNEL)
            os.set_inheritable(_CHANNEL, True)  # also where it was that already
            os.dup2(_CHANNEL, _CHANNEL + 1)
            os.write(_CHANNEL, b".")
    except OSError as error:
        os.write(1, f"{setup.argv[0]}: {error.strerror}\n".encode())
        os._exit(127)
    return 0


def _watch(
    child: int,
    control: _socket.socket,
    asked: _socket.socket | None,
    setup: Setup,
    answers: channel.Broker | None,
) -> tuple[int, str]:
    """The status of the command and the limit that ended it, after all its processes have ended."""
    heard = select.poll()
    heard.register(control.fileno(), select.POLLIN)
    heard.register(os.pidfd_open(child), select.POLLIN)
    if asked:
        heard.register(asked.fileno(), select.POLLIN)
    if answers:
        heard.register(answers.listener, select.POLLIN)
    cause, last, look = "", float("inf"), 0.0
    while True:
        ready = [descriptor for descriptor, _ in heard.poll(1000 * _LOOK)]
        if answers and answers.listener in ready:
            ready.remove(answers.listener)
            _unless(answers.answer(), heard, answers.listener)
            if not ready and time.monotonic() < look:
                continue
        look = time.monotonic() + _LOOK
        if asked and ready == [asked.fileno()]:
            _unless(_handed_socket(asked), heard, asked.fileno())
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


def _unless(is_open: bool, heard: select.poll, descriptor: int) -> None:
    """Stops listening to a descriptor that has ended."""
    if not is_open:
        heard.unregister(descriptor)


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
    if memory > setup.memory:
        return "memory"
    return "processes" if tasks > setup.processes else ""


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
