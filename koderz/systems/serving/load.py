"""A load: requests sent at their due times, with the delays of this client itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from koderz.connections import httpx
from koderz.errors import Fault
from koderz.systems.serving.client import Target, Timing, connected, timed
from koderz.systems.serving.prompts import Prompt

_LOOK = 0.005  # seconds between two looks at how late the event loop is
_POLL = 1.0  # seconds between two requests to a server that isn't ready


@dataclass(frozen=True, slots=True)
class Load:
    """The schedule of requests."""

    request_rate: float = float("inf")  # a second
    burstiness: float = 1.0
    max_concurrency: int | None = None
    num_warmups: int = 0
    ready_check: float = 0.0  # seconds
    seed: int = 0

    def due(self, count: int) -> list[float]:
        """The time at which each request is sent, in seconds after the load begins.

        The gaps are gamma-distributed, rescaled so that the last is due at count / rate, as vLLM has it.
        """
        if self.request_rate == float("inf"):
            return [0.0] * count
        if self.burstiness == float("inf"):
            return [number / self.request_rate for number in range(1, count + 1)]
        rng = random.Random(f"arrivals {self.seed}")  # noqa: S311 repeatable on purpose
        scale = 1 / (self.request_rate * self.burstiness)
        times = [*accumulate(rng.gammavariate(self.burstiness, scale) for _ in range(count))]
        return [each * (count / self.request_rate) / times[-1] for each in times]


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a load."""

    timings: Sequence[Timing]
    lags: Sequence[float]  # how late the event loop was whenever it was looked at, seconds

    def record(self, about: Mapping[str, Any], count: Callable[[str], int] | None) -> dict[str, Any]:
        """The record of the load, times to the microsecond. `count`: a tokenizer, if the server counts no tokens."""
        by = "usage"
        for timing in self.timings:
            if not timing.error and not timing.output_tokens:
                by = "tokenizer" if count else "chunks"
                timing.output_tokens = count(timing.text) if count else len(timing.itls) + 1
        lags = sorted(self.lags)
        return {
            "about": about,
            "client_lag_p99_ms": round(1000 * lags[int(0.99 * (len(lags) - 1))], 6) if lags else 0.0,
            "output_tokens_by": by,
            "requests": [{name: _rounded(value) for name, value in asdict(each).items()} for each in self.timings],
        }


async def measured(target: Target, prompts: Sequence[Prompt], load: Load) -> Measured:
    """Sends each prompt once, at its due time, whether or not others are done. Nothing is retried.

    Raises Fault where the server isn't ready in time, if that is to be looked at.
    """
    async with connected(target) as client:
        if load.ready_check:
            await _until_ready(client, target, prompts[0], load.ready_check)
        places = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else nullcontext()
        begun = time.perf_counter()

        async def one(prompt: Prompt) -> Timing:
            waiting = time.perf_counter()
            async with places:
                queued = time.perf_counter() - waiting
                timing = await timed(client, target, prompt, begun)
            timing.queued = queued
            return timing

        await asyncio.gather(*(one(prompts[0]) for _ in range(load.num_warmups)))
        lags: list[float] = []
        looking = asyncio.create_task(_look(lags))
        begun = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = []
                for prompt, due in zip(prompts, load.due(len(prompts)), strict=True):
                    if (wait := begun + due - time.perf_counter()) > 0:
                        await asyncio.sleep(wait)
                    tasks.append(group.create_task(one(prompt)))
        finally:
            looking.cancel()
        return Measured([task.result() for task in tasks], lags)


async def _look(lags: list[float]) -> None:
    """Notes how late the event loop wakes a sleeping task."""
    while True:
        due = time.perf_counter() + _LOOK
        await asyncio.sleep(_LOOK)
        lags.append(max(0.0, time.perf_counter() - due))


async def _until_ready(client: httpx.AsyncClient, target: Target, prompt: Prompt, seconds: float) -> None:
    begun = time.perf_counter()
    while (timing := await timed(client, target, prompt, begun)).error:
        if time.perf_counter() - begun > seconds:
            raise Fault(f"{target.address} isn't ready after {seconds:g} seconds: {timing.error}", cause="unreachable")
        await asyncio.sleep(min(_POLL, seconds))


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [round(each, 6) for each in value]
    return round(value, 6) if isinstance(value, float) else value
