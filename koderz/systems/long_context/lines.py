"""Lines of JSON that may be long: located once, read again when needed, never kept in memory."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from koderz.errors import Fault, KoderzError
from koderz.suites.dataset import GZIP, Row
from koderz.systems.long_context.contexts import Reading


@dataclass(frozen=True, slots=True)
class Line:
    """The place of a line in a file."""

    path: Path
    number: int  # from 1
    start: int
    size: int  # bytes
    digest: str  # 32 hex digits

    def read(self) -> bytes:
        """The line's bytes. Raises Fault if they have changed since the run began."""
        try:
            with _opened(self.path) as file:
                file.seek(self.start)
                data = file.read(self.size)
        except (OSError, EOFError, zlib.error) as error:
            raise Fault(f"{self.path} can't be read: {error}", cause="data") from None
        if _digest(data) != self.digest:
            raise Fault(f"{self.path}, line {self.number} has changed since the run began; put it back", cause="data")
        return data

    def row(self) -> Row:
        """The line's fields. Raises KoderzError, which names the line, if it is no JSON object."""
        where = f"{self.path}, line {self.number}"
        try:
            value = json.loads(self.read())
        except (ValueError, RecursionError) as error:
            raise KoderzError(f"{where}: not JSON ({error})") from None
        if not isinstance(value, dict):
            raise KoderzError(f"{where}: not a JSON object")
        return Row(where, value)


@dataclass(frozen=True, slots=True)
class FileLine:
    """A recipe: a line, and how its fields are made into a text and answers."""

    line: Line
    of_row: Callable[[Mapping[str, Any]], tuple[Reading, Any]]

    @property
    def digest(self) -> str:
        return self.line.digest

    def make(self) -> tuple[Reading, Any]:
        return self.of_row(self.line.row().fields)


def file_lines(path: Path) -> Iterator[Line]:
    """The non-empty lines of a file, which may be gzipped. Raises KoderzError if it can't be read."""
    try:
        with _opened(path) as file:
            start = 0
            for number, data in enumerate(file, 1):
                if data.strip():
                    yield Line(path, number, start, len(data), _digest(data))
                start += len(data)
    except FileNotFoundError:
        raise KoderzError(f"there is no dataset {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise KoderzError(f"the dataset {path} can't be read: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    with path.open("rb") as plain:
        if not plain.peek(2).startswith(GZIP):
            yield plain
            return
        with gzip.open(plain) as file:
            yield file


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
