"""Files of logs, which strangers wrote: read within limits, with one KoderzError for whatever is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.archives import damage
from koderz_tracker.files import MB, open_own

_MOST = 512 * MB  # of one file, or of what is read of one archive
_LONGEST = 64 * MB  # a line, or an entry of an archive


def decoded(data: bytes, where: str) -> Any:
    """The JSON value of `data`. NaN and infinities, which Python's writers take for numbers, are None."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError, too
        raise KoderzError(f"{where} is damaged or no JSON: {str(error)[:200]}") from None


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises KoderzError for a link, a file above 512 MB, and what is no JSON."""
    with _opened(path) as file:
        return decoded(_bounded(file, _MOST, str(path)), str(path))


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON values of a file's lines. A last line that was cut off as it was written is left out."""
    with _opened(path) as file:
        number = 0
        while line := file.readline(_LONGEST + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > _LONGEST:
                raise KoderzError(f"{where} has more than {_LONGEST // MB} MB")
            if not line.strip():
                continue
            try:
                yield decoded(line, where)
            except KoderzError:
                if line.endswith(b"\n"):
                    raise


def zip_module() -> Any:
    """The module zipfile that knows zstd, as Python's does from 3.14 on."""
    if sys.version_info >= (3, 14):
        import zipfile
    else:
        from backports.zstd import zipfile
    return zipfile


def _zstd_error() -> type[Exception]:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdError
    else:
        from backports.zstd import ZstdError
    return ZstdError


class Zip:
    """A zip whose entries may be compressed by zstd, as inspect's are. No entry and no sum of them is too large."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._path, self._left = path, _MOST
        self._zip = zip_module().ZipFile(file)
        self.names = self._zip.namelist()

    def read(self, name: str) -> Any:
        """The JSON value of an entry; of two of one name, the last."""
        with self._zip.open(name) as entry:
            data = _bounded(entry, min(_LONGEST, self._left), f"{self._path}: {name}")
        self._left -= len(data)
        return decoded(data, f"{self._path}: {name}")


@contextmanager
def unzipped(path: Path) -> Iterator[Zip]:
    """A zip that is read. Raises KoderzError where it is damaged."""
    with _opened(path) as file, damage(path):
        try:
            yield Zip(file, path)
        except (zip_module().BadZipFile, _zstd_error()) as error:
            raise ValueError(str(error)) from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open_own(path) as file:
            yield file
    except OSError as error:
        raise KoderzError(f"{path} can't be read ({error.strerror})") from None


def _bounded(file: IO[bytes], most: int, where: str) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise KoderzError(f"{where} has more than {most // MB} MB")
    return data


def text(value: Any) -> str:
    """A value as text that can be printed and written: names may be numbers, and texts may hold lone surrogates."""
    if value is None:
        return ""
    found = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found.encode("utf-8", "replace").decode()


def number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else None


def count(value: Any) -> int | None:
    """A count, such as of tokens; None for anything else."""
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40
        else None
    )


def table(value: Any) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """A JSON array; an empty one for anything else."""
    return value if isinstance(value, list) else []
