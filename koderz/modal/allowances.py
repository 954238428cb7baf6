"""A run's cost cap, shared out among experiments that can't ask each other what they have spent."""

from __future__ import annotations

import asyncio


class Allowances:
    """Hands each experiment the most that it may spend, so that all of them together can't pass the cap.

    Amounts are US dollars. `window`: how many experiments the money that is left is shared by at a time.
    """

    def __init__(self, cap: float | None, spent: float, window: int) -> None:
        self._cap, self._spent, self._window = cap, spent, max(1, window)
        self._reserved = 0.0
        self._out = 0  # allowances
        self._returned = asyncio.Condition()

    async def take(self, least: float = 0.0) -> float | None:
        """An allowance of at least so much, if there is so much; None where the run has no cap."""
        if self._cap is None:
            return None
        async with self._returned:
            while True:
                left = max(0.0, self._cap - self._spent)
                share = min(max(left / self._window, least), left)
                if share <= left - self._reserved or not self._out:
                    break
                await self._returned.wait()
            self._reserved += share
            self._out += 1
            return share

    async def give_back(self, share: float | None, spent: float) -> None:
        """Ends an allowance, of which so much was spent."""
        async with self._returned:
            self._spent += spent
            if share is not None:
                self._out -= 1
                self._reserved = self._reserved - share if self._out else 0.0
            self._returned.notify_all()

    def is_all(self, share: float | None) -> bool:
        """Whether there was no more to be had than this allowance, so that asking again is of no use."""
        return share is None or self._cap is None or share >= (self._cap - self._spent) * 0.999
