"""Commands on this machine: by bubblewrap where it is, else and in roots of images by namespaces of koderz' own."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import shutil
import socket
import struct
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from koderz import sandbox
from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox.frames import take
from koderz.sandbox.launch import command
from koderz.sandbox.linux import kernel
from koderz.sandbox.process import begin, reap
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import (
    BRIDGE_PORT,
    HOME,
    Command,
    Ended,
    Enforcer,
    Image,
    Limits,
    Running,
    Unseen,
)
from koderz.systems.workspaces import inside, userland
from koderz.systems.workspaces.cores import Cores
from koderz.systems.workspaces.folders import TREE, make_tree
from koderz.systems.workspaces.images import ImageStore, UnpackedImage
from koderz.systems.workspaces.images.tree import copy_folder
from koderz.systems.workspaces.inside.process_1 import Setup
from koderz.systems.workspaces.inside.roots import Entry, bubblewrap
from koderz.systems.workspaces.rooted import Root
from koderz.systems.workspaces.userland import Interpreter, fits
from koderz.systems.workspaces.watching import Output, Sockets, too_large

# of process 1
_PACKAGES = [str(Path(file).resolve().parent) for file in (sandbox.__file__, inside.__file__)]
_START_SECONDS = 30.0
_END_SECONDS = 5.0  # beyond the grace
_LONGEST = 1 << 20  # bytes of a message of process 1
_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")  # nanoseconds
_IDLE = slice(4, 6)  # of a core's words in /proc/stat: idle, and idle while a disk is waited for
_BY_BUBBLEWRAP = " by bubblewrap"
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class _NotMadeError(Fault):
    """A sandbox can't be made in this way."""

    cause = "sandbox"


class _Contact(NamedTuple):
    """Connections of koderz to a running command."""

    channel: socket.socket  # that the command is given
    output: Output
    sockets: Sockets
    counter: Counter


class Counter:
    """The kernel's own count of the CPU of a command's processes, those included that nobody waited for."""

    def __init__(self) -> None:
        self._descriptor = -1

    def open(self, descriptor: int) -> None:
        """By what `kernel.count_cpu` gave."""
        self._descriptor = descriptor

    def read(self) -> int:
        """Nanoseconds; 0 where the kernel lets nobody count."""
        return (
            int.from_bytes(os.read(self._descriptor, 8), "little") if self._descriptor >= 0 else 0
        )

    def close(self) -> None:
        """It is read no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a command at work."""

    process: int
    forks: bool  # whether it may start processes
    core: int  # the only one that it runs on, unless negative
    counter: Counter

    async def cpu(self) -> int:
        """Nanoseconds of a process, or with `forks` of all below its parent. Raises OSError once it is gone."""
        if not self.forks:
            return time.clock_gettime_ns(cpu_clock(self.process))
        return max(_cpu_below(_parent(self.process)), self.counter.read())

    def unseen(self) -> Unseen:
        """See `Unseen`. Raises OSError once it is gone."""
        if not self.forks:
            return Unseen()
        counted = self.counter.read()
        hidden = max(0, counted - _cpu_below(_parent(self.process)))
        return Unseen(hidden, time.monotonic_ns() - _idle(self.core) if self.core >= 0 else 0)


