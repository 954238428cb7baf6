"""Files that users name, read no further than they can sensibly go: a device or a pipe may be endless."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from tracker.errors import KoderzError

MB = 1 << 20


def read_all(file: Path | IO[bytes], limit: int, name: str = "") -> bytes:
    """All of a file, at most `limit` bytes. Raises KoderzError for more, and OSError as `open` does."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return read_all(opened, limit, str(file))
    data = file.read(limit + 1)
    if len(data) > limit:
        raise KoderzError(f"{name} holds more than {limit // MB:,} MB, so it isn't read")
    return data
