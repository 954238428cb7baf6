"""A run of a stranger's in an archive, unpacked within limits."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from koderz.errors import KoderzError
from koderz.sandbox.archives import Limited, Member, damage, decompressed, forget
from koderz_tracker.files import MB

_DIRECTORY = 16 * MB  # of a zip
_MOST_FILES = 100_000  # of a run
_ALL_HEADERS = 256 * MB  # of its archive
_PIECE = 1 << 20


def unpack_run(archive: Path, target: Path, *, max_size: int) -> None:
    """Unpacks a .zip or a .tar, compressed or not, into a folder.

    Raises KoderzError, one line, for a damaged archive, anything that is no plain file or folder, a path that leaves
    the folder, more than 100,000 files, or more than `max_size` bytes.
    """
    room = _Room(archive, target, max_size)
    with damage(archive, remedy="; give a .zip or .tar.gz of a run"):
        members = (
            _zipped(archive)
            if zipfile.is_zipfile(archive)
            else _tarred(archive, max_size + _ALL_HEADERS)
        )
        for name, is_plain, content in members:
            place = room.place(name, is_plain=is_plain)
            if content:
                room.write(content, place)


Unpacking = Iterator[tuple[str, bool, IO[bytes] | None]]
"""The name of each member, whether it is a plain file or folder, and the content of a file."""


def _zipped(archive: Path) -> Unpacking:
    with _Zip(archive) as raw, zipfile.ZipFile(raw) as zipped:
        for entry in zipped.infolist():
            is_plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            if entry.is_dir():
                yield entry.filename, is_plain, None
            else:
                with zipped.open(entry) as file:
                    yield entry.filename, is_plain, file


def _tarred(archive: Path, most: int) -> Unpacking:
    with archive.open("rb") as raw, decompressed(raw) as stream:
        limited: Any = Limited(stream, most, "it unpacks to more than --max-size allows")
        with tarfile.open(fileobj=limited, mode="r|", tarinfo=Member) as tarred:
            for member in tarred:
                content = tarred.extractfile(member) if member.isreg() else None
                yield member.name, member.isreg() or member.isdir(), content
                forget(tarred)


class _Room:
    """The folder that an archive is unpacked into, and the bytes and files that it may still hold."""

    def __init__(self, archive: Path, target: Path, max_size: int) -> None:
        self._archive, self._target, self._most = archive, target, max_size
        self._bytes, self._files = max_size, _MOST_FILES

    def place(self, name: str, *, is_plain: bool) -> Path:
        """Where a member goes, whose folder is made."""
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name:
            raise KoderzError(
                f"{self._archive}: its member {name!r:.200} would be written outside of the folder"
            )
        if not name.isprintable():  # as bytes that aren't UTF-8 aren't
            raise KoderzError(
                f"{self._archive}: its member {name!r:.200} has a name that can't be printed; runs' can"
            )
        if not is_plain:
            raise KoderzError(
                f"{self._archive}: its member {name!r:.200} is a link or a device; runs have none"
            )
        self._files -= 1
        if self._files < 0:
            raise KoderzError(f"{self._archive} holds more than {_MOST_FILES:,} files")
        path = self._target / pure
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, source: IO[bytes], path: Path) -> None:
        """Writes a member, which may not be there yet."""
        with path.open("xb") as file:
            while data := source.read(_PIECE):
                self._bytes -= len(data)
                if self._bytes < 0:
                    raise KoderzError(
                        f"{self._archive} unpacks to more than {self._most // MB:,} MB; see --max-size"
                    )
                file.write(data)


class _Zip(io.FileIO):
    """A zip whose directory fits into memory; it is read at once, while members are read in pieces."""

    def read(self, size: int | None = -1) -> bytes:
        """Raises ValueError where more is asked for than a directory has."""
        if size is not None and size > _DIRECTORY:
            raise ValueError(f"a directory of more than {_DIRECTORY // MB} MB")
        return super().read(size) or b""
