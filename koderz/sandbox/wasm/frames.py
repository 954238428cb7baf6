"""The protocol between koderz and a worker: frames of a JSON head and bytes, over a socket."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

HEADER = struct.Struct("<II")
CHUNK = 4 << 20  # bytes of a variable that go at once


def packed(head: Mapping[str, Any], data: bytes = b"") -> bytes:
    written = json.dumps(head).encode()
    return HEADER.pack(len(written), len(data)) + written + data


def frames(stream: BinaryIO) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The incoming frames, until the other side closes."""
    while len(sizes := stream.read(HEADER.size)) == HEADER.size:
        head, data = HEADER.unpack(sizes)
        written = stream.read(head)
        yield json.loads(written), stream.read(data)


def parts(text: str, size: int = CHUNK) -> Iterator[bytes]:
    """The text in pieces of valid UTF-8."""
    for start in range(0, len(text), size) or (0,):
        yield text[start : start + size].encode("utf-8", "backslashreplace")
