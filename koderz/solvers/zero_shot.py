"""One reply, one verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koderz.solvers.handles import AskHandle, JudgeHandle
from koderz.types import Expected, Task, Verdict

REPLY_TOKENS = 400  # of a usual answer to a function-sized task


async def zero_shot(task: Task, ask: AskHandle, judge: JudgeHandle) -> Verdict:
    """What the model makes of the task without any feedback."""
    return await judge(task, await ask(task.messages))


def asks_once(prompt_tokens: float, _task_id: str, _parameters: Mapping[str, Any]) -> Sequence[Expected]:
    """One call of the model that answers."""
    return [Expected("main", (1, 1), (prompt_tokens, prompt_tokens), (REPLY_TOKENS, REPLY_TOKENS))]


zero_shot.roles = ()  # type: ignore[attr-defined]
zero_shot.estimate = asks_once  # type: ignore[attr-defined]
