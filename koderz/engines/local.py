"""This machine: experiments side by side on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from koderz.replay import Identity


async def run_local(
    experiments: Iterator[Identity],
    perform: Callable[[Identity], Awaitable[None]],
    *,
    concurrency: int,
    stopping: asyncio.Event,
) -> None:
    """Performs the experiments, up to `concurrency` at once, beginning none once `stopping` is set.

    They are drawn one by one, so that it doesn't matter how many there are. What `perform` raises ends all.
    """

    async def lane() -> None:
        for experiment in experiments:
            if stopping.is_set():
                return
            await perform(experiment)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(lane())
