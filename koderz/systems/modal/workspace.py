"""Workspaces in Modal's cloud: a sandbox for each command, without network, secrets, volumes or public address.

A command's folders are shipped there and back, through the stream by which the sandbox is fed, as is what passes
between the command and its bridge. What lasts on this machine, such as an agent's own folder, Modal keeps by content.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox import ROOM_MB
from koderz.sandbox.scratch import own_folder
from koderz.sandbox.workspace import (
    BRIDGE_PORT,
    HOME,
    Command,
    Ended,
    Enforcer,
    Image,
    Meter,
    Mount,
    Running,
    current,
)
from koderz.systems.modal.names import SANDBOX_CORES, gpu_cost, names_of, sandbox_cost
from koderz.systems.modal.sandbox import (
    PYTHON,
    START_SECONDS,
    end_leftovers,
    end_sandboxes,
    make_ready,
    process,
)
from koderz.systems.workspaces.docker import ENVIRONMENT, PASSWORD, USER
from koderz.systems.workspaces.folders import TREE, make_tree, without
from koderz.systems.workspaces.shipping import Contact, Remote, interpreter
from koderz.systems.workspaces.watching import Output

if TYPE_CHECKING:
    import modal


_MEMORY_MB = 1024  # that is paid for in any case
_SHIPPING_SECONDS = 600.0  # for what goes there and back
_LONGEST = 24 * 3600  # seconds that Modal lets a sandbox live
_IDLE_SECONDS = 60  # after which Modal ends a sandbox in which nothing runs
_MACHINE, _FOLDER, _ENTRY = "koderz-machine", "koderz-folder", "koderz-entry"  # tags

_JOIN = """
import os, socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
s.sendall(b".")
os.dup2(s.fileno(), 9)
os.dup2(9, 3)
os.dup2(9, 4)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"{sys.argv[2]}: {error.strerror}")
    sys.exit(127)
