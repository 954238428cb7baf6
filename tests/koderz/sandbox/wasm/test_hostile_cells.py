"""Cells that read, break out, use up and lie get nowhere, and leave their session as it was."""

from __future__ import annotations

import asyncio

import pytest

from koderz.sandbox.wasm.cells import CellResult
from koderz.sandbox.wasm.session import Pool
from tests.koderz.sandbox.wasm.cells import HOSTILE
from tests.koderz.sandbox.wasm.conftest import NATIVE_SLOW, Done

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", NATIVE_SLOW, indirect=True)
@pytest.mark.parametrize("category", HOSTILE)
def test_hostile_cells_get_nowhere(category: str, within: Done) -> None:
    room = asyncio.Semaphore(3)

    async def tried(pool: Pool, code: str) -> tuple[CellResult, CellResult]:
        async with room:
            session = pool.open(memory_mb=128)
            await session.run("import sys\nkept = 'as it was'")
            first = await session.run(code, timeout=0.4 if category in ("endless", "memory") else 10.0)
            await session.run("llm_query_batched(['x'])")
            bystander = await pool.open().run("print('here')")
            await session.close()
            return first, bystander

    async def all_tried(pool: Pool) -> list[tuple[CellResult, CellResult]]:
        return await asyncio.gather(*(tried(pool, code) for code in HOSTILE[category]))

    for code, (first, bystander) in zip(HOSTILE[category], within(all_tried), strict=True):
        assert "ESCAPED" not in first.stdout, code
        assert bystander.stdout == "here\n", code
        if category == "endless":
            assert first.stopped == "deadline", (code, first)


def test_hostile_cells_are_at_least_sixty() -> None:
    assert sum(map(len, HOSTILE.values())) >= 60


def test_stopped_cell_leaves_the_session_unchanged(within: Done) -> None:
    async def doing(pool: Pool) -> list[CellResult]:
        session = pool.open()
        await session.put("context", "text " * 1000)
        await session.run("import os, re\nx = [1]\ny = len(context)")
        stopped = await session.run("print('printed before')\nx.append(2)\nwhile True: pass", timeout=1)
        after = await session.run("print(x, y)")
        dead = await session.run("x.append(3)\nos._exit(1)")
        return [stopped, after, dead, await session.run("print(x, y)")]

    stopped, after, dead, last = within(doing)
    assert (stopped.stopped, stopped.stdout) == ("deadline", "printed before\n")
    assert stopped.error == "TimeoutError: Request timed out: more than 1 s"
    assert after.stdout == last.stdout == "[1] 5000\n"
    assert dead.stopped == "crash"


def test_session_sees_nothing_of_another(within: Done) -> None:
    async def doing(pool: Pool) -> list[CellResult]:
        sessions = [pool.open() for _ in range(4)]
        await asyncio.gather(
            *(one.run(f"secret = {n}\nimport json\njson.mark = {n}") for n, one in enumerate(sessions))
        )
        return await asyncio.gather(*(one.run("print(secret, json.mark)") for one in sessions))

    assert [found.stdout for found in within(doing)] == [f"{n} {n}\n" for n in range(4)]


@pytest.mark.parametrize("kind", NATIVE_SLOW, indirect=True)
def test_output_beyond_a_megabyte_is_cut_and_said(within: Done) -> None:
    async def doing(pool: Pool) -> list[CellResult]:
        session = pool.open()
        return [
            await session.run("print('ä' * 3_000_000)"),
            await session.run("for n in range(200_000): print(n)", timeout=120),
            await session.run("print('little')"),
        ]

    once, many, little = within(doing)
    assert once.truncated
    assert many.truncated
    assert len(once.stdout.encode()) <= 1 << 20
    assert len(many.stdout) <= 1 << 20
    assert many.stdout.startswith("0\n1\n2\n")
    assert (little.stdout, little.truncated) == ("little\n", False)
