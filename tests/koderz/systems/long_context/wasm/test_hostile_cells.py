"""Cells that read, break out, use up and lie get nowhere, and leave their session as it was."""

from __future__ import annotations

import asyncio

import pytest

from koderz.systems.long_context.wasm.cells import CellResult
from koderz.systems.long_context.wasm.session import Pool
from tests.koderz.systems.long_context.wasm.cells import HOSTILE
from tests.koderz.systems.long_context.wasm.conftest import NATIVE_SLOW

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", NATIVE_SLOW, indirect=True)
@pytest.mark.parametrize("category", HOSTILE)
async def test_hostile_cells_get_nowhere(category: str, pool: Pool) -> None:
    room = asyncio.Semaphore(3)

    async def tried(code: str) -> tuple[CellResult, CellResult]:
        async with room:
            session = pool.open(memory_mb=128)
            await session.run("import sys\nkept = 'as it was'")
            first = await session.run(code, timeout=0.4 if category in ("endless", "memory") else 10.0)
            await session.run("llm_query_batched(['x'])")
            bystander = await pool.open().run("print('here')")
            await session.close()
            return first, bystander

    found = await asyncio.gather(*map(tried, HOSTILE[category]))
    for code, (first, bystander) in zip(HOSTILE[category], found, strict=True):
        assert "ESCAPED" not in first.stdout, code
        assert bystander.stdout == "here\n", code
        if category == "endless":
            assert first.stopped == "deadline", (code, first)


def test_hostile_cells_are_at_least_sixty() -> None:
    assert sum(map(len, HOSTILE.values())) >= 60


async def test_stopped_cell_leaves_the_session_unchanged(pool: Pool) -> None:
    session = pool.open()
    await session.put("context", "text " * 1000)
    await session.run("import os, re\nx = [1]\ny = len(context)")
    stopped = await session.run("print('printed before')\nx.append(2)\nwhile True: pass", timeout=1)
    after = await session.run("print(x, y)")
    dead = await session.run("x.append(3)\nos._exit(1)")
    last = await session.run("print(x, y)")
    assert (stopped.stopped, stopped.stdout) == ("deadline", "printed before\n")
    assert stopped.error == "TimeoutError: Request timed out: more than 1 s"
    assert after.stdout == last.stdout == "[1] 5000\n"
    assert dead.stopped == "crash"


async def test_session_sees_nothing_of_another(pool: Pool) -> None:
    sessions = [pool.open() for _ in range(4)]
    await asyncio.gather(*(one.run(f"secret = {n}\nimport json\njson.mark = {n}") for n, one in enumerate(sessions)))
    found = await asyncio.gather(*(one.run("print(secret, json.mark)") for one in sessions))
    assert [each.stdout for each in found] == [f"{n} {n}\n" for n in range(4)]


@pytest.mark.parametrize("kind", NATIVE_SLOW, indirect=True)
async def test_output_beyond_a_megabyte_is_cut_and_said(pool: Pool) -> None:
    session = pool.open()
    once = await session.run("print('ä' * 3_000_000)")
    many = await session.run("for n in range(200_000): print(n)", timeout=120)
    little = await session.run("print('little')")
    assert once.truncated
    assert many.truncated
    assert len(once.stdout.encode()) <= 1 << 20
    assert len(many.stdout) <= 1 << 20
    assert many.stdout.startswith("0\n1\n2\n")
    assert (little.stdout, little.truncated) == ("little\n", False)
