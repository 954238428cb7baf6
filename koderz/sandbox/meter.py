"""The cost of an experiment's remote sandboxes: noted where they are rented, read where it is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Meter:
    """The time of an experiment's sandboxes, and their cost."""

    seconds: float = 0.0
    cost: float = 0.0  # US dollars, at least
    is_known: bool = True  # whether all prices are

    def add(self, seconds: float, price: float, *, is_known: bool = True) -> None:
        """Adds seconds at a price in US dollars a second."""
        self.seconds += seconds
        self.cost += seconds * price
        self.is_known = self.is_known and is_known


_CURRENT: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Notes all sandboxes rented in the block, also by tasks that begin there."""
    meter = Meter()
    token = _CURRENT.set(meter)
    try:
        yield meter
    finally:
        _CURRENT.reset(token)


def current() -> Meter | None:
    """The meter of the running experiment; None if nobody records the cost."""
    return _CURRENT.get()
