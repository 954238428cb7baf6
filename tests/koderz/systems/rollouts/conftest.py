"""A repository whose add() is wrong, and what a diff against it is graded."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from koderz.errors import Unreachable
from koderz.sandbox.scratch import scratch
from koderz.systems.rollouts.environments.trees import prepared
from koderz.systems.rollouts.grading import Graded, grade_in
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.workspaces import git
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.rollouts.grading.test_grading import TASK, Grading


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as found:
        yield found


@pytest.fixture(scope="module")
def local(runner: asyncio.Runner) -> Iterator[Local]:
    """As a run has it: scripts are forked from an interpreter that has pytest loaded."""
    found = Local()
    try:
        runner.run(found.__aenter__())
    except Unreachable as error:
        pytest.skip(str(error))
    yield found
    runner.run(found.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def store(runner: asyncio.Runner, local: Local) -> Iterator[git.Store]:
    with scratch() as folder:
        yield runner.run(prepared(TASK, folder / "store", local))


@pytest.fixture
def graded(runner: asyncio.Runner, local: Local, store: git.Store, tmp_path: Path) -> Grading:
    def run(files: dict[str, str], task: Rollout = TASK, backend: Local = local) -> Graded:
        async def in_loop() -> Graded:
            checkout = tmp_path / "checkout"
            await store.checkout(checkout)
            for path, text in files.items():
                git.write(checkout, path, text.encode())
            diff = await store.diff(checkout, 1 << 20)
            shutil.rmtree(checkout)
            return await grade_in(task, Work(diff), store, backend)

        return runner.run(in_loop())

    return run
