"""How many experiments are at work at once: those that ask or make something, not those that are being judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count


class PrioritySemaphore:
    """A number of slots. Experiments under way come before new ones, so that as few as can be are left half done."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: list[tuple[bool, int, asyncio.Future[None]]] = []  # a heap: those under way, then by their turn
        self._turns = count()

    async def enter(self, *, new: bool) -> None:
        """Waits for a slot."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (new, next(self._turns), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came, and is someone else's now
                self.leave()
            raise

    def leave(self) -> None:
        """Leaves a slot to whoever is next."""
        while self._waiting:
            _, _, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Slot:
    """The slot of one experiment, had from its start and whenever it is in use.

    It is given up between two uses, so that someone else asks while this one is judged or written down.
    """

    def __init__(self, semaphore: PrioritySemaphore | None = None) -> None:
        """`semaphore`: one that was entered for it; without one the slot is always free."""
        self._semaphore = semaphore or PrioritySemaphore(0)
        self._had = True
        self._uses = 0
        self._door = asyncio.Lock()

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Waits for a slot where it was given up. Uses may overlap, and lie within each other.

        One that fails gives nothing up: most likely the experiment ends with it, and before others go the same way.
        """
        self._uses += 1
        try:
            async with self._door:
                if not self._had:
                    await self._semaphore.enter(new=False)
                    self._had = True
            yield
        finally:
            self._uses -= 1
        self.give_up()

    def give_up(self) -> None:
        """Lets someone else have it, unless it is in use."""
        if self._had and not self._uses:
            self._had = False
            self._semaphore.leave()
