"""The framing of all bytes between koderz and a contained process: a kind, a number, a length and a payload.

Both ends load this module, the far one by whatever python3 (3.8 or later) it has, so it needs nothing of koderz.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Frame = tuple[bytes, int, bytes]
    """A kind of one byte, the number of a candidate, connection or request, and the payload."""

HEADER = struct.Struct("<cII")
LONGEST = (1 << 32) - 1  # bytes of a payload
_READ = 1 << 16


class OversizeError(ValueError):
    """A frame is longer than its reader takes."""


def frame(kind: bytes, payload: bytes = b"", number: int = 0) -> bytes:
    """A frame as bytes; `kind` is one of them."""
    return HEADER.pack(kind, number, len(payload)) + payload


def take(buffer: bytearray, most: int = LONGEST) -> Frame | None:
    """The frame at the head of a buffer, which is taken out of it; None while it isn't whole.

    Raises OversizeError as soon as a header announces a payload of more than `most` bytes.
    """
    if len(buffer) < HEADER.size:
        return None
    kind, number, size = HEADER.unpack_from(buffer)
    if size > most:
        raise OversizeError(f"a frame of {size:,} bytes")
    end = HEADER.size + size
    if len(buffer) < end:
        return None
    payload = bytes(memoryview(buffer)[HEADER.size : end])
    del buffer[:end]
    return kind, number, payload


def incoming(read: Callable[[int], bytes], most: int = LONGEST) -> Iterator[Frame]:
    """The frames that come, until `read`, which is asked for so many bytes, has none. OversizeError as in `take`."""
    buffer = bytearray()
    while data := read(_READ):
        buffer += data
        while found := take(buffer, most):
            yield found
