"""What serves a command's bridge is reached from within, wherever the command runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Unreachable
from koderz.sandbox.workspace import BRIDGE_URL, Command, Ended, Limits
from koderz.systems.modal.workspace import Modal
from koderz.systems.workspaces.docker import Docker
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.uncontained import Uncontained
from tests.conftest import PATIENCE
from tests.koderz.systems.workspaces.test_docker import stand_in

ASK = (
    "import os, urllib.request as r; u = os.environ['AT']; [print(r.urlopen(u).read().decode(), end='') for _ in 'ab']"
)


async def reached(backend: Any, place: Path) -> Ended:
    """What a command is answered, twice."""
    served: list[asyncio.Server] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nserved\n")
        writer.close()

    async def serve(listening: socket.socket) -> None:
        served.append(await asyncio.start_server(answer, sock=listening))

    wanted = Command(["python3", "-c", ASK], {"AT": f"{BRIDGE_URL}/v1"}, limits=Limits(seconds=PATIENCE), bridge=serve)
    async with backend:
        ended: Ended = await backend.run(wanted, place)
    for server in served:
        server.close()
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own namespaces", "bubblewrap", "docker", "modal", "uncontained"])
def test_bridge_is_reached(
    kind: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if kind == "docker":
        stand_in(tmp_path, monkeypatch)
    if kind == "modal":
        request.getfixturevalue("cloud")
    backends: Any = {"docker": lambda: Docker("python:3.12-slim"), "modal": Modal, "uncontained": Uncontained}
    backend = backends.get(kind, lambda: Local(bubblewrap_allowed=kind == "bubblewrap"))()
    with contextlib.suppress(Unreachable):
        assert asyncio.run(reached(backend, place)).output == "served\nserved\n"
        return
    pytest.skip("no command can be contained here")
