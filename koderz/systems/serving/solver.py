"""The solver `serve-bench`: puts a server under load and judges the measurement."""

from __future__ import annotations

from typing import Protocol

from koderz.solvers.handles import JudgeHandle
from koderz.types import Task, Verdict


class LoadHandle(Protocol):
    """A load on a server."""

    async def measure(self) -> str:
        """The measurement as JSON."""
        ...


async def serve_bench(task: Task, judge: JudgeHandle, evaluator: LoadHandle) -> Verdict:
    """Measures the load and has the measurement judged."""
    return await judge(task, await evaluator.measure())


serve_bench.asks = False  # type: ignore[attr-defined]
serve_bench.roles = ()  # type: ignore[attr-defined]
serve_bench.estimate = lambda *_: ()  # type: ignore[attr-defined]
