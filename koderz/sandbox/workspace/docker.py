"""Commands in containers: one for each, over the folders of a place, on an image that is built once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from koderz.errors import Fault, Unreachable
from koderz.sandbox import DockerOptions
from koderz.sandbox.docker import ANSWER_SECONDS, bounds, daemon_version, executable, said, succeeds
from koderz.sandbox.workspace import BRIDGE_PORT, HOME, Command, Ended, Image, Mount, Running, Serve
from koderz.sandbox.workspace.folders import TREE, make_tree, scratch, without
from koderz.sandbox.workspace.watching import Output, Sockets, too_large

if TYPE_CHECKING:
    from koderz.settings.schema import Settings

_BRIDGE, _TOOLS = "/opt/koderz/bridge", "/opt/koderz/clock"
_DOOR = "/opt/koderz/door"
_CHANNEL = 'exec "$@" 3<&0 4>&1 1>&2 0</dev/null'
_NOBODY = "65534:65534"
_SHARED = "16g"  # of memory that processes share, as several GPUs take
LABEL = "koderz=workspace"  # docker ps --filter label=koderz=workspace
ENVIRONMENT = {"HOME": HOME, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: S108
USER, PASSWORD = "DOCKER_USERNAME", "DOCKER_PASSWORD"
_HUB = "https://index.docker.io/v1/"
_STORES = ("credsStore", "credHelpers")  # which docker would ask before it looks at what is written here
_BUILD_SECONDS = 1800.0
_NO_PROGRAM = (126, 127)  # what the client ends with where the image lacks the program
# Removes the container however koderz ends. The second time is for one that was only about to be made.
_REAPER = 'cat >/dev/null; "$0" rm --force "$1"; sleep 1; exec "$0" rm --force "$1"'


def opened(settings: Settings) -> Docker:
    return Docker(settings.of(DockerOptions).docker_image)


class Docker:
    """Runs commands in containers without network, as the user that koderz runs as and without capabilities."""

    name = isolation = "docker"
    has_images = True
    cost = 0.0

    def __init__(self, image: str, environ: Mapping[str, str] = os.environ) -> None:
        self._usual, self._environ = image, environ
        self._building: dict[str, asyncio.Task[str]] = {}
        self._open = contextlib.ExitStack()
        self._config: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        """Raises Unreachable where no daemon answers."""
        await daemon_version()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.close()

    async def run(self, command: Command, place: Path) -> Ended:
        """See `Backend`."""
        make_tree(place)
        name = f"koderz-{secrets.token_hex(8)}"
        image = await self._built(command.image)
        async with _removed(name):
            if command.bridge:
                command = await _bridged(command, command.bridge, place)
            words = [*_bounds(name, command), "--user", f"{os.getuid()}:{os.getgid()}", *_seen(command, place)]
            client = await _docker(*words, "--entrypoint", command.argv[0], image, *command.argv[1:])
            return await _ended(client, name, command, place, Output(command.limits.output_bytes))

    @asynccontextmanager
    async def started(self, command: Command, place: Path) -> AsyncIterator[Running]:
        """See `Timed`. The container's first process is a clock, run as root; the command's is another user's."""
        make_tree(place)
        name = f"koderz-{secrets.token_hex(8)}"
        image = await self._built(command.image)
        user = await asyncio.to_thread(_user_of, place)
        async with _removed(name):
            clock = await _Clock.begun(name, command, place, image)
            channel, theirs = socket.socketpair()
            words = ["exec", "--interactive", "--user", user, name, "sh", "-c", _CHANNEL, "sh"]
            client = await _docker(*words, *command.argv, channel=theirs)
            output = Output(command.limits.output_bytes)
            ended = asyncio.create_task(_ended(client, name, command, place, output, clock))
            theirs.close()
            channel.setblocking(False)
            try:
                sockets = clock.sockets if command.reachable else None
                yield Running(channel, ended, clock.read, output=output.text, sockets=sockets)
            finally:
                channel.close()
                await clock.close()  # and with it all that runs in the container
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)

    async def look_up(self, images: Sequence[Image | str | None], *, push: bool = False) -> None:
        """See `Images`. Where DOCKER_USERNAME and DOCKER_PASSWORD are set, docker logs in by these first."""
        if images and not self._config:
            self._config = self._open.enter_context(_configuration(self._environ))
        try:
            if self._config:
                await said(*self._config, "login")
            named = {_name_of(image or self._usual): image or self._usual for image in images}
            missing = [image for name, image in named.items() if not await self._is_somewhere(name)]
            if lacking := next((image for image in missing if isinstance(image, str)), ""):
                raise Unreachable(f"--sandbox docker: there is no image {lacking}, here or where it is pulled from")
            for image in missing:
                built = await self._built(image)
                if push:
                    await said(*self._config, "push", "--quiet", built, seconds=_BUILD_SECONDS)
        except Fault as fault:
            raise Unreachable(f"--sandbox docker: {fault}") from None

    async def _is_somewhere(self, name: str) -> bool:
        return await succeeds("image", "inspect", "--format", "{{.Id}}", name) or await succeeds(
            *self._config, "manifest", "inspect", name
        )

    async def copy_out(self, image: Image | str, folder: str, target: Path) -> None:
        """Puts what the image has in a folder into `target`; nothing where it hasn't got that. Raises Fault."""
        name = f"koderz-{secrets.token_hex(8)}"
        built = await self._built(image)
        async with _removed(name):
            await said("create", "--name", name, "--label", LABEL, "--network", "none", built, "true")
            with contextlib.suppress(Fault):
                await said("cp", f"{name}:{folder}/.", str(target))

    async def _built(self, image: Image | str | None) -> str:
        """The image's name. Raises Fault where it can't be built or pulled."""
        if image is None:
            return self._usual
        name = _name_of(image)
        making = self._building.get(name)
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            making = self._building[name] = asyncio.create_task(_build(image, name, self._config))
        return await asyncio.shield(making)


