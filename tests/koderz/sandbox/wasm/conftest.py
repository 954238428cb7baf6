"""A pool of each kind, and what is done in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from koderz.sandbox.wasm.cells import Kind
from koderz.sandbox.wasm.session import Pool

Doing = Callable[[Pool], Awaitable[Any]]
Done = Callable[[Doing], Any]


KINDS = ["wasm", "native"]
NATIVE_SLOW = ["wasm", pytest.param("native", marks=pytest.mark.slow)]  # a process each takes its time


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, holds: frozenset[str]) -> Kind:
    found: Kind = request.param
    if found == "native" and not {"landlock", "seccomp"} <= holds:
        pytest.skip("this machine doesn't contain native sessions")
    return found


@pytest.fixture(scope="module")
def within(kind: Kind) -> Iterator[Done]:
    """Does something in a pool of two workers, which the tests of a module share. A secret is in its environment."""
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KODERZ_TEST_SECRET", "a key")
        pool = Pool(kind, 2)
        runner.run(pool.__aenter__())
        yield lambda doing: runner.run(_coroutine(doing(pool)))
        runner.run(pool.__aexit__(None, None, None))


async def _coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
