"""Failures in words that are safe to pass on, as memories and lessons tell them."""

from __future__ import annotations

import re

_TELLING = re.compile(
    r"^(?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|AttributeError|SyntaxError|IndentationError): .+",
    re.MULTILINE,
)
"""Messages that speak of the code alone: those of other errors may quote a hidden test."""


def how_it_failed(verdict: str, cause: str, said: str) -> str:
    """The verdict and its cause, with the error's message from what was said, where that can't quote a test."""
    told = f"{verdict} ({cause})" if cause else verdict
    message = _TELLING.search(said)
    return f"{told}: {message[0][:200]}" if message else told
