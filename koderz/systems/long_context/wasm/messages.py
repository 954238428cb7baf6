"""The protocol between koderz, a worker of sessions and an interpreter: a JSON head and bytes in a frame, and calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from koderz.sandbox.frames import frame

MESSAGE = b"m"  # the kind of frame that one is

Call = Callable[[str, str], str]
"""A function of the host that a guest calls with a name and a text, and that returns a text."""


class StoppedError(Exception):
    """The cell was stopped from outside, and its instance has ended."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why  # deadline, crash, or cut where it was called off


def packed(head: Mapping[str, Any], data: bytes = b"") -> bytes:
    """A message as a frame."""
    return frame(MESSAGE, json.dumps(head).encode() + b"\n" + data)


def unpacked(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Head and bytes of a message. ValueError for a payload that has none."""
    head, _, data = payload.partition(b"\n")
    return json.loads(head), data
