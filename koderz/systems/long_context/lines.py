"""Lines of JSON that may be long: located once, read again when needed, never kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from koderz.errors import Fault
from koderz.suites.dataset import Row, lines_of, opened, row_of_line
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
        with opened(self.path, partial(Fault, cause="data")) as file:
            file.seek(self.start)
            data = file.read(self.size)
        if _digest(data) != self.digest:
            raise Fault(f"{self.path}, line {self.number} has changed since the run began; put it back", cause="data")
        return data

    def row(self) -> Row:
        """The line's fields. Raises KoderzError, which names the line, if it is no JSON object."""
        return row_of_line(self.read(), self.path, self.number)


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
    with opened(path) as file:
        start = 0
        for number, data in lines_of(file, path):
            if data.strip():
                yield Line(path, number, start, len(data), _digest(data))
            start += len(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