@dataclass(slots=True)
class _Clock:
    """What says how much CPU a container has used, and holds it: it ends when this does."""

    client: asyncio.subprocess.Process
    began: int = 0  # nanoseconds that it took itself to begin
    sockets: Sockets = field(default_factory=Sockets)

    @classmethod
    async def begun(cls, name: str, command: Command, place: Path, image: str) -> _Clock:
        """Raises Fault where the container can't be started, or has no python3."""
        path = Path(__file__).with_name("clock.py")
        shown = replace(command, mounts=[*command.mounts, Mount(path, f"{_TOOLS}/clock.py")])
        words = [*_bounds(name, command), "--interactive", "--read-only", "--cgroupns", "private", "--user", "0:0"]
        with contextlib.ExitStack() as stack:
            door = stack.enter_context(_listening(place / "door")) if command.reachable else None
            if door:
                (place / "door/socket").chmod(0o666)  # the folder of all workspaces is their owner's alone
                shown = replace(shown, mounts=[*shown.mounts, Mount(place / "door", _DOOR, writable=True)])
            words += [*_seen(shown, place), "--entrypoint", "python3", image, "-I", "-B", f"{_TOOLS}/clock.py"]
            clock = await cls._begun([*words, *([f"{_DOOR}/socket"] if door else [])])
            if door:
                clock.sockets.open(door.accept()[0])
        return clock

    @classmethod
    async def _begun(cls, words: Sequence[str]) -> _Clock:
        clock = cls(await _docker(*words, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE))
        try:
            clock.began = await clock.read()
        except OSError:
            assert clock.client.stderr
            why = (await clock.client.stderr.read()).decode(errors="replace").strip()
            raise Fault(f"docker can't start a container: {why[-300:] or 'it ends at once'}", cause="sandbox") from None
        return clock

    async def read(self) -> int:
        """Nanoseconds. OSError where the container has ended."""
        assert self.client.stdin
        assert self.client.stdout
        self.client.stdin.write(b"\n")
        if not (line := await self.client.stdout.readline()):
            raise OSError("the container has ended")
        return int(line) - self.began

    async def close(self) -> None:
        """Ends it, and with it the container."""
        self.sockets.close()
        with contextlib.suppress(ProcessLookupError):
            self.client.kill()
        await self.client.wait()


def _user_of(place: Path) -> str:
    """Who a timed command runs as: somebody else than root, as whom its clock runs."""
    if os.getuid():
        return f"{os.getuid()}:{os.getgid()}"
    for path in (each for name in TREE[1:] for each in (place / name, *(place / name).rglob("*"))):
        path.chmod(0o777)
    return _NOBODY


