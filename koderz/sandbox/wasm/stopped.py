"""How a cell ends that doesn't come to its end."""

from __future__ import annotations

from collections.abc import Callable

Call = Callable[[str, str], str]
"""What a guest reaches: a name and a text, for a text."""


class StoppedError(Exception):
    """The cell was ended from outside, and its instance with it."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why  # deadline, crash, or cut where it was called off
