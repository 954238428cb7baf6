"""The solver `serve-bench`: puts a server under load and judges the measurement."""

from __future__ import annotations

from typing import Protocol

from koderz.solvers.definition import asks_nothing, solver
from koderz.solvers.handles import JudgeHandle
from koderz.types import Task, Verdict


class LoadHandle(Protocol):
    """A load on a server."""

    async def measure(self) -> str:
        """The measurement as JSON."""
        ...


@solver(asks=False, roles=(), estimate=asks_nothing)
async def serve_bench(task: Task, judge: JudgeHandle, evaluator: LoadHandle) -> Verdict:
    """Measures the load and has the measurement judged."""
    return await judge(task, await evaluator.measure())
