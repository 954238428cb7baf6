"""How many requests are in flight to one provider: as many as it bears.

Additive increase, multiplicative decrease, as TCP does it (Chiu and Jain 1989): a refusal for load cuts the
limit for every call, each success raises it a little, up to what the user allows. Calls wait in line, first
come first served; a wait that the server asks for holds the whole line.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koderz.models.faults import Retryable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_CUT = 0.7  # of the requests in flight, at a refusal
_REGAINED = 1 / 16  # of the ceiling, for each limit's worth of successes


@dataclass(frozen=True, slots=True)
class Throttle:
    """Where a limiter stands, for the progress line."""

    provider: str
    limit: int  # requests in flight allowed now
    ceiling: int  # and at most
    in_flight: int
    waiting: int  # calls in line or between two tries
    pause: float  # seconds until the server wants to hear of us again; 0 where it does


class Limiter:
    """Admits calls to one provider."""

    def __init__(
        self,
        ceiling: int,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ceiling = max(1, ceiling)
        self._limit = float(self._ceiling)
        self._sleep, self._now = sleep, now
        self._door = asyncio.Lock()  # only the head of the line watches for room and for the end of a pause
        self._room = asyncio.Event()
        self._in_flight = 0
        self._waiting = 0
        self._paused_until = 0.0
        self._cuts = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for its turn, and learns from how the call inside fares."""
        await self._enter()
        cuts = self._cuts
        try:
            yield
        except Retryable as problem:
            self._slow_down(problem, cuts)
            raise
        else:
            self._limit = min(self._ceiling, self._limit + max(1.0, self._ceiling * _REGAINED) / self._limit)
        finally:
            self._in_flight -= 1
            self._room.set()

    async def rest(self, seconds: float) -> None:
        """The wait of one call between two of its tries."""
        self._waiting += 1
        try:
            await self._sleep(seconds)
        finally:
            self._waiting -= 1

    def throttle(self, provider: str) -> Throttle:
        """Where it stands."""
        pause = max(0.0, self._paused_until - self._now())
        return Throttle(provider, int(self._limit), self._ceiling, self._in_flight, self._waiting, pause)

    async def _enter(self) -> None:
        self._waiting += 1
        try:
            async with self._door:
                while not self._open():
                    await self._change()
                self._in_flight += 1
        finally:
            self._waiting -= 1

    def _open(self) -> bool:
        return self._in_flight < int(self._limit) and self._paused_until <= self._now()

    async def _change(self) -> None:
        pause = self._paused_until - self._now()
        if pause > 0:
            await self._sleep(pause)
        else:
            self._room.clear()
            await self._room.wait()

    def _slow_down(self, problem: Retryable, cuts: int) -> None:
        if problem.retry_after:
            self._paused_until = max(self._paused_until, self._now() + problem.retry_after)
        # The calls that were under way at a cut were sent at the old limit: they don't cut again.
        if problem.throttled and cuts == self._cuts:
            self._limit = max(1.0, min(self._limit, self._in_flight) * _CUT)
            self._cuts += 1
