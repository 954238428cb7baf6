"""The end of a cell that was stopped from outside."""

from __future__ import annotations

from collections.abc import Callable

Call = Callable[[str, str], str]
"""A function of the host that a guest calls with a name and a text, and that returns a text."""


class StoppedError(Exception):
    """The cell was stopped from outside, and its instance has ended."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why  # deadline, crash, or cut where it was called off