"""
_PINNED: ContextVar[tuple[AsyncExitStack, dict[Any, modal.Sandbox]] | None] = ContextVar(
    "pinned", default=None
)

_Key = tuple[str, tuple[tuple[str, str], ...]]


class Modal:
    """Runs commands in sandboxes of the app that `KODERZ_MODAL_APP` names, on images with a python3."""

    name = isolation = "modal"
    has_images = True
    guards_channels = False
    cost = sandbox_cost(_MEMORY_MB)
    enforces: Mapping[str, Enforcer] = {
        **dict.fromkeys(("cpus", "memory_mb", "network"), "container"),
        "storage_mb": "watched",
    }

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._name, self._environ = names_of(environ).app, environ
        self._images: dict[_Key, modal.Image] = {}
        self._building: dict[str, asyncio.Lock] = {}
        self._entry = secrets.token_hex(8)
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connects to Modal. Raises Unreachable without a token, the network or the SDK."""
        self._app = await make_ready(self._name)
        async with _faults():
            place = own_folder().parent
            await end_sandboxes(
                _id(self._app),
                {_MACHINE: _machine()},
                lambda tags: not (place / tags.get(_FOLDER, "")).exists(),
            )
        await self._entered.enter_async_context(_ended_anyway(self._app, self._entry))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._entered.aclose()

    async def run(self, command: Command, place: Path) -> Ended:
        """See `Backend`."""
        return await self._run(command, place, Output(command.limits.output_bytes))

    @asynccontextmanager
    async def started(self, command: Command, place: Path) -> AsyncIterator[Running]:
        """See `Timed`. Its output is carried like that of a bridge."""
        loop = asyncio.get_running_loop()
        contact, output, talking = (
            Contact(),
            Output(command.limits.output_bytes),
            loop.create_future(),
        )
        accepting: list[asyncio.Task[None]] = []

        async def accept(listening: socket.socket) -> None:
            with listening:
                listening.setblocking(False)
                channel, _ = await loop.sock_accept(listening)
            channel.setblocking(False)
            await loop.sock_recv(channel, 1)
            talking.set_result(channel)

        async def serve(listening: socket.socket) -> None:
            accepting.append(asyncio.create_task(accept(listening)))

        joined = ["python3", "-I", "-S", "-c", _JOIN, str(BRIDGE_PORT), *command.argv]
        ended = asyncio.create_task(
            self._run(replace(command, argv=joined, bridge=serve), place, output, contact)
        )
        try:
            await asyncio.wait([talking, ended], return_when=asyncio.FIRST_COMPLETED)
            if not talking.done():
                raise Fault(
                    f"--sandbox modal: the command ended before it began: {(await ended).output[-300:]}",
                    cause="sandbox",
                )
            with talking.result() as channel:
                beside = contact.beside if command.reachable else None
                yield Running(channel, ended, contact.cpu, output=output.text, beside=beside)
        finally:
            ended.cancel()
            for task in accepting:
                task.cancel()
            await asyncio.gather(ended, *accepting, return_exceptions=True)

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[None]:
        """Runs all commands on the same image in one sandbox, one after the other, and so on one machine."""
        async with AsyncExitStack() as stack:
            token = _PINNED.set((stack, {}))
            try:
                yield
            finally:
                _PINNED.reset(token)

    async def _run(
        self, command: Command, place: Path, output: Output, contact: Contact | None = None
    ) -> Ended:
        make_tree(place)
        limits, shipped = command.limits, _shipped(command, place)
        lasting = [mount for mount in command.mounts if mount not in shipped]
        spec = {
            "argv": [*command.argv],
            "environment": ENVIRONMENT | dict(command.environment),
            "folders": [mount.target for mount in shipped],
            "back": [mount.target for mount in shipped if mount.writable],
            "hidden": [mount.target for mount in lasting],
            "own": [mount.target for mount in lasting if mount.writable],
            "port": BRIDGE_PORT if command.bridge else 0,
            "seconds": limits.seconds,
            "grace": limits.grace,
            "memory": limits.memory_mb << 20,
            "processes": limits.processes,
            "room": limits.disk_mb << 20,
        }
        began = asyncio.get_running_loop().time()
        async with self._working(command, lasting) as work:
            answer = await work.done(spec, shipped, output, command.bridge, contact)
        took = asyncio.get_running_loop().time() - began
        return Ended(answer["status"], output.text(), answer["cause"], took, answer["cpu"])

    async def look_up(self, images: Sequence[Image | str | None], *, push: bool = False) -> None:  # noqa: ARG002
        """See `Images`. Modal builds and keeps what it makes of each image now; nothing is pushed."""
        for image in dict.fromkeys(images):
            try:
                await self._image(image, ())
            except Fault as fault:
                raise Unreachable(f"{fault}: the image {image}") from None

    async def copy_out(self, image: Image | str, folder: str, target: Path) -> None:
        """Copies a folder of the image into `target`; does nothing if the image lacks it. Raises Fault."""
        wanted = Command([], image=image)
        async with self._working(wanted, ()) as work:
            spec = {"argv": [], "back": [folder], "room": wanted.limits.disk_mb << 20}
            await work.done(spec, [Mount(target, folder, writable=True)], Output(0))

    @asynccontextmanager
    async def _working(self, command: Command, mounts: Sequence[Mount]) -> AsyncIterator[Remote]:
        """A sandbox for a command, which ends with this block or with `apart`."""
        limits = command.limits
        seconds = START_SECONDS + _SHIPPING_SECONDS + limits.seconds + limits.grace
        try:
            async with _faults(), asyncio.timeout(seconds), AsyncExitStack() as stack:
                pinned, made = _PINNED.get() or (stack, {})
                key = (command.image, *mounts)
                if key not in made:
                    began = time.monotonic()
                    made[key] = await self._created(
                        command, mounts, _LONGEST if pinned is not stack else seconds
                    )
                    pinned.callback(_pay, current(), command, began)
                    pinned.push_async_callback(_terminated, made[key])
                yield Remote(
                    await made[key].exec.aio(*interpreter(), text=False), "--sandbox modal"
                )
        except TimeoutError:
            raise Fault(
                f"--sandbox modal: a sandbox takes longer than {seconds:.0f} s", cause="sandbox"
            ) from None

    async def _created(
        self, command: Command, mounts: Sequence[Mount], seconds: float
    ) -> modal.Sandbox:
        import modal

        secrets = [modal.Secret.from_local_environ([*command.secrets])] if command.secrets else None
        return await modal.Sandbox.create.aio(
            *("sleep", str(_LONGEST)),
            app=self._app,
            image=await self._image(command.image, [mount for mount in mounts if not mount.kept]),
            volumes={mount.target: _volume(mount) for mount in mounts if mount.kept},
            block_network=not command.network,
            secrets=secrets,
            gpu=command.gpus or None,
            cpu=_cores(command),
            memory=(_MEMORY_MB, max(_MEMORY_MB, command.limits.memory_mb) + ROOM_MB),
            timeout=min(_LONGEST, math.ceil(seconds)),
            idle_timeout=_IDLE_SECONDS,
            workdir="/",
            tags={_MACHINE: _machine(), _FOLDER: own_folder().name, _ENTRY: self._entry},
        )

    async def _built(self, image: Image | str | None) -> modal.Image:
        import modal

        with ExitStack() as stack:
            base = modal.Image.debian_slim(python_version=PYTHON)
            if isinstance(image, str):
                base = modal.Image.from_registry(image, secret=_login(self._environ)).entrypoint([])
            elif image:
                context, stated = (
                    stack.enter_context(without(image.context, image.hidden)),
                    dict(image.arguments),
                )
                base = modal.Image.from_dockerfile(
                    context / "Dockerfile", context_dir=context, build_args=stated
                )
                base = base.entrypoint([])
            async with _faults():
                await base.build.aio(self._app)
        return base

    async def _image(self, image: Image | str | None, mounts: Sequence[Mount]) -> modal.Image:
        """The image with the mounts in it, built if necessary."""
        name = (image.name or image.digest) if isinstance(image, Image) else image or ""
        key = (name, tuple((str(mount.source), mount.target) for mount in mounts))
        async with self._building.setdefault(key[0], asyncio.Lock()):
            if key not in self._images:
                base = self._images.get((key[0], ()))
                if base is None:
                    base = self._images[key[0], ()] = await self._built(image)
                for mount in mounts:
                    add = base.add_local_dir if mount.source.is_dir() else base.add_local_file
                    base = add(mount.source, mount.target)
                self._images[key] = base
            return self._images[key]


