"""Deduplication: work that is requested several times is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# results; the same program comes up again among the samples of a task, not much later
REMEMBERED = 4096


class Once(Generic[T]):
    """Results by key: a running computation is shared, a recent result remembered. Failures are not."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, asyncio.Task[T]] = {}

    async def __call__(self, key: bytes, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result for a key. A waiter that is cancelled doesn't cancel the work for others."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(make())
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    async def cancel(self) -> None:
        """Cancels all running work."""
        unfinished = [task for task in self._tasks.values() if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    def _keep(self, key: bytes, done: asyncio.Task[T]) -> None:
        if done.cancelled() or done.exception():
            self._tasks.pop(key, None)
        elif len(self._tasks) > REMEMBERED:
            del self._tasks[next(key for key, task in self._tasks.items() if task.done())]
