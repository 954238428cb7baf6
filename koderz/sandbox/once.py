"""The same thing asked for many times is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

REMEMBERED = 4096  # results; the same program comes up again among the samples of a task, not much later


class Once(Generic[T]):
    """Results by key: one that is being made is waited for, one of the latest is remembered. Failures aren't."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, asyncio.Task[T]] = {}

    async def __call__(self, key: bytes, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """A waiter that is cancelled doesn't take the result from the others."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(make())
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    async def cancel(self) -> None:
        """Calls off whatever is still being made."""
        unfinished = [task for task in self._tasks.values() if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    def _keep(self, key: bytes, done: asyncio.Task[T]) -> None:
        if done.cancelled() or done.exception():
            self._tasks.pop(key, None)
        elif len(self._tasks) > REMEMBERED:
            del self._tasks[next(key for key, task in self._tasks.items() if task.done())]
