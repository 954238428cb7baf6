"""Descriptions of failures that are safe to pass on in memories and lessons."""

from __future__ import annotations

import re

_TELLING = re.compile(
    r"^(?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|AttributeError|SyntaxError|IndentationError): .+",
    re.MULTILINE,
)
"""Errors whose messages are about the code alone; the messages of other errors may quote a hidden test."""


def how_it_failed(verdict: str, cause: str, said: str) -> str:
    """A verdict and its cause, with the error's message from `said` if that message can't quote a test."""
    told = f"{verdict} ({cause})" if cause else verdict
    message = _TELLING.search(said)
    return f"{told}: {message[0][:200]}" if message else told
