"""The services beside a command's container: a compose project of their own, while the command's place is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from koderz.errors import Fault
from koderz.sandbox.docker import ANSWER_SECONDS, LOOK_SECONDS, ContainerClient
from koderz.sandbox.process import reap
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Services
from koderz.systems.workspaces.folders import without
from koderz_tracker.errors import Cause

_GONE_SECONDS = 0.2  # between looks for whether a place is still there
_UP_SECONDS, _DOWN_SECONDS = 1800.0, 300.0
_DOWN = ("down", "--volumes", "--remove-orphans", "--rmi", "local", "--timeout", "1")
# Does it however koderz ends. The second time is for a container that was only about to be made.
_REAPER = 'cat >/dev/null; "$@"; sleep 1; exec "$@"'


@dataclass(slots=True)
class Projects:
    """The compose projects of places, each begun with the first command that needs it."""

    cli: ContainerClient
    label: str
    pull: Callable[[str], Awaitable[object]]  # makes an image be here
    _begun: dict[tuple[int, int] | None, tuple[asyncio.Future[str], asyncio.Task[None]]] = field(
        default_factory=dict
    )
    _closed: bool = False

    async def network(self, services: Services, place: Path, *, online: bool) -> str:
        """The network on which the healthy services of a place are. Raises Fault if they can't be started."""
        key = _identity(place)
        if key not in self._begun:
            handle = os.open(place, os.O_PATH)
            begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            holding = self._hold(services, place, handle, begun, online=online)
            self._begun[key] = begun, asyncio.create_task(holding)
            self._begun[key][1].add_done_callback(lambda _: self._begun.pop(key))
        return await asyncio.shield(self._begun[key][0])

    async def close(self) -> None:
        """Takes down all that are left."""
        self._closed = True
        left = [*self._begun.values()]
        for begun, task in left:
            if not begun.done():  # one that is taken down already isn't disturbed
                task.cancel()
        await asyncio.gather(*(task for _, task in left), return_exceptions=True)

    async def _hold(
        self,
        services: Services,
        place: Path,
        handle: int,
        begun: asyncio.Future[str],
        *,
        online: bool,
    ) -> None:
        # While the handle is open no other folder gets its inode, so that a place made anew has services of its own.
        try:
            async with self._composed(services, online=online) as name:
                begun.set_result(name)
                while not self._closed and _identity(place) == _identity(handle):  # noqa: ASYNC110 nothing tells
                    await asyncio.sleep(_GONE_SECONDS)
        except (Fault, OSError) as error:
            if not begun.done():
                begun.set_exception(error)
        finally:
            begun.cancel()
            os.close(handle)

    @asynccontextmanager
    async def _composed(self, services: Services, *, online: bool) -> AsyncIterator[str]:
        """The name of a project and of its network, taken down when this is left, or koderz is killed."""
        name = f"koderz-{secrets.token_hex(8)}"
        tables = {
            each: {**table, "labels": [self.label]} for each, table in services.services.items()
        }
        network: dict[str, Any] = {"name": name, "internal": not online}
        if not online and self.cli.name == "docker":
            # or this machine's own ports would be reached at the gateway
            network["driver_opts"] = {"com.docker.network.bridge.inhibit_ipv4": "true"}
        project = {
            "services": tables,
            "volumes": services.volumes,
            "networks": {"default": network},
        }
        with scratch() as folder, without(services.folder, services.hidden) as context:
            file, variables = folder / "compose.json", folder / "empty.env"
            text = json.dumps(project, ensure_ascii=False).replace(
                "$", "$$"
            )  # so that nothing is filled in from koderz' own variables
            file.write_text(text, "utf-8", "replace")  # in a folder that is its owner's alone
            variables.touch()  # in place of the .env of the task
            own = [
                *("compose", "--project-name", name, "--project-directory", str(context)),
                *("--env-file", str(variables), "--file", str(file)),
            ]
            async with ending_with(self.cli, *own, *_DOWN, seconds=_DOWN_SECONDS):
                with _caused("task"):
                    await self.cli.output(*own, "config", "--quiet")
                with _caused("image"):
                    for image in services.images:
                        await self.pull(image)
                    await self.cli.output(*own, "build", "--quiet", seconds=_UP_SECONDS)
                with _caused("setup"):
                    await self.cli.output(*own, "up", "--detach", "--wait", seconds=_UP_SECONDS)
                yield name


def _identity(folder: Path | int) -> tuple[int, int] | None:
    """The identity of a folder; None once it is gone."""
    try:
        about = os.stat(folder)  # noqa: PTH116 it may be a descriptor
    except FileNotFoundError:
        return None
    return about.st_dev, about.st_ino


@contextmanager
def _caused(cause: Cause) -> Iterator[None]:
    """Gives a fault within the cause of one of the services."""
    try:
        yield
    except Fault as fault:
        raise Fault(f"the task's services: {fault}", cause=cause) from None


@cache
def has_compose(executable: str) -> bool:
    """Whether a client is here, and has the second generation of Docker's compose."""
    asked = [executable, "compose", "version"]
    try:
        done = subprocess.run(asked, capture_output=True, timeout=LOOK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.startswith(b"Docker Compose")


@asynccontextmanager
async def ending_with(
    cli: ContainerClient, *words: str, seconds: float = ANSWER_SECONDS
) -> AsyncIterator[None]:
    """Runs words of a client when this is left, or koderz is killed, such as those that remove a container."""
    reaper = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _REAPER, "sh", cli.executable, *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        assert reaper.stdin
        try:
            with contextlib.suppress(Fault):
                await cli.output(*words, seconds=seconds)
            await reap(reaper)
        finally:
            # when that closes it runs the words, where this is cancelled before they are run
            reaper.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await reaper.wait()
