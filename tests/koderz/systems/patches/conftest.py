"""A small repository to be made faster, and where its code runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from koderz.errors import Unreachable
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.workspaces.local import Local

SLOW = "def total(n):\n    result = 0\n    for each in range(n):\n        result += each\n    return result\n"
FAST = "def total(n):\n    return n * (n - 1) // 2\n"
TESTS = "from sums import total\n\n\ndef test_total():\n    assert total(4) == 6\n"
WORKLOAD = (
    "def inputs(rng, i):\n    return 20000 + rng.randrange(1000)\n\n\n"
    "def call(x):\n    from sums import total\n\n    return total(x)\n"
)
FILES = {"sums.py": SLOW, "tests/test_sums.py": TESTS}


@pytest.fixture(scope="module")
def local() -> Local:
    async def entered() -> Local:
        async with Local() as local:
            return local

    try:
        return asyncio.run(entered())
    except Unreachable as error:
        pytest.skip(str(error))


@pytest.fixture
def task() -> PerfTask:
    from koderz.systems.patches.patches import diff_of
    from koderz.systems.patches.sources import commit_of

    return replace(
        PerfTask("sums", commit_of(FILES, "Baseline")),
        files=FILES,
        human_patch=diff_of(FILES, {**FILES, "sums.py": FAST}),
        workloads={"sums": WORKLOAD},
        tests=("tests/test_sums.py",),
    )
