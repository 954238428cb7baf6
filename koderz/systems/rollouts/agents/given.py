"""Agents without a model: the task's own solution, and nothing at all."""

from __future__ import annotations

from koderz.solvers.definition import asks_nothing, solver
from koderz.solvers.handles import JudgeHandle, WorkspaceHandle
from koderz.systems.rollouts.agents import graded
from koderz.types import Task, Verdict


@solver(roles=(), estimate=asks_nothing)
async def oracle(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """What the task's own solution comes to, which has to pass."""
    await workspace.solve()
    return await graded(task, judge, workspace)


@solver(roles=(), estimate=asks_nothing)
async def nop(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """What doing nothing comes to, which has to fail."""
    return await graded(task, judge, workspace)
