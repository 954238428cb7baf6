"""The one framing of bytes between koderz and what it contains."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

from koderz.sandbox import frames
from koderz.sandbox.frames import HEADER, OversizeError, frame, incoming, take

SENT = [(b"a", 0, b""), (b"b", 7, b"\0" * 1000), (b"c", frames.LONGEST, b"c")]


@pytest.mark.parametrize("size", [1, 5, 400, 1 << 16])
def test_frames_come_whole_and_in_order_however_bytes_are_cut(size: int) -> None:
    stream = io.BytesIO(b"".join(frame(kind, payload, number) for kind, number, payload in SENT))
    assert [*incoming(lambda _: stream.read(size))] == SENT


def test_frames_stay_in_their_buffer_until_they_are_whole() -> None:
    whole = frame(b"a", b"payload", 3)
    buffer = bytearray(whole[:-1])
    assert take(buffer) is None
    buffer += whole[-1:] + b"b"
    assert take(buffer) == (b"a", 3, b"payload")
    assert buffer == b"b"


def test_frame_longer_than_its_reader_takes_is_refused_by_its_header() -> None:
    with pytest.raises(OversizeError, match="101 bytes"):
        take(bytearray(HEADER.pack(b"a", 0, 101)), 100)
    assert take(bytearray(HEADER.pack(b"a", 0, 100)), 100) is None


def test_frames_need_no_newer_python_than_far_ends_have() -> None:
    """Images of workspaces may have Python 3.8."""
    tree = ast.parse(Path(frames.__file__).read_text(), feature_version=(3, 8))
    loaded = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert loaded == {"struct"}
