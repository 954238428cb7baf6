"""The solver `serve-bench`: it has a server put under load, and judges how that went."""

from __future__ import annotations

from typing import Protocol

from koderz.solvers.definition import asks_nothing, solver
from koderz.solvers.handles import JudgeHandle
from koderz.types import Task, Verdict


class LoadHandle(Protocol):
    """A load on a server."""

    async def measure(self) -> str:
        """What was measured, as JSON."""
        ...


@solver(asks=False, roles=(), estimate=asks_nothing)
async def serve_bench(task: Task, judge: JudgeHandle, evaluator: LoadHandle) -> Verdict:
    """What the load comes to."""
    return await judge(task, await evaluator.measure())