class Local:
    """Runs commands in namespaces of their own, with Landlock and seccomp.

    A command whose image is a name has that image of `images` as its root: all that it changes goes to the folder
    `upper` of its place, where the next command of the place finds it. One command of a place at a time. Other images,
    which are Dockerfiles, are this machine's userland.
    """

    name = "local"
    has_images = False
    guards_channels = True
    cost = 0.0
    enforces: Mapping[str, Enforcer] = {
        "cpus": "affinity", "memory_mb": "watched", "storage_mb": "watched", "network": "container",
    }  # fmt: skip

    def __init__(
        self, *, bubblewrap_allowed: bool = True, images: ImageStore | None = None
    ) -> None:
        self.isolation = ""
        self.images = images or ImageStore()
        self._cores = Cores()
        # by script; None: not entered
        self._warm: dict[Path, asyncio.Task[Interpreter | None]] | None = None
        self._bubblewrap = shutil.which("bwrap") if bubblewrap_allowed else None

    async def __aenter__(self) -> Self:
        """Raises Unreachable where no command can be contained."""
        if not kernel.LINUX:
            raise Unreachable("workspaces need Linux, or --sandbox docker")
        with scratch() as place:
            try:
                await self.run(
                    Command(["true"], python=False, limits=Limits(seconds=_START_SECONDS)), place
                )
            except Fault as fault:
                raise Unreachable(
                    f"{fault}; this machine can't contain a workspace: try --sandbox docker"
                ) from None
        self._warm = {}
        return self

    async def __aexit__(self, *_: object) -> None:
        starting, self._warm = (self._warm or {}).values(), None
        for interpreter in await asyncio.gather(*starting):
            if interpreter:
                await interpreter.end()

    def isolation_of(self, image: Image | str | None) -> str:
        """The isolation of commands with that image, once this is entered; bubblewrap makes no root of an image."""
        return (
            self.isolation.removesuffix(_BY_BUBBLEWRAP)
            if isinstance(image, str)
            else self.isolation
        )

    async def run(self, command: Command, place: Path) -> Ended:
        """See `Backend`."""
        if interpreter := await self._interpreter(command):
            with contextlib.suppress(_NotMadeError):
                return await self._run(command, place, interpreter=interpreter)
        return await self._run(command, place)

    async def look_up(self, images: Sequence[Image | str | None], *, push: bool = False) -> None:
        """Unpacks those images of the store that aren't yet. Raises KoderzError for the first that can't be run here.

        That is one which is missing, damaged, or needs several users; the line says so. Dockerfiles are passed over.
        """
        del push
        for name in dict.fromkeys(image for image in images if isinstance(image, str)):
            found = await asyncio.to_thread(self.images.unpacked, name)
            if found.other_user:
                raise KoderzError(
                    f"the image {name} can't run in --sandbox local: {found.other_user}; use docker"
                )

    async def copy_out(self, image: Image | str, folder: str, target: Path) -> None:
        """Puts what an image of the store has in a folder into `target`; nothing where it hasn't got that."""
        if isinstance(image, str):
            found = await self._unpacked(image)
            await asyncio.to_thread(copy_folder, found.layers, folder, target)

    async def _root(self, command: Command, place: Path) -> Root | None:
        """The root of a command whose image is of the store. Raises Fault where it can't be had."""
        if not isinstance(command.image, str):
            return None
        return await asyncio.to_thread(Root.of, await self._unpacked(command.image), command, place)

    async def _unpacked(self, name: str) -> UnpackedImage:
        """The image of the store. Raises Fault where it can't be unpacked."""
        try:
            return await asyncio.to_thread(self.images.unpacked, name)
        except KoderzError as error:
            raise Fault(str(error), cause="sandbox") from None

    async def _interpreter(self, command: Command) -> Interpreter | None:
        """One that is warm for the command's script."""
        if isinstance(command.image, str):
            return None
        if self._warm is None or command.script is None or not fits(command.variables):
            return None
        if command.script not in self._warm:
            self._warm[command.script] = asyncio.create_task(Interpreter.started(command.script))
        return await asyncio.shield(self._warm[command.script])

    @asynccontextmanager
    async def started(self, command: Command, place: Path) -> AsyncIterator[Running]:
        """See `koderz.sandbox.workspace.Timed`."""
        channel, theirs = socket.socketpair()
        contact = _Contact(theirs, Output(command.limits.output_bytes), Sockets(), Counter())
        with (
            channel,
            theirs,
            contextlib.closing(contact.sockets),
            contextlib.closing(contact.counter),
        ):
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            channel.setblocking(False)
            ended = asyncio.create_task(self._run(command, place, contact))
            begun = asyncio.create_task(_sender(channel))
            try:
                await asyncio.wait([begun, ended], return_when=asyncio.FIRST_COMPLETED)
                if not (begun.done() and begun.result()):
                    raise Fault(
                        f"the command ended before it began: {(await ended).output[-300:]}",
                        cause="sandbox",
                    )
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                clock = Clock(begun.result(), command.forks, command.core, contact.counter)
                yield Running(
                    channel, ended, clock.cpu, clock.unseen, contact.output.text, contact.sockets
                )
            finally:
                begun.cancel()
                ended.cancel()
                await asyncio.gather(begun, ended, return_exceptions=True)

    async def _run(
        self,
        command: Command,
        place: Path,
        contact: _Contact | None = None,
        interpreter: Interpreter | None = None,
    ) -> Ended:
        make_tree(place)
        root = await self._root(command, place)
        control, theirs = socket.socketpair()
        control.setblocking(False)
        began = time.monotonic()
        own = interpreter is not None or self._bubblewrap is None or root is not None  # namespaces
        beginning = (
            interpreter.forked(theirs)
            if interpreter
            else self._started(command, place, theirs, own=own)
        )
        changing = root.at_work() if root else contextlib.nullcontext(list[str]())
        with changing as made, control, theirs, self._cores.taken(command.limits.cpus) as cores:
            async with beginning as printed:
                theirs.close()
                try:
                    setup = self._setup(command, place, root, own=own, counted=contact is not None)
                    setup.cores = setup.cores or cores
                    message = setup.message()
                    if contact:
                        socket.send_fds(control, [message[:1]], [contact.channel.fileno()])
                        contact.channel.close()
                        message = message[1:]
                    elif command.channel:
                        message = _sent_with(command.channel.folder, control, message)
                    ended, hello = await self._followed(
                        printed, control, message, command, place, contact
                    )
                    made += hello["made"]
                finally:
                    control.close()  # at which everything in there ends
        if not interpreter:
            self.isolation = "+".join(hello["layers"]) + (
                _BY_BUBBLEWRAP if self._bubblewrap else ""
            )
        return replace(ended, seconds=time.monotonic() - began)

    @asynccontextmanager
    async def _started(
        self, wanted: Command, place: Path, control: socket.socket, *, own: bool
    ) -> AsyncIterator[asyncio.StreamReader]:
        """Output of a new process 1."""
        pipe, same = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        process = await begin(
            self._process_1(wanted, place, own=own), control, stdout=pipe, stderr=same
        )
        try:
            assert process.stdout
            yield process.stdout
        finally:
            await _gone(process)

    def _process_1(self, wanted: Command, place: Path, *, own: bool) -> list[str]:
        if self._bubblewrap is None or own:
            return command("koderz.systems.workspaces.inside.process_1", [])
        python = userland.own_python()
        boot = command("koderz.systems.workspaces.inside.process_1", [])
        packages = [Entry("read", folder, folder) for folder in _PACKAGES]
        entries = _entries(wanted, place, [*userland.prefixes(python), *packages])
        return [*bubblewrap(self._bubblewrap, entries), python.executable, *boot[1:]]

    def _setup(
        self, wanted: Command, place: Path, root: Root | None, *, own: bool, counted: bool
    ) -> Setup:
        limits, tree = wanted.limits, ("/" if root else wanted.checkout)
        own_entries = _entries(wanted, place) if own and not root else []
        entries = root.entries(wanted, place) if root else own_entries
        usual = userland.environment(with_python=wanted.python) | dict(wanted.variables)
        environment = root.environment(wanted) if root else usual
        writable = [
            HOME,
            environment["HOME"],
            "/tmp",  # noqa: S108
            "/dev",
            *(m.target for m in wanted.mounts if m.writable),
        ]
        # mounted read-only, but for process 1
        writable += [wanted.channel.target] if wanted.channel else []
        return Setup(
            argv=[*wanted.argv],
            environment=environment,
            folder=wanted.checkout,
            needed=[wanted.checkout, *([HOME] if wanted.home else [])],
            entries=[[entry.kind, entry.source, entry.target] for entry in entries],
            overlay=root.overlay if root else [],
            hosted=root.hosted if root else [],
            user=[root.account.user, root.account.group] if root else [],
            writable=writable if wanted.read_only else [*writable, tree],
            memory=limits.memory_mb << 20,
            processes=limits.processes,
            file=limits.disk_mb << 20,
            grace=limits.grace,
            cores=[wanted.core] if wanted.core >= 0 else [],
            forks=wanted.forks,
            counted=counted and wanted.forks,
            port=BRIDGE_PORT if wanted.bridge else 0,
            guarded=wanted.channel.facts() if wanted.channel else {},
            reachable=wanted.reachable,
        )

    async def _followed(
        self,
        printed: asyncio.StreamReader,
        control: socket.socket,
        told: bytes,
        wanted: Command,
        place: Path,
        contact: _Contact | None,
    ) -> tuple[Ended, dict[str, Any]]:
        """Outcome of the command once all its processes have ended, and the first message of process 1."""
        limits = wanted.limits
        output = contact.output if contact else Output(limits.output_bytes)
        reading = asyncio.create_task(output.read(printed))
        watching: asyncio.Task[None] | None = None
        messages = Messages(control)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await asyncio.get_running_loop().sock_sendall(control, told)
                hello = await messages.read()
            if "layers" not in hello:
                await asyncio.wait([reading], timeout=1)
                raise _NotMadeError(
                    f"the sandbox of a workspace can't be made: {hello.get('error') or output.text()[-300:]}"
                )
            await _take(
                dict(zip(hello["descriptors"], messages.descriptors, strict=True)), wanted, contact
            )
            watching = asyncio.create_task(too_large(place, limits.disk_mb << 20))
            farewell, cause = await _farewell(messages, control, limits, watching)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await reading
        except (TimeoutError, OSError, ValueError, SyntaxError) as error:
            raise Fault(
                f"the sandbox of a workspace doesn't answer: {error or 'it takes too long'}",
                cause="sandbox",
            ) from None
        finally:
            reading.cancel()
            if watching:
                watching.cancel()
        ended = Ended(
            int(farewell.get("status", -9)),
            output.text(),
            cause or farewell.get("cause", ""),
            cpu=max(
                float(farewell.get("cpu", 0.0)), contact.counter.read() / 1e9 if contact else 0.0
            ),
            **farewell.get("channel", {}),
        )
        return ended, hello


