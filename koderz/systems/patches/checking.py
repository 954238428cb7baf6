"""Checks of tasks: base works, is as fast as itself, and the human's answer is faster."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from koderz.errors import Fault, KoderzError
from koderz.sandbox.calibration import Exclusive, open_exclusive
from koderz.sandbox.scratch import scratch
from koderz.settings.schema import Settings
from koderz.suites.suite import RunContext
from koderz.systems.patches.measuring.verdicts import STRAY
from koderz.systems.patches.suite import PerformanceSuite
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.patches.trees import Trees
from koderz.systems.workspaces.git import require_git
from koderz.systems.workspaces.opening import open_timed
from koderz.types import Task


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a task."""

    id: str
    wrong: str  # why it can't be measured; empty: it can
    told: str = ""  # a key of the JSON of `koderz perf check`


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """A recorder that records nothing."""

    experiment_id: str

    async def once(self, _name: str, make: Callable[[], Any]) -> Any:
        """Calls the function and returns its value."""
        found = make()
        return await found if asyncio.iscoroutine(found) else found

    def can_make(self, _name: str) -> bool:
        """Allows everything."""
        return True


async def check_tasks(
    suite: PerformanceSuite,
    wanted: Sequence[str],
    settings: Settings,
    notice: Callable[[str], None],
    tell: Callable[[Checked], object] | None = None,
) -> list[Checked]:
    """Measures the human arm of each task, given by id, with these settings; calls `tell` with each result.

    Raises KoderzError where git is missing or nothing is timed there, Unreachable where nothing is contained or an
    image is missing.
    """
    require_git()
    open_timed(settings)
    found = []
    refused = {task: _refusal(suite, task, settings) for task in wanted}
    fit = tuple(task for task, why in refused.items() if not why)
    async with AsyncExitStack() as stack:
        exclusive = stack.enter_context(open_exclusive(notice))
        opened = suite.open_run(RunContext(replace(settings, problems=fit), os.environ))
        trees = await stack.enter_async_context(opened) if fit else None
        for task in suite.tasks:
            if task.id not in refused:
                continue
            why = refused[task.id]
            checked = (
                await _checked(suite, task, trees, exclusive)
                if trees and not why
                else Checked(task.id, why)
            )
            found.append(checked)
            if tell:
                tell(checked)
    return found


def _refusal(suite: PerformanceSuite, task: str, settings: Settings) -> str:
    try:
        return suite.refusal([task], settings)
    except KoderzError as error:
        return str(error)


async def _checked(
    suite: PerformanceSuite, task: Task[PerfTask], trees: Trees, exclusive: Exclusive
) -> Checked:
    try:
        with scratch() as folder:
            bench = suite.bench(task.payload, trees, folder, Unrecorded(task.id))
            verdict = suite.verdict_on(await bench.measured(exclusive, "human"))
    except Fault as fault:
        return Checked(task.id, str(fault))
    wrong = ""
    low, high = ((verdict.metrics or {}).get(f"speedup_aa_{end}", 1.0) for end in ("low", "high"))
    if not verdict.passed:
        wrong = f"the human's answer isn't surely faster: {verdict.feedback}"
    elif low > math.exp(STRAY) or high < math.exp(-STRAY):
        wrong = f"base is {low:.2f} to {high:.2f} times as fast as itself"
    return Checked(task.id, wrong, verdict.feedback)
