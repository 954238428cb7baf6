"""What sandboxes elsewhere cost that an experiment has: noted by who rents them, and read by who records it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Meter:
    """The time of an experiment's sandboxes, and its price."""

    seconds: float = 0.0
    cost: float = 0.0  # US dollars, at least
    is_known: bool = True  # whether all prices are

    def add(self, seconds: float, price: float, *, is_known: bool = True) -> None:
        """So many seconds at US dollars a second."""
        self.seconds += seconds
        self.cost += seconds * price
        self.is_known = self.is_known and is_known


_CURRENT: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Notes what is rented within, also in tasks that begin there."""
    meter = Meter()
    token = _CURRENT.set(meter)
    try:
        yield meter
    finally:
        _CURRENT.reset(token)


def current() -> Meter | None:
    """Whose time it is; None where nobody records it."""
    return _CURRENT.get()
