"""What is on record for one experiment, handed out as it was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from koderz.errors import Fault
from tracker.records import Attempt, Call, Once, Record

GRACE = 1.0  # seconds in which a replay must ask for what is recorded next
_SETTLE = 10  # turns of the event loop in which a solver acts on one recorded result before it gets the next


class Divergence(Fault):
    """The solver went another way than it did when its calls were recorded."""


class Tape:
    """What is on record for one experiment, handed out in recorded order.

    A request for something recorded waits for its turn; one for something new waits until all that is
    recorded was used. When nobody asks for what comes next within GRACE seconds although somebody
    waits, the replay has diverged.
    """

    def __init__(self, recorded: Sequence[Record], *, accept: bool) -> None:
        self.diverged = False
        self._accept = accept
        self._unused = _by_key(recorded)
        self._requested: dict[str, asyncio.Future[Record | None]] = {}
        self._live: list[asyncio.Future[Record | None]] = []
        self._request = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    async def take(self, key: str) -> Record | None:
        """The recorded result of a request; None where it has to be made live. Raises Divergence."""
        if not self._unused:
            return None
        future: asyncio.Future[Record | None] = asyncio.get_running_loop().create_future()
        if key in self._unused:
            self._requested[key] = future
        else:
            self._live.append(future)
        self._request.set()
        self._pump = self._pump or asyncio.create_task(self._hand_out())
        return await future

    def close(self) -> None:
        if self._pump:
            self._pump.cancel()

    async def _hand_out(self) -> None:
        while self._unused:
            for _ in range(_SETTLE):
                await asyncio.sleep(0)
            future = self._requested.pop(self._next(), None)
            if future:
                record = self._unused.pop(self._next())
                if not future.done():
                    future.set_result(record)
            elif not await self._another_request():
                self._diverge()
                break
        for future in self._live:
            if not future.done():
                future.set_result(None)
        self._pump = None

    def _next(self) -> str:
        return next(iter(self._unused))

    async def _another_request(self) -> bool:
        """Waits for one. False: nothing came in GRACE seconds, and somebody waits who can't go on."""
        self._request.clear()
        while self._next() not in self._requested:
            try:
                async with asyncio.timeout(GRACE):
                    await self._request.wait()
            except TimeoutError:
                for _ in range(_SETTLE):  # the solver's own wait may have ended in the same turn
                    await asyncio.sleep(0)
                if self._request.is_set():
                    return True
                if any(not future.done() for future in [*self._requested.values(), *self._live]):
                    return False
            else:
                return True
        return True

    def _diverge(self) -> None:
        """Sets everybody free: with what is recorded and live, or with a fault."""
        self.diverged = True
        waiting = [(self._unused.get(key), future) for key, future in self._requested.items()]
        waiting += [(None, future) for future in self._live]
        left = len(self._unused)
        self._unused, self._requested, self._live = {}, {}, []
        for record, future in waiting:
            if future.done():
                continue
            if self._accept:
                future.set_result(record)
            else:
                future.set_exception(
                    Divergence(
                        f"the solver went another way than before, with {left} recorded results unused; "
                        "--accept-divergence lets it go on"
                    )
                )


def _by_key(recorded: Sequence[Record]) -> dict[str, Record]:
    """Results by key, in recorded order; a rescored attempt takes the place of the one before it."""
    return {record.key: record for record in recorded if isinstance(record, Call | Attempt | Once) and record.key}
