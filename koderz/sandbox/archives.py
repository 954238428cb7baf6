"""Archives of strangers: decompressed and read within limits, with one error for whatever is wrong."""

from __future__ import annotations

import contextlib
import importlib
import io
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, cast

from koderz.errors import KoderzError
from koderz_tracker.files import MB

_HEADERS = MB  # of one member of a tar: its names, attributes and maps of holes
_GLOBAL = 100  # headers for all members that follow
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError)
_ZSTD = b"\x28\xb5\x2f\xfd"

tarfile_with_filters = (
    tarfile if hasattr(tarfile, "data_filter") else importlib.import_module("backports.tarfile")
)
"""The module `tarfile` with its filters for extraction (PEP 706), which Python has from 3.11.4 on."""


class Member(tarfile.TarInfo):
    """A member of an archive, whose names, attributes and maps of holes fit into memory."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """Reads the headers of the next member, and nothing else. Raises ValueError for large ones."""
        archive: Any = tarfile
        stream = archive.fileobj
        archive.fileobj = Limited(stream, _HEADERS, f"headers of more than {_HEADERS // MB} MB")
        try:
            found = super().fromtarfile(tarfile)
        finally:
            archive.fileobj = stream
        for_all = tarfile.pax_headers
        if len(for_all) > _GLOBAL or sum(map(len, for_all.values())) > _HEADERS:
            raise ValueError("too many headers for all members")
        return found


class Limited(io.RawIOBase):
    """A stream of which so many bytes may be read."""

    def __init__(self, stream: Any, most: int, error: str) -> None:
        self._stream, self._left, self._error = stream, most, error

    def read(self, size: int = -1) -> bytes:
        """Raises ValueError where more is asked for."""
        if not 0 <= size <= self._left:
            raise ValueError(self._error)
        part: bytes = self._stream.read(size)
        self._left -= len(part)
        return part

    def tell(self) -> int:
        place: int = self._stream.tell()
        return place


def forget(archive: tarfile.TarFile) -> None:
    """An archive that is read from beginning to end and keeps no members in memory."""
    keeping: Any = archive
    keeping.members = []


@contextmanager
def damage(path: Path, what: str = "", remedy: str = "") -> Iterator[None]:
    """Turns what goes wrong in reading an archive into one KoderzError."""
    import lzma
    import zlib

    try:
        yield
    except (*_DAMAGE, zlib.error, lzma.LZMAError) as error:
        why = (
            (error.strerror if isinstance(error, OSError) else "")
            or str(error)
            or type(error).__name__
        )
        raise KoderzError(
            f"{path}{what} is damaged, or can't be read: {why.splitlines()[0][:200]}{remedy}"
        ) from None


@contextmanager
def decompressed(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """A stream of what is compressed by gzip, bzip2, xz or zstd, or isn't. Raises KoderzError where zstd is missing."""
    import bz2
    import gzip
    import lzma

    begin = raw.read(6)
    known = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", _ZSTD: "zstd"}
    how = next((name for magic, name in known.items() if begin.startswith(magic)), "")
    raw.seek(0)
    if how == "zstd":
        with _by_zstd(raw) as stream:
            yield stream
    elif how == "gzip":
        with gzip.GzipFile(fileobj=raw) as stream:
            yield cast("IO[bytes]", stream)
    elif how:
        with bz2.BZ2File(raw) if how == "bzip2" else lzma.LZMAFile(raw) as plain:
            yield cast("IO[bytes]", plain)
    else:
        yield raw


@contextmanager
def _by_zstd(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Decompressed output of the program zstd, since Python can't read its format before 3.14."""
    if (program := shutil.which("zstd")) is None:
        raise KoderzError(
            "a part is compressed by zstd: install the program zstd, or save it with gzip"
        )
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            [program, "-dcq"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            bufsize=1 << 16,
        )
        assert process.stdin
        assert process.stdout
        import threading

        feeding = threading.Thread(target=_feed, args=(raw, process.stdin), daemon=True)
        feeding.start()
        try:
            yield process.stdout
            if process.stdout.read(1) == b"" and process.wait():
                raise OSError(f"zstd: exit code {process.returncode}")
        finally:
            process.stdout.close()
            process.kill()
            process.wait()
            feeding.join()


def _feed(raw: IO[bytes], to: IO[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):
        shutil.copyfileobj(raw, to, 1 << 20)
    with contextlib.suppress(OSError):
        to.close()
