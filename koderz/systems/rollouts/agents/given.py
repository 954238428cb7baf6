"""Agents without a model: `oracle` applies the task's own solution, `nop` does nothing."""

from __future__ import annotations

from koderz.solvers.definition import asks_nothing, solver
from koderz.solvers.handles import JudgeHandle, WorkspaceHandle
from koderz.systems.rollouts.agents import graded
from koderz.types import Task, Verdict


@solver(roles=(), estimate=asks_nothing)
async def oracle(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """Applies the task's own solution, which has to pass."""
    await workspace.solve()
    return await graded(task, judge, workspace)


@solver(roles=(), estimate=asks_nothing)
async def nop(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """Does nothing, which has to fail."""
    return await graded(task, judge, workspace)
