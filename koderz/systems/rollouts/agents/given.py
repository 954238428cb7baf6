"""Agents without a model: `oracle` applies the task's own solution, `nop` does nothing."""

from __future__ import annotations

from koderz.solvers.definition import asks_nothing, solver
from koderz.solvers.handles import JudgeHandle, WorkspaceHandle
from koderz.systems.rollouts.agents import judged
from koderz.types import Task, Verdict


@solver(roles=(), estimate=asks_nothing)
async def oracle(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """Applies the task's own solution, which has to pass."""

    async def work(_part: Task) -> str:
        await workspace.solve()
        return ""

    return await judged(task, judge, workspace, work)


@solver(roles=(), estimate=asks_nothing)
async def nop(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """Does nothing, which has to fail."""

    async def work(_part: Task) -> str:
        return ""

    return await judged(task, judge, workspace, work)