def _sent_with(folder: Path, control: socket.socket, told: bytes) -> bytes:
    """Sends the first byte of a message with a handle on a folder. Returns the rest of the message."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        socket.send_fds(control, [told[:1]], [handle])
    finally:
        os.close(handle)
    return told[1:]


async def _take(descriptors: dict[str, int], wanted: Command, contact: _Contact | None) -> None:
    """Makes use of what process 1 has handed on."""
    for name, descriptor in descriptors.items():
        if name == "counter" and contact:
            contact.counter.open(descriptor)
        elif wanted.bridge:
            await wanted.bridge(socket.socket(fileno=descriptor))
        elif contact:
            contact.sockets.open(socket.socket(fileno=descriptor))


async def _farewell(
    messages: Messages, control: socket.socket, limits: Limits, watching: asyncio.Task[None]
) -> tuple[dict[str, Any], Any]:
    """The last message, empty where there is none in time, and which limit was seen to be exceeded from outside."""
    last = asyncio.create_task(messages.read())
    try:
        done, _ = await asyncio.wait(
            [last, watching], timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if last in done:
            return last.result(), ""
        cause = "disk" if watching in done else "timeout"
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(control, b".")
        await asyncio.wait([last], timeout=limits.grace + _END_SECONDS)
        return (last.result() if last.done() else {}), cause
    finally:
        last.cancel()


async def _sender(channel: socket.socket) -> int:
    """The process that wrote the first byte, as it is known outside; 0 where the other end was closed."""
    await _readable(channel)
    _, ancillary, *_ = channel.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    return int(_CREDENTIALS.unpack(ancillary[0][2])[0]) if ancillary else 0


async def _readable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(channel, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(channel)


async def _gone(process: asyncio.subprocess.Process) -> None:
    """Waits for a process that is about to end; one that doesn't is ended, and all that it holds with it."""
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await process.wait()
    finally:
        await reap(process)


