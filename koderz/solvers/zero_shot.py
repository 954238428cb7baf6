"""The solver `zero-shot`: one reply, one verdict."""

from __future__ import annotations

from koderz.solvers.definition import asks_once, solver
from koderz.solvers.handles import AskHandle, JudgeHandle
from koderz.types import Task, Verdict


@solver(roles=(), estimate=asks_once)
async def zero_shot(task: Task, ask: AskHandle, judge: JudgeHandle) -> Verdict:
    """Asks the model once and has the reply judged."""
    return await judge(task, await ask(task.messages))
