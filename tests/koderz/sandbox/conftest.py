"""Judging from tests: a list of programs in, their outcomes out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from koderz.sandbox import Job, JobResult
from koderz.sandbox.contained import ContainedSandbox
from koderz.sandbox.linux import isolation
from tests.conftest import PATIENCE

Judges = Callable[..., list[JobResult]]

LEVELS = {
    "with namespaces": (isolation.NAMESPACES, isolation.LANDLOCK, isolation.SECCOMP),
    "without namespaces": (isolation.LANDLOCK, isolation.SECCOMP),
}


@pytest.fixture(params=LEVELS)
def layers(request: pytest.FixtureRequest, holds: frozenset[str]) -> Sequence[str]:
    """One isolation after the other; those that this machine doesn't allow are skipped."""
    wanted = LEVELS[request.param]
    if missing := set(wanted) - holds:
        pytest.skip(f"this machine allows no {', '.join(sorted(missing))}")
    return wanted


@pytest.fixture(scope="module")
def judged(holds: frozenset[str]) -> Iterator[Judges]:
    """Judges jobs, in a sandbox that ends nobody who is only kept waiting, unless it is told to.

    Tests of a module share one for the same settings and environment; `alone`: none but this one.
    """
    if not isolation.contained(holds):
        pytest.skip("this machine contains nothing")
    shared: dict[object, ContainedSandbox] = {}

    def judge(*jobs: Job, alone: bool = False, **settings: Any) -> list[JobResult]:
        environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        key = repr(sorted({**environ, **settings}.items()))

        async def all_of_them() -> list[JobResult]:
            async with AsyncExitStack() as own:
                sandbox = shared.get(key)
                if alone or sandbox is None:
                    opened = ContainedSandbox(judges=2, **{"wall_extra": PATIENCE, **settings})
                    sandbox = await (own if alone else stack).enter_async_context(opened)
                if not alone:
                    shared[key] = sandbox
                return await asyncio.gather(*map(sandbox.judge, jobs))

        return runner.run(all_of_them())

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        yield judge
        runner.run(stack.aclose())
