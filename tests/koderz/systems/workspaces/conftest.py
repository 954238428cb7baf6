"""Commands run from tests, in a workspace of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Ended, Limits
from koderz.systems.workspaces.local import Local
from tests.conftest import PATIENCE

Runs = Callable[..., Ended]


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as folder:
        yield folder


@pytest.fixture(scope="module", params=["own namespaces", "bubblewrap"])
def local(request: pytest.FixtureRequest) -> Local:
    """This machine as a backend, entered once."""
    own = request.param == "own namespaces"
    if not own and shutil.which("bwrap") is None and not os.environ.get("CI"):
        pytest.skip("bubblewrap isn't installed")

    async def opened() -> Local:
        async with Local(bubblewrap_allowed=not own) as found:
            return found

    try:
        return asyncio.run(opened())
    except Unreachable as error:
        pytest.skip(str(error))


@pytest.fixture
def runs(local: Local, place: Path) -> Runs:
    """Runs a command line in a shell."""

    def run(line: str, limits: Limits | None = None, **more: Any) -> Ended:
        wanted = Command(["bash", "-c", line], limits=limits or Limits(seconds=PATIENCE), **more)
        return asyncio.run(local.run(wanted, place))

    return run
