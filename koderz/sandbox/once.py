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
        self._made: dict[bytes, T] = {}
        self._making: dict[bytes, asyncio.Task[T]] = {}

    async def __call__(self, key: bytes, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """A waiter that is cancelled doesn't take the result from the others."""
        if key in self._made:
            return self._made[key]
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(make())
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    async def cancel(self) -> None:
        """Calls off whatever is still being made."""
        unfinished = [*self._making.values()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    def _keep(self, key: bytes, done: asyncio.Task[T]) -> None:
        del self._making[key]
        if done.cancelled() or done.exception():
            return
        self._made[key] = done.result()
        if len(self._made) > REMEMBERED:
            del self._made[next(iter(self._made))]
