"""One reply, one verdict."""

from __future__ import annotations

from koderz.solvers.handles import AskHandle, JudgeHandle
from koderz.types import Task, Verdict


async def zero_shot(task: Task, ask: AskHandle, judge: JudgeHandle) -> Verdict:
    """What the model makes of the task without any feedback."""
    return await judge(task, await ask(task.messages))