async def _ended(
    client: asyncio.subprocess.Process,
    name: str,
    command: Command,
    place: Path,
    output: Output,
    clock: _Clock | None = None,
) -> Ended:
    """How a container's command ended, once it has. Raises Fault where it can't be started."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    stream = client.stderr or client.stdout
    assert stream
    reading = asyncio.create_task(output.read(stream))
    cause = await _followed(client, name, command, place)
    await reading
    cpu = 0
    if clock:
        with contextlib.suppress(OSError):
            cpu = await clock.read()
    killed = await said("inspect", "--format", "{{.State.OOMKilled}} {{.State.Error}}", name)
    status = client.returncode or 0
    out_of_memory, _, error = killed.partition(" ")
    if status == 125 or (error and status not in _NO_PROGRAM):
        raise Fault(f"docker can't start a container: {error or output.text()[-300:].strip()}", cause="sandbox")
    if out_of_memory == "true":
        cause = cause or "memory"
    return Ended(status, output.text(), cause, loop.time() - began, cpu / 1e9)  # type: ignore[arg-type]


async def _bridged(command: Command, serve: Serve, place: Path) -> Command:
    """The command with a relay from its loopback to a socket in a folder that it sees; its image needs a python3."""
    folder = place / "bridge"
    await serve(_listening(folder))
    relay = Mount(Path(__file__).with_name("relay.py"), f"{_BRIDGE}/relay.py")
    line = f'python3 -I {relay.target} {BRIDGE_PORT} {_BRIDGE}/socket && exec "$@"'
    mounts = [*command.mounts, Mount(folder, _BRIDGE, writable=True), relay]
    return replace(command, argv=["sh", "-c", line, "sh", *command.argv], mounts=mounts)


def _listening(folder: Path) -> socket.socket:
    """What listens at `socket` in a folder, which is made."""
    folder.mkdir(exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    descriptor = os.open(folder, os.O_PATH)
    try:
        listening.bind(f"/proc/self/fd/{descriptor}/socket")  # whose length is limited
    finally:
        os.close(descriptor)
    listening.listen(128)
    return listening


def _name_of(image: Image | str) -> str:
    return image if isinstance(image, str) else image.name or f"koderz-workspace:{image.digest}"


async def _build(image: Image | str, name: str, config: Sequence[str]) -> str:
    """Has an image here, by pulling it where it has but a name."""
    if await succeeds("image", "inspect", "--format", "{{.Id}}", name):
        return name
    if isinstance(image, str):
        await said(*config, "pull", "--quiet", name, seconds=_BUILD_SECONDS)
        return name
    stated = [part for each in image.arguments.items() for part in ("--build-arg", "=".join(each))]
    with without(image.context, image.hidden) as context:
        words = ["build", "--quiet", "--label", LABEL, "--tag", name, *stated, str(context)]
        await said(*config, *words, seconds=_BUILD_SECONDS)
    return name


@contextmanager
def _configuration(environ: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The words by which docker takes DOCKER_USERNAME and DOCKER_PASSWORD; none where they aren't both set.

    They are written to a folder that is gone afterwards; the user's own login stays as it is.
    """
    if not (environ.get(USER) and environ.get(PASSWORD)):
        yield ()
        return
    own = Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    with scratch() as folder:
        for path in own.iterdir() if own.is_dir() else ():
            if path.name != "config.json":
                (folder / path.name).symlink_to(path.absolute())
        try:
            told = json.loads((own / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            told = {}
        known = {name: value for name, value in told.items() if name not in _STORES}
        secret = base64.b64encode(f"{environ[USER]}:{environ[PASSWORD]}".encode()).decode()
        written = folder / "config.json"
        written.touch(mode=0o600)
        written.write_text(json.dumps({**known, "auths": {**told.get("auths", {}), _HUB: {"auth": secret}}}))
        yield ("--config", str(folder))


def _bounds(name: str, command: Command) -> list[str]:
    limits = command.limits
    return [
        *("run", "--name", name),
        *bounds(LABEL, limits.memory_mb, processes=limits.processes, network=command.network),
        *(("--gpus", command.gpus.rpartition(":")[2], "--shm-size", _SHARED) if command.gpus else ()),
        *(("--cpuset-cpus", str(command.core)) if command.core >= 0 else ()),
    ]


def _seen(command: Command, place: Path) -> Iterator[str]:
    """What there is besides the image: folders, and variables, which other users of this machine don't see."""
    checkout, home, tmp = (place / name for name in TREE)
    for source, target, writable in (
        (checkout.resolve(), command.checkout, not command.read_only),
        (home, HOME, True),
        (tmp, "/tmp", True),  # noqa: S108
        *((mount.source.absolute(), mount.target, mount.writable) for mount in command.mounts),
    ):
        yield "--mount"
        yield f'type=bind,"source={source}","target={target}"{"" if writable else ",readonly"}'
    variables = ENVIRONMENT | dict(command.environment)
    listed = place / "environment"
    listed.touch(mode=0o600)
    listed.write_text("".join(f"{name}={value}\n" for name, value in variables.items() if "\n" not in value))
    yield from ("--env-file", str(listed), "--workdir", command.checkout)
    for name in command.secrets:  # the value is the client's own variable
        yield from ("--env", name)
    for name, value in variables.items():
        if "\n" in value:
            yield from ("--env", f"{name}={value}")


async def _followed(client: asyncio.subprocess.Process, name: str, command: Command, place: Path) -> str:
    """Waits for the container's end, and brings it about where a limit is exceeded: that limit."""
    limits = command.limits
    ended = asyncio.create_task(client.wait())
    watching = asyncio.create_task(too_large(place, limits.disk_mb << 20))
    try:
        await asyncio.wait([ended, watching], timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ""
        with contextlib.suppress(Fault):
            await said("stop", "--time", str(round(limits.grace)), name, seconds=limits.grace + ANSWER_SECONDS)
        await ended
        return "disk" if watching.done() else "timeout"
    finally:
        watching.cancel()
        if not ended.done():
            client.kill()
            await ended


@asynccontextmanager
async def _removed(name: str) -> AsyncIterator[None]:
    """Removes a container when this is left, or koderz is killed."""
    reaper = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _REAPER, executable(), name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(Fault):
            await said("rm", "--force", name)
        reaper.kill()
        await reaper.wait()


async def _docker(
    *words: str,
    channel: socket.socket | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    stderr: int = asyncio.subprocess.STDOUT,
) -> asyncio.subprocess.Process:
    """The client; where there is a channel, its stdin and stdout are that."""
    return await asyncio.create_subprocess_exec(
        *(executable(), *words),
        stdin=channel.fileno() if channel else stdin,
        stdout=channel.fileno() if channel else asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE if channel else stderr,
    )
