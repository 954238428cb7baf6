"""Checks of tasks: their own solution passes, and doing nothing doesn't."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend
from koderz.systems.rollouts.grading import Graded, grade
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.terms import terms_of
from koderz.systems.rollouts.workspaces import Stores, Workspace, at_once


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a task."""

    id: str
    wrong: str = ""  # why it can't be used
    warning: str = ""
    is_prepared: bool = True  # whether its environment could be made
    is_decided: bool = True  # whether it is the task that is wrong, not the sandbox

    @property
    def status(self) -> str:
        """The task's state: `sound`, `unsound`, `unprepared`, or `unclear` if the sandbox can't tell."""
        if not self.is_decided:
            return "unclear"
        if not self.is_prepared:
            return "unprepared"
        return "unsound" if self.wrong else "sound"


async def check_tasks(
    tasks: Sequence[Rollout],
    backend: Backend,
    *,
    times: int = 1,
    jobs: int = 1,
    take: Callable[[Rollout, Checked], None] | None = None,
) -> list[Checked]:
    """Checks each task `times` times, `jobs` of them at once, and hands over each result as it comes.

    Raises Unreachable if the backend can't run here.
    """
    free = asyncio.Semaphore(jobs)

    async def checked(task: Rollout) -> Checked:
        async with free:
            found = await check(task, Stores({"": backend}), times)
            if take:
                take(task, found)
            return found

    async with backend:
        return await asyncio.gather(*map(checked, tasks))


async def check(task: Rollout, stores: Stores, times: int = 1) -> Checked:
    """Tries a task's own solution, and doing nothing, so many times."""
    warning, is_prepared = "", False
    for _ in range(times):
        try:
            await stores.of(task)
            is_prepared = True
            solved, left = await _graded(task, stores, solve=True), await _graded(task, stores, solve=False)
        except Unreachable:
            raise
        except Fault as fault:
            return Checked(task.id, str(fault), is_prepared=is_prepared, is_decided=fault.cause != "sandbox")
        except KoderzError as error:
            return Checked(task.id, str(error))
        if not solved.scored.success or solved.scored.score_of_graded != 1:
            return Checked(task.id, f"its own solution doesn't pass: {solved.cause or 'its score is below 1'}")
        if left.scored.success:
            return Checked(task.id, "doing nothing passes")
        if left.scored.total_score > 0:
            warning = f"doing nothing scores {left.scored.total_score:.2f}"
    return Checked(task.id, "", warning)


async def fails_own_solution(task: Rollout, backend: Backend) -> bool:
    """Whether a task's own solution fails its tests, in a backend that is entered. Raises Fault if none can tell."""
    return not (await _graded(task, Stores({"": backend}), solve=True)).scored.success


async def _graded(task: Rollout, stores: Stores, *, solve: bool) -> Graded:
    """The grading of a task's own solution, or of doing nothing; of a task with steps that of the first that fails."""
    with scratch() as place:
        workspace = Workspace(task, stores, place, at_once, RolloutsOptions())
        graded: Graded | None = None
        for stage in task.stages:
            if (begun := await workspace.begin(stage))["wrong"]:
                raise Fault(begun["wrong"], cause=begun["cause"])
            graded = await _part_graded(stage.task, workspace, stores, place, task, solve=solve)
            if not graded.scored.success:
                break
        return graded or await _part_graded(task, workspace, stores, place, task, solve=solve)


async def _part_graded(
    task: Rollout, workspace: Workspace, stores: Stores, place: Path, whole: Rollout, *, solve: bool
) -> Graded:
    if solve:
        await workspace.solve()
    diff = str((await workspace.diff())["diff"])
    collected = stores.artifacts_of(place)
    terms = await terms_of(task, stores, whole)
    return await grade(task, diff, await stores.of(task), stores.backend_of(task), place, collected, terms)
