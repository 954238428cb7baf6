"""Judging from tests: a list of programs in, their outcomes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from koderz.sandbox import Job, Outcome
from koderz.sandbox.contained import ContainedSandbox
from koderz.sandbox.linux import isolation as rungs

Judges = Callable[..., list[Outcome]]

RUNGS = {
    "with namespaces": (rungs.NAMESPACES, rungs.LANDLOCK, rungs.SECCOMP),
    "without namespaces": (rungs.LANDLOCK, rungs.SECCOMP),
}


@pytest.fixture(params=RUNGS)
def layers(request: pytest.FixtureRequest, holds: frozenset[str]) -> Sequence[str]:
    """One rung after the other; those that this machine doesn't allow are skipped."""
    wanted = RUNGS[request.param]
    if missing := set(wanted) - holds:
        pytest.skip(f"this machine allows no {', '.join(sorted(missing))}")
    return wanted


@pytest.fixture(scope="session")
def judged(holds: frozenset[str]) -> Judges:
    """Judges jobs in a sandbox opened for them."""
    if not rungs.contained(holds):
        pytest.skip("this machine contains nothing")

    def judge(*jobs: Job, **settings: Any) -> list[Outcome]:
        async def all_of_them() -> list[Outcome]:
            async with ContainedSandbox(judges=2, **settings) as sandbox:
                return await asyncio.gather(*map(sandbox.judge, jobs))

        return asyncio.run(all_of_them())

    return judge