def _shipped(command: Command, place: Path) -> list[Mount]:
    """The folders that are shipped: the command's own, and the temporary ones."""
    checkout, home, tmp = (place / name for name in TREE)
    return [
        Mount(checkout.resolve(), command.checkout, not command.read_only),
        Mount(home, HOME, writable=True),
        Mount(tmp, "/tmp", writable=True),  # noqa: S108
        *(
            mount
            for mount in command.mounts
            if not mount.kept and (mount.writable or mount.source.is_relative_to(own_folder()))
        ),
    ]


def _pay(meter: Meter | None, command: Command, began: float) -> None:
    """Adds the cost of a sandbox by its requested size; in Modal's own containers the engine does that."""
    import modal

    if meter is None or not modal.is_local():
        return
    price, is_known = sandbox_cost(_MEMORY_MB, _cores(command)), True
    try:
        price += gpu_cost(command.gpus) if command.gpus else 0.0
    except KoderzError:
        is_known = False
    meter.add(time.monotonic() - began, price, is_known=is_known)


def _cores(command: Command) -> float:
    return (command.limits.cpus or SANDBOX_CORES) + command.reachable  # for what talks to it there


def _volume(mount: Mount) -> modal.Volume:
    import modal

    volume = modal.Volume.from_name(mount.kept, create_if_missing=True)
    return volume if mount.writable else volume.read_only()


def _login(environ: Mapping[str, str]) -> modal.Secret | None:
    """The credentials with which Modal pulls private images."""
    import modal

    if not (environ.get(USER) and environ.get(PASSWORD)):
        return None
    return modal.Secret.from_dict(
        {"REGISTRY_USERNAME": environ[USER], "REGISTRY_PASSWORD": environ[PASSWORD]}
    )


@cache
def _machine() -> str:
    """A name of this machine and its place for workspaces; in Modal's containers, the container's id."""
    machine = os.environ.get("MODAL_TASK_ID") or socket.gethostname()
    return hashlib.sha256(f"{machine} {own_folder().parent}".encode()).hexdigest()[:16]


def _id(app: modal.App) -> str:
    assert app.app_id
    return app.app_id


@asynccontextmanager
async def _ended_anyway(app: modal.App, entry: str) -> AsyncIterator[None]:
    """Ends the remaining sandboxes with this tag when the block ends, and also if koderz is killed."""
    words = process(end_leftovers, _id(app), _ENTRY, entry)
    watching = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert watching.stdin
    try:
        yield
    finally:
        try:
            with suppress(Fault, ConnectionError):
                async with _faults():
                    await end_sandboxes(_id(app), {_ENTRY: entry})
                watching.stdin.write(b".")
                await watching.stdin.drain()
        finally:
            # when that closes it ends them itself, unless it was told that they are ended
            watching.stdin.close()
            await watching.wait()


async def _terminated(sandbox: modal.Sandbox) -> None:
    with suppress(Fault):
        async with _faults():
            await sandbox.terminate.aio()


@asynccontextmanager
async def _faults() -> AsyncIterator[None]:
    """Turns failures of Modal into faults."""
    from modal import exception

    from koderz.systems.modal.cloud import LostCallError, spoken

    try:
        with spoken("the sandbox", lost=True, offline="is there a network?"):
            yield
    except Fault:
        raise
    except (KoderzError, LostCallError, exception.Error) as error:
        raise Fault(
            f"--sandbox modal: {(str(error).splitlines() or [type(error).__name__])[0]}",
            cause="sandbox",
        ) from error
