"""Whoever measures alone takes turns with every other koderz on the machine."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koderz.cli.progress import pulse_of
from koderz.engines.local import LocalEngine
from koderz.sandbox.calibration import Exclusive
from tests.conftest import PATIENCE

_PROCESS = """
import asyncio, sys
from koderz.sandbox.calibration import Exclusive

async def measure():
    async with Exclusive(None, lambda text: print("waits", flush=True), {"XDG_STATE_HOME": sys.argv[1]})():
        print("measures", flush=True)
        await asyncio.sleep(3600)

asyncio.run(measure())
"""


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def silent(environ: Mapping[str, str]) -> Exclusive:
    return Exclusive(None, lambda _: None, environ)


def places(environ: Mapping[str, str]) -> list[str]:
    return [place.name for place in Path(environ["XDG_STATE_HOME"], "koderz", "exclusive.queue").iterdir()]


@pytest.mark.slow
async def test_exclusive_turns_go_round_among_processes(environ: Mapping[str, str]) -> None:
    turns: list[str] = []
    enough = asyncio.Event()

    async def measure(name: str, exclusive: Exclusive) -> None:
        while not enough.is_set():
            async with exclusive():
                if not enough.is_set():
                    turns.append(name)
                await asyncio.sleep(0)
            if len(turns) > 40:
                enough.set()

    many, *others = (silent(environ) for _ in "abc")
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(measure("a", many))
        for name, one in zip("bc", others, strict=True):
            group.create_task(measure(name, one))
    rounds = turns[max(map(turns.index, "abc")) :]
    assert len(rounds) > 20
    assert all({*each} == {*"abc"} for each in zip(rounds, rounds[1:], rounds[2:], strict=False)), rounds
    assert places(environ) == []


def test_exclusive_of_killed_processes_is_free(environ: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", _PROCESS, environ["XDG_STATE_HOME"]]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as measuring,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting,
    ):
        said = {process.stdout.readline() for process in (measuring, waiting) if process.stdout}
        assert said == {"measures\n", "waits\n"}
        assert len(places(environ)) == 1
        for process in (measuring, waiting):
            process.send_signal(signal.SIGKILL)

    async def measure() -> None:
        async with asyncio.timeout(PATIENCE), silent(environ)():
            assert places(environ) == []

    asyncio.run(measure())


async def test_progress_says_that_another_koderz_is_waited_for(environ: Mapping[str, str]) -> None:
    resources: Any = SimpleNamespace(exclusive=silent(environ), sandbox=SimpleNamespace(isolation="none"), plan=None)
    tally = SimpleNamespace(ended=(), faults=0, cost=0.0, passed=0, judged=0)
    progress = SimpleNamespace(
        started=0.0, done_before=0, planned=9, in_flight=1, tokens_out=0, stopping="", evidence=str
    )
    view: Any = SimpleNamespace(
        tracker=SimpleNamespace(tally=tally),
        orchestrator=SimpleNamespace(progress=progress),
        engine=LocalEngine(resources),
        plan=SimpleNamespace(record=SimpleNamespace(parts=(), headline=None)),
    )

    async def measure() -> str:
        async with resources.exclusive():
            return pulse_of(view, "block 3").line()

    waits = asyncio.Event()
    resources.exclusive = Exclusive(None, lambda _: waits.set(), environ)
    async with silent(environ)():
        task = asyncio.create_task(measure())
        await waits.wait()
        assert "waits for another koderz" in pulse_of(view, "block 3").line()
    after = await task
    assert "block 3" in after
    assert "waits" not in after
