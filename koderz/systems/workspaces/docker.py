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
from typing import ClassVar, Self

from koderz.errors import Fault, Unreachable
from koderz.sandbox.docker import ANSWER_SECONDS, DOCKER, PODMAN, ContainerClient, bounds
from koderz.sandbox.process import reap
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import (
    BRIDGE_PORT,
    HOME,
    Command,
    Ended,
    Enforcer,
    Image,
    Mount,
    Running,
)
from koderz.settings.paths import home_folder
from koderz.systems.workspaces import keeping
from koderz.systems.workspaces.cores import available_cores
from koderz.systems.workspaces.folders import TREE, make_tree, without
from koderz.systems.workspaces.proxy import PROXY_PORT, VARIABLES, proxying
from koderz.systems.workspaces.services import Projects, ending_with
from koderz.systems.workspaces.watching import Output, Sockets, too_large

_BRIDGE, _TOOLS = "/opt/koderz/bridge", "/opt/koderz/clock"
_DOOR, _TOOLS_OF_PROXY = "/opt/koderz/door", "/opt/koderz/proxy"
_CHANNEL = 'exec "$@" 3<&0 4>&1 1>&2 0</dev/null'
_NOBODY = "65534:65534"
_SHARED = "16g"  # of memory that processes share, as several GPUs take
LABEL = "koderz=workspace"  # docker ps --filter label=koderz=workspace
ENVIRONMENT = {"HOME": HOME, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: S108
USER, PASSWORD = "DOCKER_USERNAME", "DOCKER_PASSWORD"
_HUB = "https://index.docker.io/v1/"
# stores that docker would ask before it looks at what is written here
_STORES = ("credsStore", "credHelpers")
_BUILD_SECONDS = 1800.0
_NO_PROGRAM = (126, 127)  # what the client ends with where the image lacks the program


class Docker:
    """Runs commands in containers without network, as the user that koderz runs as and without capabilities."""

    name = isolation = "docker"
    has_images = True
    guards_channels = True  # where the image has a python3, which keeps them
    cost = 0.0
    enforces: Mapping[str, Enforcer] = {
        **dict.fromkeys(("cpus", "memory_mb", "network"), "container"),
        "storage_mb": "watched",
    }
    cli: ClassVar[ContainerClient] = DOCKER

    def __init__(self, image: str, environ: Mapping[str, str] = os.environ) -> None:
        self._usual, self._environ = image, environ
        self._building: dict[str, asyncio.Task[str]] = {}
        # whether an image, run as a user, keeps channels
        self._keeping: dict[tuple[str, str], bool] = {}
        self._open = contextlib.ExitStack()
        self._config: tuple[str, ...] = ()
        self._projects = Projects(self.cli, LABEL, self._built)

    async def __aenter__(self) -> Self:
        """Raises Unreachable where no daemon answers."""
        await self.cli.version()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._projects.close()
        self._open.close()

    async def run(self, command: Command, place: Path) -> Ended:
        """See `Backend`."""
        if command.in_image:
            raise Fault(
                "only --sandbox local works in an image's own folder; lay a checkout over it",
                cause="sandbox",
            )
        make_tree(place)
        name = f"koderz-{secrets.token_hex(8)}"
        image = await self._built(command.image)
        if command.channel:
            if not await self._keeps_channels(command, place, image):
                return replace(
                    await self._run(keeping.unkept(command), place, name, image),
                    loaded=[keeping.UNKEPT],
                )
            command = keeping.kept(command, place)
        ended = await self._run(command, place, name, image)
        return keeping.with_facts(ended, place) if command.channel else ended

    async def _run(self, command: Command, place: Path, name: str, image: str) -> Ended:
        async with (
            ending_with(self.cli, "rm", "--force", name),
            _proxied(command, place) as command,
        ):
            if command.bridge:
                # a relay from the container's loopback to a socket that it sees; the image needs a python3
                folder = place / "bridge"
                await command.bridge(_listening(folder))
                relay = Mount(Path(__file__).with_name("relay.py"), f"{_BRIDGE}/relay.py")
                line = f'python3 -I {relay.target} {BRIDGE_PORT} {_BRIDGE}/socket && exec "$@"'
                mounts = [*command.mounts, Mount(folder, _BRIDGE, writable=True), relay]
                command = replace(
                    command, argv=["sh", "-c", line, "sh", *command.argv], mounts=mounts
                )
            words = [*_bounds(name, command), *self._as_user(command), *_seen(command, place)]
            if own := command.services:
                network = await self._projects.network(own, place, online=command.network)
                words += ["--network", network, "--network-alias", own.main]
            client = await _begun(
                self.cli, *words, "--entrypoint", command.argv[0], image, *command.argv[1:]
            )
            return await _ended(
                self.cli, client, name, command, place, Output(command.limits.output_bytes)
            )

    async def _keeps_channels(self, command: Command, place: Path, image: str) -> bool:
        """Whether a container of an image can keep a verifier's channel; tried once."""
        if (image, command.user) not in self._keeping:
            name = f"koderz-{secrets.token_hex(8)}"
            ended = await self._run(keeping.trial(command), place, name, image)
            self._keeping[image, command.user] = ended.status == 0
        return self._keeping[image, command.user]

    @asynccontextmanager
    async def started(self, command: Command, place: Path) -> AsyncIterator[Running]:
        """See `Timed`. The container's first process is a clock, run as root; the command's is another user's."""
        make_tree(place)
        name = f"koderz-{secrets.token_hex(8)}"
        image = await self._built(command.image)
        user = await asyncio.to_thread(_user_of, place)
        async with ending_with(self.cli, "rm", "--force", name):
            clock = await _Clock.started(self.cli, name, command, place, image)
            channel, theirs = socket.socketpair()
            words = ["exec", "--interactive", "--user", user, name, "sh", "-c", _CHANNEL, "sh"]
            client = await _begun(self.cli, *words, *command.argv, channel=theirs)
            output = Output(command.limits.output_bytes)
            ended = asyncio.create_task(
                _ended(self.cli, client, name, command, place, output, clock)
            )
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
        if images and not self._config and self.cli is DOCKER:
            self._config = self._open.enter_context(_configuration(self._environ))
        try:
            if self._config:
                await self.cli.output(*self._config, "login")
            named = {_name_of(image or self._usual): image or self._usual for image in images}
            missing = [image for name, image in named.items() if not await self._is_somewhere(name)]
            if lacking := next((image for image in missing if isinstance(image, str)), ""):
                raise Unreachable(
                    f"{self.cli.flag}: there is no image {lacking}, here or where it is pulled from"
                )
            for image in missing:
                built = await self._built(image)
                if push:
                    await self.cli.output(
                        *self._config, "push", "--quiet", built, seconds=_BUILD_SECONDS
                    )
        except Fault as fault:
            raise Unreachable(f"{self.cli.flag}: {fault}") from None

    async def _is_somewhere(self, name: str) -> bool:
        return await self.cli.succeeds(
            "image", "inspect", "--format", "{{.Id}}", name
        ) or await self.cli.succeeds(*self._config, "manifest", "inspect", name)

    def _as_user(self, command: Command) -> list[str]:
        """The options by which a command runs as its own user, else as koderz' and so that it can change its files."""
        own = ["--userns", "keep-id"] if self.cli.has_own_users else []
        return [*own, "--user", command.user or f"{os.getuid()}:{os.getgid()}"]

    async def copy_out(self, image: Image | str, folder: str, target: Path) -> None:
        """Puts what the image has in a folder into `target`; nothing where it hasn't got that. Raises Fault."""
        name = f"koderz-{secrets.token_hex(8)}"
        built = await self._built(image)
        async with ending_with(self.cli, "rm", "--force", name):
            await self.cli.output(
                "create", "--name", name, "--label", LABEL, "--network", "none", built, "true"
            )
            with contextlib.suppress(Fault):
                await self.cli.output("cp", f"{name}:{folder}/.", str(target))

    async def _built(self, image: Image | str | None) -> str:
        """The image's name. Raises Fault where it can't be built or pulled."""
        if image is None:
            return self._usual
        name = _name_of(image)
        making = self._building.get(name)
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            making = self._building[name] = asyncio.create_task(
                _build(self.cli, image, name, self._config)
            )
        return await asyncio.shield(making)


class Podman(Docker):
    """The same by podman, which needs no daemon."""

    name = isolation = "podman"
    cli = PODMAN


@dataclass(slots=True)
class _Clock:
    """CPU clock of a container, which also owns it: the container ends with the clock."""

    client: asyncio.subprocess.Process
    began: int = 0  # nanoseconds that it took itself to begin
    sockets: Sockets = field(default_factory=Sockets)

    @classmethod
    async def started(
        cls, cli: ContainerClient, name: str, command: Command, place: Path, image: str
    ) -> _Clock:
        """Raises Fault where the container can't be started, or has no python3."""
        path = Path(__file__).with_name("clock.py")
        shown = replace(command, mounts=[*command.mounts, Mount(path, f"{_TOOLS}/clock.py")])
        words = [
            *_bounds(name, command),
            "--interactive",
            "--read-only",
            "--cgroupns",
            "private",
            "--user",
            "0:0",
        ]
        with contextlib.ExitStack() as stack:
            door = stack.enter_context(_listening(place / "door")) if command.reachable else None
            if door:
                # the folder of all workspaces is their owner's alone
                (place / "door/socket").chmod(0o666)
                shown = replace(
                    shown, mounts=[*shown.mounts, Mount(place / "door", _DOOR, writable=True)]
                )
            words += [
                *_seen(shown, place),
                "--entrypoint",
                "python3",
                image,
                "-I",
                "-B",
                f"{_TOOLS}/clock.py",
            ]
            clock = await cls._started(cli, [*words, *([f"{_DOOR}/socket"] if door else [])])
            if door:
                clock.sockets.open(door.accept()[0])
        return clock

    @classmethod
    async def _started(cls, cli: ContainerClient, words: Sequence[str]) -> _Clock:
        clock = cls(
            await _begun(cli, *words, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        )
        try:
            clock.began = await clock.read()
        except OSError:
            assert clock.client.stderr
            why = (await clock.client.stderr.read()).decode(errors="replace").strip()
            raise Fault(
                f"{cli.name} can't start a container: {why[-300:] or 'it ends at once'}",
                cause="sandbox",
            ) from None
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
        await reap(self.client)


def _user_of(place: Path) -> str:
    """The user of a timed command: not root, which its clock runs as."""
    if os.getuid():
        return f"{os.getuid()}:{os.getgid()}"
    for path in (each for name in TREE[1:] for each in (place / name, *(place / name).rglob("*"))):
        path.chmod(0o777)
    return _NOBODY


async def _ended(
    cli: ContainerClient,
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
    cause = await _followed(cli, client, name, command, place)
    await reading
    cpu = 0
    if clock:
        with contextlib.suppress(OSError):
            cpu = await clock.read()
    killed = await cli.output("inspect", "--format", "{{.State.OOMKilled}} {{.State.Error}}", name)
    status = client.returncode or 0
    out_of_memory, _, error = killed.partition(" ")
    if status == 125 or (error and status not in _NO_PROGRAM):
        raise Fault(
            f"{cli.name} can't start a container: {error or output.text()[-300:].strip()}",
            cause="sandbox",
        )
    if out_of_memory == "true":
        cause = cause or "memory"
    return Ended(status, output.text(), cause, loop.time() - began, cpu / 1e9)  # type: ignore[arg-type]


@asynccontextmanager
async def _proxied(command: Command, place: Path) -> AsyncIterator[Command]:
    """The command with a proxy to the hosts that it may reach, within the block; its image needs a python3."""
    if not command.allowed_hosts:
        yield command
        return
    folder, seen = place / "proxy", f"{_TOOLS_OF_PROXY}/socket"
    relay = Mount(Path(__file__).with_name("relay.py"), f"{_TOOLS_OF_PROXY}/relay.py")
    line = f'python3 -I {relay.target} {PROXY_PORT} {seen} && exec "$@"'
    with _listening(folder) as listening:
        async with proxying(listening, command.allowed_hosts):
            yield replace(
                command,
                argv=["sh", "-c", line, "sh", *command.argv],
                environment={**VARIABLES, **command.environment},
                mounts=[*command.mounts, Mount(folder, _TOOLS_OF_PROXY, writable=True), relay],
            )


def _listening(folder: Path) -> socket.socket:
    """A listener at `socket` in a folder that is created."""
    folder.mkdir(exist_ok=True)
    (folder / "socket").unlink(missing_ok=True)  # of an earlier command
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


async def _build(cli: ContainerClient, image: Image | str, name: str, config: Sequence[str]) -> str:
    """Build an image, or pull it if only its name is given."""
    if await cli.succeeds("image", "inspect", "--format", "{{.Id}}", name):
        return name
    if isinstance(image, str):
        await cli.output(*config, "pull", "--quiet", name, seconds=_BUILD_SECONDS)
        return name
    stated = [part for each in image.arguments.items() for part in ("--build-arg", "=".join(each))]
    with without(image.context, image.hidden) as context:
        words = ["build", "--quiet", "--label", LABEL, "--tag", name, *stated, str(context)]
        await cli.output(*config, *words, seconds=_BUILD_SECONDS)
    return name


@contextmanager
def _configuration(environ: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The words by which docker takes DOCKER_USERNAME and DOCKER_PASSWORD; none where they aren't both set.

    They are written to a folder that is gone afterwards; the user's own login stays as it is.
    """
    if not (environ.get(USER) and environ.get(PASSWORD)):
        yield ()
        return
    own = Path(environ.get("DOCKER_CONFIG") or home_folder() / ".docker")
    with scratch() as folder:
        for path in own.iterdir() if own.is_dir() else ():
            if path.name != "config.json":
                (folder / path.name).symlink_to(path.absolute())
        try:
            configuration = json.loads((own / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            configuration = {}
        known = {name: value for name, value in configuration.items() if name not in _STORES}
        secret = base64.b64encode(f"{environ[USER]}:{environ[PASSWORD]}".encode()).decode()
        written = folder / "config.json"
        written.touch(mode=0o600)
        written.write_text(
            json.dumps(
                {**known, "auths": {**configuration.get("auths", {}), _HUB: {"auth": secret}}}
            )
        )
        yield ("--config", str(folder))


def _bounds(name: str, command: Command) -> list[str]:
    limits = command.limits
    return [
        *("run", "--name", name),
        *bounds(
            LABEL,
            limits.memory_mb,
            processes=limits.processes,
            network=command.network or command.services is not None,
        ),
        *(
            ("--gpus", command.gpus.rpartition(":")[2], "--shm-size", _SHARED)
            if command.gpus
            else ()
        ),
        *(("--cpuset-cpus", str(command.core)) if command.core >= 0 else ()),
        *(("--cpus", f"{min(limits.cpus, available_cores()):g}") if limits.cpus else ()),
    ]


def _seen(command: Command, place: Path) -> Iterator[str]:
    """Mounts and variables beside the image. Other users of this machine can't read the variables."""
    checkout, home, tmp = (place / name for name in TREE)
    for source, target, writable in (
        (checkout.resolve(), command.checkout, not command.read_only),
        (home, HOME, True),
        (tmp, "/tmp", True),  # noqa: S108
        *((mount.source.absolute(), mount.target, mount.writable) for mount in command.mounts),
    ):
        yield "--mount"
        yield f"type=bind,{_quoted(f'source={source}')},{_quoted(f'target={target}')}{'' if writable else ',readonly'}"
    variables = ENVIRONMENT | dict(command.environment)
    listed = place / "environment"
    listed.touch(mode=0o600)
    listed.write_text(
        "".join(f"{name}={value}\n" for name, value in variables.items() if "\n" not in value)
    )
    yield from ("--env-file", str(listed), "--workdir", command.checkout)
    for name in command.secrets:  # the value is the client's own variable
        yield from ("--env", name)
    for name, value in variables.items():
        if "\n" in value:
            yield from ("--env", f"{name}={value}")


def _quoted(word: str) -> str:
    """A part of an option as a field of CSV; podman before 4.5 knows no quotes."""
    return word if {*word}.isdisjoint(',"\n') else '"{}"'.format(word.replace('"', '""'))


async def _followed(
    cli: ContainerClient,
    client: asyncio.subprocess.Process,
    name: str,
    command: Command,
    place: Path,
) -> str:
    """Waits for the container's end, and brings it about where a limit is exceeded: that limit."""
    limits = command.limits
    ended = asyncio.create_task(client.wait())
    watching = asyncio.create_task(too_large(place, limits.disk_mb << 20))
    try:
        await asyncio.wait(
            [ended, watching], timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if ended.done():
            return ""
        with contextlib.suppress(Fault):
            await cli.output(
                "stop",
                "--time",
                str(round(limits.grace)),
                name,
                seconds=limits.grace + ANSWER_SECONDS,
            )
        await ended
        return "disk" if watching.done() else "timeout"
    finally:
        watching.cancel()
        await reap(client)


async def _begun(
    cli: ContainerClient,
    *words: str,
    channel: socket.socket | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    stderr: int = asyncio.subprocess.STDOUT,
) -> asyncio.subprocess.Process:
    """The client; where there is a channel, its stdin and stdout are that."""
    return await asyncio.create_subprocess_exec(
        *(cli.executable, *words),
        stdin=channel.fileno() if channel else stdin,
        stdout=channel.fileno() if channel else asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE if channel else stderr,
    )
