"""The corpus of BrowseComp-Plus, out of which questions are filled up with documents; it isn't encrypted."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from koderz.errors import Fault, KoderzError
from koderz.suites.long_context.browsecomp_plus.documents import Document
from koderz.suites.long_context.contexts import recipe_digest
from koderz.suites.long_context.lines import Line, file_lines
from koderz.suites.long_context.published import files_in

_COLUMNS = ("docid", "text", "url")


@dataclass(frozen=True)
class Corpus:
    """The documents {docid, text, url} of a file or folder, in parquet or JSON lines; where they lie is held alone."""

    path: Path

    @property
    def digest(self) -> str:
        """Changes with the files' names and sizes. Raises KoderzError where there are none."""
        try:
            return recipe_digest(*((file.name, file.stat().st_size) for file in files_in(self.path)))
        except OSError as error:
            raise KoderzError(f"--corpus {self.path} can't be read: {error.strerror}") from None

    def others(self, count: int, known: Collection[str], draw: random.Random) -> list[Document]:
        """So many drawn documents but for those known. Raises Fault where there are too few."""
        left = [docid for docid in self._places if docid not in known]
        if len(left) < count:
            raise Fault(f"--corpus {self.path} has {len(left):,} other documents, and {count:,} are wanted")
        chosen = draw.sample(left, count)
        found = {each.docid: each for each in self._read(chosen)}
        return [found[docid] for docid in chosen]

    @cached_property
    def _places(self) -> dict[str, Any]:
        """By docid: a line, or file, group and number in it."""
        found: dict[str, Any] = {}
        for file in files_in(self.path):
            found.update(_parquet_places(file) if file.suffix == ".parquet" else _line_places(file))
        return found

    def _read(self, docids: Collection[str]) -> Iterator[Document]:
        groups: dict[tuple[Path, int], list[int]] = {}
        for docid in docids:
            place = self._places[docid]
            if isinstance(place, Line):
                yield _document(place.row().fields)
            else:
                groups.setdefault(place[:2], []).append(place[2])
        for (file, group), numbers in groups.items():
            yield from map(_document, _rows(file, group, _COLUMNS, numbers))


def _line_places(path: Path) -> Iterator[tuple[str, Line]]:
    for line in file_lines(path):
        row = line.row()
        row.text("text")
        if row.fields.get("docid") is None:
            raise row.error(f"the column 'docid' is missing; there are {', '.join(row.fields)}")
        yield str(row.fields["docid"]), line


def _parquet_places(path: Path) -> Iterator[tuple[str, tuple[Path, int, int]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names, groups = file.schema_arrow.names, file.num_row_groups
        for name in ("docid", "text"):
            if name not in names:
                raise KoderzError(f"{path}: the column {name!r} is missing; there are {', '.join(names)}")
        for group in range(groups):
            for number, row in enumerate(_rows(path, group, ("docid",))):
                yield str(row["docid"]), (path, group, number)
    except (OSError, pa.ArrowException) as error:
        raise KoderzError(f"--corpus {path} can't be read: {error}") from None


def _rows(path: Path, group: int, columns: Collection[str], numbers: list[int] | None = None) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read_row_group(group, columns=[*columns])
            found: list[dict[str, Any]] = (table if numbers is None else table.take(numbers)).to_pylist()
            return found
    except (OSError, pa.ArrowException) as error:
        raise Fault(f"{path} can't be read: {error}") from None


def _document(row: Any) -> Document:
    return Document(str(row["docid"]), str(row["text"]), str(row.get("url") or ""))
