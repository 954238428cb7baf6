"""A pool of each kind, and what is done in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koderz.sandbox.wasm.cells import Kind
from koderz.sandbox.wasm.pool import Pool

Doing = Callable[[Pool], Awaitable[Any]]
Done = Callable[[Doing], Any]


KINDS = ["wasm", "native"]
NATIVE_SLOW = ["wasm", pytest.param("native", marks=pytest.mark.slow)]  # a process each takes its time


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, holds: frozenset[str]) -> Kind:
    found: Kind = request.param
    if found == "native" and not {"landlock", "seccomp"} <= holds:
        pytest.skip("this machine doesn't contain native sessions")
    return found


@pytest.fixture
def within(kind: Kind) -> Done:
    """Does something in a pool of two workers."""

    async def done(doing: Doing) -> Any:
        async with Pool(kind, 2) as pool:
            return await doing(pool)

    return lambda doing: asyncio.run(done(doing))
