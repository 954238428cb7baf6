"""Commands on this machine: by bubblewrap where it is present, else by koderz' own namespaces."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from koderz.errors import Fault, Unreachable
from koderz.sandbox.judge.launch import ENVIRONMENT, command
from koderz.sandbox.linux import kernel
from koderz.sandbox.linux.inside import Setup
from koderz.sandbox.linux.tree import Entry, bubblewrap
from koderz.sandbox.workspace import BRIDGE_PORT, HOME, Command, Ended, Limits, Running, userland
from koderz.sandbox.workspace.cpu import Clock, Counter
from koderz.sandbox.workspace.folders import TREE, make_tree, scratch
from koderz.sandbox.workspace.sockets import Sockets
from koderz.sandbox.workspace.warm import Interpreter, fits

_PACKAGE = Path(__file__).resolve().parents[1]  # koderz.sandbox, which process 1 is made of
_START_SECONDS = 30.0
_END_SECONDS = 5.0  # beyond the grace
_LEAST_PAUSE, _PAUSES = 1.0, 20  # seconds between two looks at the disk, and in times of what a look takes

_CREDENTIALS = struct.Struct("3i")  # process, user, group


class _NotMadeError(Fault):
    """A sandbox can't be made in this way."""

    cause = "sandbox"


class _Contact(NamedTuple):
    """What koderz has of a command at work."""

    channel: socket.socket  # that the command is given
    output: Output
    sockets: Sockets
    counter: Counter


