"""Whether tasks are fit to be measured: base works, is as fast as itself, and the human's answer is faster."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from koderz.errors import Fault
from koderz.sandbox.exclusive import Exclusive, open_exclusive
from koderz.sandbox.workspace.folders import scratch
from koderz.sandbox.workspace.git import require_git
from koderz.sandbox.workspace.local import Local
from koderz.suites.performance.judging import verdict_on
from koderz.suites.performance.measuring.bench import Bench
from koderz.suites.performance.measuring.verdicts import STRAY, Rule
from koderz.suites.performance.published import refused
from koderz.suites.performance.tasks import PerfTask
from koderz.suites.performance.trees import Trees


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of a task."""

    id: str
    wrong: str  # why it can't be measured; empty: it can
    told: str = ""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """`once` where nothing is recorded."""

    experiment_id: str

    async def once(self, _name: str, make: Callable[[], Any]) -> Any:
        """What is made."""
        found = make()
        return await found if asyncio.iscoroutine(found) else found

    def can_make(self, _name: str) -> bool:
        """Anything."""
        return True


async def check_tasks(
    tasks: Sequence[PerfTask],
    rule: Rule,
    seconds: float,
    notice: Callable[[str], None],
    tell: Callable[[Checked], object] | None = None,
) -> list[Checked]:
    """Each task's human arm measured; `tell` is told of each at once.

    Raises KoderzError where git is missing, Unreachable where nothing is contained.
    """
    require_git()
    found = []
    with open_exclusive(notice) as exclusive:
        async with Local() as local:
            trees = Trees(local)
            for task in tasks:
                with scratch() as folder:
                    bench = Bench(task, trees, folder, Unrecorded(task.id), rule, seconds=seconds)
                    checked = await _checked(task, bench, exclusive, rule)
                found.append(checked)
                if tell:
                    tell(checked)
    return found


async def _checked(task: PerfTask, bench: Bench, exclusive: Exclusive, rule: Rule) -> Checked:
    if wrong := refused([task]):
        return Checked(task.id, wrong)
    try:
        verdict = verdict_on(await bench.measured(exclusive, "human"), rule, "")
    except Fault as fault:
        return Checked(task.id, str(fault))
    low, high = ((verdict.metrics or {}).get(f"speedup_aa_{end}", 1.0) for end in ("low", "high"))
    if not verdict.passed:
        wrong = f"the human's answer isn't surely faster: {verdict.feedback}"
    elif low > math.exp(STRAY) or high < math.exp(-STRAY):
        wrong = f"base is {low:.2f} to {high:.2f} times as fast as itself"
    return Checked(task.id, wrong, verdict.feedback)
