"""Checks of tasks: their own solution passes, and doing nothing doesn't."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koderz.errors import Fault
from koderz.sandbox.workspace.folders import scratch
from koderz.sandbox.workspace.local import Local
from koderz.systems.rollouts.formats import load_task
from koderz.systems.rollouts.grading import Graded, grade
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.tasks import Rollout
from koderz.systems.rollouts.workspaces import Stores, Workspace


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a task."""

    id: str
    wrong: str = ""  # why it can't be used
    warning: str = ""


async def check_tasks(folders: Sequence[Path], *, times: int = 1) -> list[Checked]:
    """Checks each task `times` times. Raises KoderzError for a folder without a task, Unreachable without a sandbox."""
    tasks = [load_task(folder) for folder in folders]
    async with Local() as local:
        stores = Stores({"": local})
        return [await _checked(task, stores, times) for task in tasks]


async def _checked(task: Rollout, stores: Stores, times: int) -> Checked:
    warning = ""
    for _ in range(times):
        try:
            solved, left = await _graded(task, stores, solve=True), await _graded(task, stores, solve=False)
        except Fault as fault:
            return Checked(task.id, str(fault))
        if not solved.scored.success or solved.scored.score_of_graded != 1:
            return Checked(task.id, f"its own solution doesn't pass: {solved.cause or 'its score is below 1'}")
        if left.scored.success:
            return Checked(task.id, "doing nothing passes")
        if left.scored.total_score > 0:
            warning = f"doing nothing scores {left.scored.total_score:.2f}"
    return Checked(task.id, "", warning)


async def _graded(task: Rollout, stores: Stores, *, solve: bool) -> Graded:
    with scratch() as place:
        workspace = Workspace(task, stores, place, _at_once, RolloutsOptions())
        if solve:
            await workspace.solve()
        diff = str((await workspace.diff())["diff"])
    return await grade(task, diff, await stores.of(task), stores.backend_of(task))


async def _at_once(_name: str, make: Any, **_: object) -> Any:
    """`once` where nothing is recorded."""
    return await make()
