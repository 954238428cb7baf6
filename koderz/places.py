"""How many experiments are at work at once: those that ask or make something, not those that are being judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Place:
    """The place of one experiment, had from its start and whenever it is in use.

    It is given up between two uses, so that someone else asks while this one is judged or written down.
    """

    def __init__(self, room: asyncio.Semaphore | None = None) -> None:
        """`room` has been acquired for it already; without one there is always room."""
        self._room = room or asyncio.Semaphore(0)
        self._had = True
        self._uses = 0
        self._door = asyncio.Lock()

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Waits for a place where it was given up. Uses may overlap, and lie within each other.

        One that fails gives nothing up: most likely the experiment ends with it, and before others go the same way.
        """
        self._uses += 1
        try:
            async with self._door:
                if not self._had:
                    await self._room.acquire()
                    self._had = True
            yield
        finally:
            self._uses -= 1
        self.give_up()

    def give_up(self) -> None:
        """Lets someone else have it, unless it is in use."""
        if self._had and not self._uses:
            self._had = False
            self._room.release()
