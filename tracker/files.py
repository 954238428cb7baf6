"""Files: read no further than they can sensibly go, since a device may be endless, and written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
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


def write_whole(path: Path, pieces: Iterable[bytes], *, durable: bool = True) -> None:
    """Writes a file under another name, then puts it in the place of `path`, so that it is whole or not there.

    With `durable` it is on the disk when this returns. Raises OSError where the disk refuses.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.writelines(pieces)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes durable which files a folder holds."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
