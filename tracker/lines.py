"""The kind and the time of a journal line, which lines of unknown kinds have too."""

from __future__ import annotations

import msgspec
from msgspec import Struct

_PREFIX = b'{"kind":"'


class _Other(Struct):
    """The fields that a line of any kind has."""

    kind: str
    time: str


def kind_of(line: bytes) -> str:
    """The kind of a journal line; "" if it is no such line.

    As koderz writes lines, it is found without parsing the rest.
    """
    if line.startswith(_PREFIX):
        return line[len(_PREFIX) : line.find(b'"', len(_PREFIX))].decode("ascii", "replace")
    try:  # another program may have put blanks between, or its keys in another order
        return msgspec.json.decode(line, type=_Other).kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def time_of(line: bytes) -> str:
    """The time at which a line was written, for lines of unknown kinds too."""
    return msgspec.json.decode(line, type=_Other).time
