"""The queue of a judge: requests take turns, so that a large one doesn't starve the others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from koderz.errors import KoderzError

T = TypeVar("T")

LONG = 0.25  # seconds, after which work no longer counts against the lanes


class QueueFullError(KoderzError):
    """So much is waiting that nothing more is taken."""


class DeadlineError(Exception):
    """Work didn't begin in time."""


class Turn(Generic[T]):
    """A piece of work: its result, and when it arrived and began, by the event loop's clock."""

    def __init__(self, work: Callable[[], Awaitable[T]], now: float) -> None:
        self.work, self.arrived = work, now
        self.begun: float | None = None
        self.ended = 0.0
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None


class Turns(Generic[T]):
    """Runs work on a number of lanes, one piece of each request after the other.

    Work that takes longer than `LONG` leaves its lane to others and goes on beside them, up to `spare` pieces of it.
    """

    def __init__(self, *, lanes: int, spare: int, queue: int) -> None:
        self._lanes, self._spare, self.queue = lanes, spare, queue
        self._requests: deque[deque[Turn[T]]] = deque()
        self._brisk = self._long = 0
        self.waiting = 0  # pieces
        self._running: set[asyncio.Task[None]] = set()

    def take(self, works: Sequence[Callable[[], Awaitable[T]]], deadlines: Sequence[float | None]) -> list[Turn[T]]:
        """Takes a request's pieces of work. Raises QueueFullError, and takes none, while the queue is full."""
        if self.waiting >= self.queue:
            raise QueueFullError(f"{self.waiting:,} replies are waiting, which is as many as the queue takes")
        loop = asyncio.get_running_loop()
        turns = [Turn(work, loop.time()) for work in works]
        for turn, deadline in zip(turns, deadlines, strict=True):
            if deadline is not None:
                turn.timer = loop.call_later(max(deadline, 0.0), self._miss, turn)
        self.waiting += len(turns)
        if turns:
            self._requests.append(deque(turns))
            self._begin()
        return turns

    async def drain(self) -> None:
        """Returns once all that was taken has been done."""
        while self.waiting or self._running:
            await asyncio.wait([*self._running] or [asyncio.create_task(asyncio.sleep(0))])

    async def cancel(self) -> None:
        """Ends all work."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for turn in (turn for request in self._requests for turn in request):
            if turn.timer:
                turn.timer.cancel()
            turn.result.cancel()
        self._requests.clear()
        self.waiting = 0

    def _miss(self, turn: Turn[T]) -> None:
        if not turn.result.done():
            self.waiting -= 1  # where it stands it is passed over
            turn.result.set_exception(DeadlineError())

    def _begin(self) -> None:
        while self._brisk < self._lanes and self._requests:
            request = self._requests.popleft()
            turn = request.popleft()
            if request:
                self._requests.append(request)
            if turn.result.done():
                continue
            if turn.timer:
                turn.timer.cancel()
            self.waiting -= 1
            self._brisk += 1
            task = asyncio.create_task(self._run(turn))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, turn: Turn[T]) -> None:
        loop = asyncio.get_running_loop()
        turn.begun = loop.time()
        is_long = False

        def lengthen() -> None:
            nonlocal is_long
            if self._long < self._spare:
                is_long = True
                self._long, self._brisk = self._long + 1, self._brisk - 1
                self._begin()

        timer = loop.call_later(LONG, lengthen)
        try:
            found = await turn.work()
            turn.ended = loop.time()
            if not turn.result.done():
                turn.result.set_result(found)
        except asyncio.CancelledError:
            turn.result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - who waits for it is told
            turn.ended = loop.time()
            if not turn.result.done():
                turn.result.set_exception(error)
        finally:
            timer.cancel()
            if is_long:
                self._long -= 1
            else:
                self._brisk -= 1
            self._begin()
