"""Agents without a model: the task's own solution, nothing at all, and a script."""

from __future__ import annotations

from pathlib import Path

from koderz.errors import KoderzError
from koderz.solvers.agents import graded
from koderz.solvers.handles import JudgeHandle, WorkspaceHandle
from koderz.types import Task, Verdict


async def oracle(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """What the task's own solution comes to, which has to pass."""
    await workspace.solve()
    return await graded(task, judge, workspace)


async def nop(task: Task, judge: JudgeHandle, workspace: WorkspaceHandle) -> Verdict:
    """What doing nothing comes to, which has to fail."""
    return await graded(task, judge, workspace)


async def scripted(
    task: Task, judge: JudgeHandle, workspace: WorkspaceHandle, *, script: Path | str | None = None
) -> Verdict:
    """What a script of the user's comes to."""
    if script is None:
        raise KoderzError("the agent scripted needs --script FILE")
    ended = await workspace.script(script)
    causes = {"timeout": "agent_timeout", "memory": "memory", "processes": "memory"}
    return await graded(task, judge, workspace, ran_out=causes.get(ended["cause"], ""))


for _agent in (oracle, nop, scripted):
    _agent.roles = ()  # type: ignore[attr-defined]
    _agent.estimate = lambda *_: ()  # type: ignore[attr-defined]