class Messages:
    """The messages of process 1."""

    def __init__(self, control: socket.socket) -> None:
        self.descriptors: list[int] = []  # that came with the messages
        self._control, self._buffer = control, bytearray()

    async def read(self) -> dict[str, Any]:
        """The next message; empty when it has ended. ValueError where it is none."""
        while not (found := take(self._buffer, _LONGEST)):
            await _readable(self._control)
            part, descriptors, *_ = socket.recv_fds(self._control, 1 << 16, 2)
            self.descriptors += descriptors
            if not part:
                return {}
            self._buffer += part
        facts: dict[str, Any] = ast.literal_eval(found[2].decode())
        return facts


def _entries(wanted: Command, place: Path, more: Sequence[Entry] = ()) -> list[Entry]:
    """The whole tree, folders before what lies in them."""
    checkout, home, tmp = (str(place / name) for name in TREE)
    of_command = [
        Entry("read" if wanted.read_only else "write", checkout, wanted.checkout),
        Entry("write", home, HOME),
        Entry("write", tmp, "/tmp"),  # noqa: S108
        *(
            [Entry("read", str(wanted.channel.folder), wanted.channel.target)]
            if wanted.channel
            else []
        ),
        *(
            Entry("write" if mount.writable else "read", str(mount.source.absolute()), mount.target)
            for mount in wanted.mounts
        ),
    ]
    python = userland.prefixes(userland.python()) if wanted.python else ()
    found = [*userland.entries(place.parent / "etc"), *python, *more, *of_command]
    by_target = {entry.target: entry for entry in found}  # the last of a target
    return sorted(by_target.values(), key=lambda entry: entry.target.count("/"))


def cpu_clock(process: int) -> int:
    """The kernel's name for the clock of a process, all its threads together."""
    return (~process << 3) | 2


def _parent(process: int) -> int:
    return int(_stat(process)[1])


def _cpu_below(process: int) -> int:
    """Of all below a process; of those that were waited for, to a tick of the kernel's, usually 10 ms."""
    total = 0
    with contextlib.suppress(OSError):  # it has ended meanwhile, and its parent has its time
        total = sum(map(int, _stat(process)[13:15])) * _TICK
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                with contextlib.suppress(OSError):
                    total += time.clock_gettime_ns(cpu_clock(child))
                total += _cpu_below(child)
    return total


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: from the state on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _idle(core: int) -> int:
    """Nanoseconds in which a core had nothing to do, to a tick; 0 where that can't be read."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith(f"cpu{core} "):
                return sum(map(int, line.split()[_IDLE])) * _TICK
    return 0
