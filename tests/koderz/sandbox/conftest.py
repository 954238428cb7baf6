"""Judging from tests: a list of programs in, their outcomes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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


@pytest.fixture(scope="session")
def judged(holds: frozenset[str]) -> Judges:
    """Judges jobs in a sandbox opened for them: one that ends nobody who is only kept waiting, unless it is told to."""
    if not isolation.contained(holds):
        pytest.skip("this machine contains nothing")

    def judge(*jobs: Job, **settings: Any) -> list[JobResult]:
        async def all_of_them() -> list[JobResult]:
            async with ContainedSandbox(judges=2, **{"wall_extra": PATIENCE, **settings}) as sandbox:
                return await asyncio.gather(*map(sandbox.judge, jobs))

        return asyncio.run(all_of_them())

    return judge
