"""Unpacks archives of strangers: into one folder, without links, and no more than is allowed."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from koderz.errors import KoderzError
from koderz_tracker.files import MB

_MOST_FILES = 100_000
_PIECE = 1 << 20


def unpack(archive: Path, target: Path, *, max_size: int) -> None:
    """Unpacks a .zip or a .tar, compressed or not, into a folder.

    Raises KoderzError for anything that is no plain file or folder, a path that leaves the folder, more than 100,000
    files, or more than `max_size` bytes.
    """
    left = _Limit(archive, max_size)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for member in zipped.infolist():
                    kind = stat.S_IFMT(member.external_attr >> 16)
                    is_plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
                    place = left.place(member.filename, target, is_plain=is_plain)
                    if not member.is_dir():
                        with zipped.open(member) as file:
                            left.write(file, place)
        else:
            with tarfile.open(archive) as tarred:
                for entry in tarred:
                    place = left.place(entry.name, target, is_plain=entry.isreg() or entry.isdir())
                    if entry.isreg() and (content := tarred.extractfile(entry)):
                        with content:
                            left.write(content, place)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise KoderzError(f"{archive} can't be unpacked ({error}); give a .zip or .tar.gz of a run") from None


class _Limit:
    """The bytes and files that an archive may still unpack."""

    def __init__(self, archive: Path, max_size: int) -> None:
        self._archive, self._bytes, self._files, self._most = archive, max_size, _MOST_FILES, max_size

    def place(self, name: str, target: Path, *, is_plain: bool) -> Path:
        """Where a member goes, whose folder is made."""
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name:
            raise KoderzError(f"{self._archive}: its member {name!r:.200} would be written outside of the folder")
        if not is_plain:
            raise KoderzError(f"{self._archive}: its member {name!r:.200} is a link or a device; runs have none")
        self._files -= 1
        if self._files < 0:
            raise KoderzError(f"{self._archive} holds more than {_MOST_FILES:,} files")
        path = target / pure
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, source: IO[bytes], path: Path) -> None:
        with path.open("xb") as file:
            while data := source.read(_PIECE):
                self._bytes -= len(data)
                if self._bytes < 0:
                    raise KoderzError(f"{self._archive} unpacks to more than {self._most // MB:,} MB; see --max-size")
                file.write(data)
