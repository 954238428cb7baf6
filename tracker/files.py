"""Reading files up to a limit and without following links, and writing them whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from koderz_tracker.errors import KoderzError

MB = 1 << 20


LINK = "is a link, and koderz follows none in folders of runs; put the file in its place"


def open_own(path: Path | str, names: int = 1) -> IO[bytes]:
    """Opens a regular file of a results folder for reading. Its last `names` parts may not be links.

    Whoever made the folder could have any file read by them. Raises OSError, as for a file that can't be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    # as text: for 10,000 runs, a Path each costs more than the reading
    above, parts = str(path), list[str]()
    for _ in range(names):
        above, part = os.path.split(above)
        parts.insert(0, part)
    try:
        within = os.open(above or ".", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            # Folder by folder from the last one that is trusted, so that none can become a link in between.
            for folder in filter(None, parts[:-1]):
                inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=within)
                os.close(within)
                within = inner
            opened = os.open(parts[-1], flags | os.O_NONBLOCK, dir_fd=within)  # a pipe would block
        finally:
            os.close(within)
    except OSError as error:
        # Systems report a link in several ways, so it is named here.
        for each in (Path(path), *Path(path).parents)[:names]:
            if each.is_symlink():
                raise OSError(errno.ELOOP, f"{each.name} {LINK}", str(path)) from None
        raise type(error)(error.errno, error.strerror, str(path)) from None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(opened, "rb")


def refuse_links(paths: Iterable[Path]) -> None:
    """Raises KoderzError for the first of these paths that is a link, through which a file elsewhere would be used."""
    for path in paths:
        if path.is_symlink():
            raise KoderzError(f"{path} {LINK}")


def refuse_linked_database(path: Path) -> Path:
    """The same path of an SQLite file. Raises KoderzError if it is a link, or a file that SQLite keeps beside it."""
    refuse_links(path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal"))
    return path


def read_all(file: Path | IO[bytes], limit: int, name: str = "") -> bytes:
    """The content of a file, at most `limit` bytes. Raises KoderzError if there is more, OSError as `open` does."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return read_all(opened, limit, str(file))
    data = file.read(limit + 1)
    if len(data) > limit:
        raise KoderzError(f"{name} holds more than {limit // MB:,} MB, so it isn't read")
    return data


@contextmanager
def whole_file(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces `path` when the block ends without an error.

    With `durable` it is on the disk then. Raises OSError where the disk refuses.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def write_whole(path: Path, pieces: Iterable[bytes], *, durable: bool = True) -> None:
    """Writes a file whole or not at all, see `whole_file`. Raises OSError if the disk refuses."""
    with whole_file(path, durable=durable) as file:
        file.writelines(pieces)


def before_resuming(error: OSError) -> str:
    """The advice to make room before a run is resumed, if the disk or a quota is full; else empty."""
    return "make room, then: " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Makes a temporary folder that is renamed to `target` when the block ends without an error.

    What is written into it has to be durable. Raises OSError where the disk refuses, or where `target` is there.
    """
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    draft.mkdir(parents=True)
    try:
        yield draft
        draft.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def links_in(folder: Path) -> list[Path]:
    """The symbolic links in a folder and its subfolders, relative to it. None of them is followed."""
    found = [
        Path(place, name)
        for place, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]
    return [path.relative_to(folder) for path in found if path.is_symlink()]


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file of a run, or as many as there are, in pieces of a megabyte."""
    with open_own(path) as file:
        while size > 0 and (data := file.read(min(size, MB))):
            yield data
            size -= len(data)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file of a run, 64 hex digits. Raises OSError, as `open_own` does."""
    digest = hashlib.sha256()
    for data in pieces(path, path.stat().st_size):
        digest.update(data)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes a folder's list of files durable."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