class Local:
    """Runs commands in namespaces of their own, with Landlock and seccomp."""

    name = "local"
    has_images = False
    cost = 0.0

    def __init__(self, *, bubblewrap_allowed: bool = True) -> None:
        self.isolation = ""
        self._warm: dict[Path, asyncio.Task[Interpreter | None]] | None = None  # by script; None: not entered
        self._bubblewrap = shutil.which("bwrap") if bubblewrap_allowed else None

    async def __aenter__(self) -> Self:
        """Raises Unreachable where no command can be contained."""
        if not kernel.LINUX:
            raise Unreachable("workspaces need Linux, or --sandbox docker")
        with scratch() as place:
            try:
                await self.run(Command(["true"], python=False, limits=Limits(seconds=_START_SECONDS)), place)
            except Fault as fault:
                raise Unreachable(f"{fault}; this machine can't contain a workspace: try --sandbox docker") from None
        self._warm = {}
        return self

    async def __aexit__(self, *_: object) -> None:
        starting, self._warm = (self._warm or {}).values(), None
        for interpreter in await asyncio.gather(*starting):
            if interpreter:
                await interpreter.end()

    async def run(self, command: Command, place: Path) -> Ended:
        """See `Backend`."""
        if interpreter := await self._interpreter(command):
            with contextlib.suppress(_NotMadeError):
                return await self._run(command, place, interpreter=interpreter)
        return await self._run(command, place)

    async def _interpreter(self, command: Command) -> Interpreter | None:
        """One that is warm for the command's script."""
        if self._warm is None or command.script is None or not fits(command.environment):
            return None
        if command.script not in self._warm:
            self._warm[command.script] = asyncio.create_task(Interpreter.started(command.script))
        return await asyncio.shield(self._warm[command.script])

    @asynccontextmanager
    async def started(self, command: Command, place: Path) -> AsyncIterator[Running]:
        """See `koderz.sandbox.workspace.Timed`."""
        channel, theirs = socket.socketpair()
        contact = _Contact(theirs, Output(command.limits.output_bytes), Sockets(), Counter())
        with channel, theirs, contextlib.closing(contact.sockets), contextlib.closing(contact.counter):
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            channel.setblocking(False)
            ended = asyncio.create_task(self._run(command, place, contact))
            begun = asyncio.create_task(_sender(channel))
            try:
                await asyncio.wait([begun, ended], return_when=asyncio.FIRST_COMPLETED)
                if not (begun.done() and begun.result()):
                    raise Fault(f"the command ended before it began: {(await ended).output[-300:]}", cause="sandbox")
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                clock = Clock(begun.result(), command.forks, command.core, contact.counter)
                yield Running(channel, ended, clock.cpu, clock.unseen, contact.output.text, contact.sockets)
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
        control, theirs = socket.socketpair()
        control.setblocking(False)
        began = time.monotonic()
        own = interpreter is not None or self._bubblewrap is None  # namespaces
        beginning = interpreter.forked(theirs) if interpreter else self._started(command, place, theirs)
        with control, theirs:
            async with beginning as printed:
                theirs.close()
                try:
                    told = self._setup(command, place, own=own, counted=contact is not None).told()
                    if contact:
                        socket.send_fds(control, [told[:1]], [contact.channel.fileno()])
                        contact.channel.close()
                        told = told[1:]
                    ended, layers = await self._followed(printed, control, told, command, place, contact)
                finally:
                    control.close()  # at which everything in there ends
        if not interpreter:
            self.isolation = "+".join(layers) + ("" if own else " by bubblewrap")
        return replace(ended, seconds=time.monotonic() - began)

    @asynccontextmanager
    async def _started(
        self, wanted: Command, place: Path, control: socket.socket
    ) -> AsyncIterator[asyncio.StreamReader]:
        """What a new process 1 prints."""
        process = await asyncio.create_subprocess_exec(
            *self._process_1(wanted, place),
            stdin=control.fileno(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(ENVIRONMENT),
            cwd="/",
            start_new_session=True,
        )
        try:
            assert process.stdout
            yield process.stdout
        finally:
            await _gone(process)

    def _process_1(self, wanted: Command, place: Path) -> list[str]:
        if self._bubblewrap is None:
            return command("linux.inside", [])
        own = userland.own_python()
        boot = command("linux.inside", [])
        entries = _entries(wanted, place, [*userland.prefixes(own), Entry("read", str(_PACKAGE), str(_PACKAGE))])
        return [*bubblewrap(self._bubblewrap, entries), own.executable, *boot[1:]]

    def _setup(self, wanted: Command, place: Path, *, own: bool, counted: bool) -> Setup:
        limits = wanted.limits
        writable = [HOME, "/tmp", "/dev", *(mount.target for mount in wanted.mounts if mount.writable)]  # noqa: S108
        return Setup(
            argv=[*wanted.argv],
            environment=userland.environment(with_python=wanted.python) | dict(wanted.environment),
            folder=wanted.checkout,
            entries=[[entry.kind, entry.source, entry.target] for entry in _entries(wanted, place)] if own else [],
            writable=writable if wanted.read_only else [*writable, wanted.checkout],
            memory=limits.memory_mb << 20,
            processes=limits.processes,
            file=limits.disk_mb << 20,
            grace=limits.grace,
            core=wanted.core,
            forks=wanted.forks,
            counted=counted and wanted.forks,
            port=BRIDGE_PORT if wanted.bridge else 0,
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
    ) -> tuple[Ended, list[str]]:
        """What came of the command, once everything of it has ended, and the layers that held it."""
        limits = wanted.limits
        output = contact.output if contact else Output(limits.output_bytes)
        reading = asyncio.create_task(output.read(printed))
        watching: asyncio.Task[None] | None = None
        lines = Lines(control)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await asyncio.get_running_loop().sock_sendall(control, told)
                hello = await lines.read()
            if "layers" not in hello:
                await asyncio.wait([reading], timeout=1)
                raise _NotMadeError(
                    f"the sandbox of a workspace can't be made: {hello.get('error') or output.text()[-300:]}"
                )
            await _take(dict(zip(hello["descriptors"], lines.descriptors, strict=True)), wanted, contact)
            watching = asyncio.create_task(too_large(place, limits.disk_mb << 20))
            farewell, cause = await _farewell(lines, control, limits, watching)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await reading
        except (TimeoutError, OSError, ValueError, SyntaxError) as error:
            raise Fault(
                f"the sandbox of a workspace doesn't answer: {error or 'it takes too long'}", cause="sandbox"
            ) from None
        finally:
            reading.cancel()
            if watching:
                watching.cancel()
        ended = Ended(
            int(farewell.get("status", -9)),
            output.text(),
            cause or farewell.get("cause", ""),
            cpu=max(float(farewell.get("cpu", 0.0)), contact.counter.read() / 1e9 if contact else 0.0),
        )
        return ended, hello["layers"]


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
    lines: Lines, control: socket.socket, limits: Limits, watching: asyncio.Task[None]
) -> tuple[dict[str, Any], Any]:
    """The last line, empty where there is none in time, and which limit was seen to be exceeded from outside."""
    last = asyncio.create_task(lines.read())
    try:
        done, _ = await asyncio.wait([last, watching], timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
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
    _, told, *_ = channel.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    return int(_CREDENTIALS.unpack(told[0][2])[0]) if told else 0


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
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await process.wait()
            return
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()


class Lines:
    """What process 1 says."""

    def __init__(self, control: socket.socket) -> None:
        self.descriptors: list[int] = []  # that came with the lines
        self._control, self._buffer = control, b""

    async def read(self) -> dict[str, Any]:
        """The next line; empty when it has ended. ValueError where it is none."""
        while b"\n" not in self._buffer:
            await _readable(self._control)
            part, descriptors, *_ = socket.recv_fds(self._control, 1 << 16, 2)
            self.descriptors += descriptors
            if not part:
                return {}
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = ast.literal_eval(line.decode())
        return said


class Output:
    """What a command prints: the beginning and the end, where it is more than wanted."""

    def __init__(self, limit: int) -> None:
        self._half, self._head, self._tail, self._size = limit // 2, bytearray(), bytearray(), 0

    async def read(self, stream: asyncio.StreamReader) -> None:
        while part := await stream.read(1 << 16):
            self.add(part)

    def add(self, part: bytes) -> None:
        self._size += len(part)
        room = self._half - len(self._head)
        self._head += part[:room]
        self._tail += part[room:] if room > 0 else part
        if len(self._tail) > self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        dropped = self._size - len(self._head) - len(self._tail)
        return f"{head}\n[{dropped:,} bytes dropped]\n{tail}" if dropped else head + tail


def _entries(wanted: Command, place: Path, more: Sequence[Entry] = ()) -> list[Entry]:
    """The whole tree, folders before what lies in them."""
    checkout, home, tmp = (str(place / name) for name in TREE)
    of_command = [
        Entry("read" if wanted.read_only else "write", checkout, wanted.checkout),
        Entry("write", home, HOME),
        Entry("write", tmp, "/tmp"),  # noqa: S108
        *(
            Entry("write" if mount.writable else "read", str(mount.source.absolute()), mount.target)
            for mount in wanted.mounts
        ),
    ]
    python = userland.prefixes(userland.python()) if wanted.python else ()
    found = [*userland.entries(place.parent / "etc"), *python, *more, *of_command]
    by_target = {entry.target: entry for entry in found}  # the last of a target
    return sorted(by_target.values(), key=lambda entry: entry.target.count("/"))


async def too_large(place: Path, limit: int) -> None:
    """Returns when the folder takes more bytes than that."""
    while True:
        began = time.monotonic()
        if await asyncio.to_thread(occupied, place) > limit:
            return
        await asyncio.sleep(max(_LEAST_PAUSE, _PAUSES * (time.monotonic() - began)))


def occupied(folder: Path | str) -> int:
    """Bytes of disk that a folder takes; links in it aren't followed."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return total
