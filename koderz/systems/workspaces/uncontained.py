"""Commands that nothing holds back but their limits of time, disk and output: for tasks and agents that are trusted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from koderz.errors import Fault
from koderz.sandbox.process import reap
from koderz.sandbox.workspace import BRIDGE_URL, HOME, Command, Ended, Enforcer
from koderz.systems.workspaces import userland
from koderz.systems.workspaces.folders import TREE, make_tree
from koderz.systems.workspaces.watching import Output, too_large

if TYPE_CHECKING:
    pass


class Uncontained:
    """Runs commands as processes of this machine, in their folders where these lie."""

    name = isolation = "uncontained"
    has_images = False
    guards_channels = False
    cost = 0.0
    enforces: Mapping[str, Enforcer] = {
        "cpus": "no",
        "memory_mb": "no",
        "storage_mb": "watched",
        "network": "no",
    }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def run(self, command: Command, place: Path) -> Ended:
        """See `Backend`. Paths in the command's words and variables are those that it would see; Fault for others."""
        make_tree(place)
        places = _places(command, place)
        if command.bridge:
            listening = socket.create_server(("127.0.0.1", 0))
            places[BRIDGE_URL] = "http://{}:{}".format(*listening.getsockname())
            await command.bridge(listening)
        own = userland.environment() | {"TMPDIR": str(place / "tmp")} | dict(command.variables)
        output, limits = Output(command.limits.output_bytes), command.limits
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            process = await asyncio.create_subprocess_exec(
                *(_here(word, places) for word in command.argv),
                cwd=place / TREE[0],
                env={name: _here(value, places) for name, value in own.items()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Ended(127, f"{command.argv[0]}: {error.strerror}\n")
        ended = asyncio.create_task(_read(process, output))
        watching = asyncio.create_task(too_large(place, limits.disk_mb << 20))
        try:
            await asyncio.wait(
                [ended, watching], timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            cause = ""
            if not ended.done():
                cause = "disk" if watching.done() else "timeout"
                _signal(process.pid, signal.SIGTERM)
                await asyncio.wait([ended], timeout=limits.grace)
        finally:
            watching.cancel()
            _signal(process.pid, signal.SIGKILL)
            await reap(process)
            await ended
        return Ended(process.returncode or 0, output.text(), cause, loop.time() - began)  # type: ignore[arg-type]


async def _read(process: asyncio.subprocess.Process, output: Output) -> None:
    assert process.stdout
    reading = asyncio.create_task(output.read(process.stdout))
    await process.wait()
    _signal(process.pid, signal.SIGKILL)  # what it has left behind
    await reading


def _places(command: Command, place: Path) -> dict[str, str]:
    """Where the folders lie that a command would see elsewhere. Fault for those that its own scripts name."""
    mounts = [mount for mount in command.mounts if str(mount.source.absolute()) != mount.target]
    for mount in mounts:
        if not mount.target.startswith("/opt/koderz/"):
            raise Fault(
                f"{mount.target} can't be shown to a command that isn't contained; use --sandbox docker",
                cause="sandbox",
            )
    found = {mount.target: str(mount.source.absolute()) for mount in mounts}
    return {**found, command.checkout: str(place / TREE[0]), HOME: str(place / TREE[1])}


def _here(word: str, places: Mapping[str, str]) -> str:
    if BRIDGE_URL in places:
        word = word.replace(BRIDGE_URL, places[BRIDGE_URL])
    for target in sorted(places, key=len, reverse=True):
        if word == target or word.startswith(f"{target}/"):
            return places[target] + word[len(target) :]
    return word


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
