"""Rows of published data sets, in parquet or JSON lines: located without their texts, which are read when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any
from weakref import WeakValueDictionary

from koderz.errors import Fault, KoderzError
from koderz.suites.dataset import CLUSTER, Row, lines_of, opened, row_of_line
from koderz.suites.tables import opened_parquet
from koderz.systems.long_context.contexts import Reading, recipe_digest


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
            raise Fault(
                f"{self.path}, line {self.number} has changed since the run began; put it back",
                cause="data",
            )
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


Place = Line | tuple[int, int]
"""The place of a row: its line, or its group and number in it."""

Fields = Mapping[str, Any]
Filter = Callable[[Fields], bool]
Kind = type | UnionType
OfRow = Callable[[Fields, Fields], tuple[Reading, Any]]
"""Makes a text and its expected answer from a row's fields and its late fields."""

ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")

_BATCH = 64  # rows that are read at once
# what pyarrow calls a column of that type
_LIKE: Mapping[type, str] = {str: "string", list: "list"}
_NAMES: Mapping[Kind, str] = {
    str: "text",
    int: "a whole number",
    list: "a list",
    int | str: "text or a whole number",
}


@dataclass(frozen=True)
class Layout:
    """The columns of a file."""

    late: Mapping[str, type]  # the long ones, which are read when they are needed: str, or list
    wanted: Mapping[str, Kind]  # the others that there have to be
    optional: tuple[str, ...] = ()  # and those that there may be
    # the column by which rows are clustered; None: `cluster`, where it is there
    cluster: str | None = None
    # what rows with the same late columns have in common; without these, they share none
    window: tuple[str, ...] = ()

    @property
    def early(self) -> tuple[str, ...]:
        """The columns that are read beforehand, as far as there are any."""
        return tuple(dict.fromkeys((*self.wanted, *self.optional, self.cluster or CLUSTER)))

    def window_of(self, fields: Fields, place: Any) -> Any:
        """A key that differs between rows with different late columns."""
        is_known = self.window and fields.get(self.window[0]) is not None
        return tuple(str(fields.get(name)) for name in self.window) if is_known else place


class Late:
    """The late columns of a row, in memory while anyone uses them."""

    __slots__ = ("__weakref__", "fields")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields


@dataclass(frozen=True)
class Texts:
    """The late columns of a file's rows, stored once if rows share them."""

    path: Path
    columns: tuple[str, ...]
    held: WeakValueDictionary[Any, Late] = field(default_factory=WeakValueDictionary)

    def read(self, place: Any) -> Late:
        """The late columns of the row at a place. Raises Fault if there is none."""
        found = self.held.get(place)
        if found is None:
            (row,) = rows_at(self.path, [place], self.columns)
            found = Late({name: row[name] for name in self.columns})
            self.held[place] = found
        return found


@dataclass(frozen=True)
class PublishedRow:
    """A recipe: a row of a file."""

    texts: Texts
    place: Any  # of the first row with the same late columns
    fields: Fields
    digest: str
    of_row: OfRow
    size: int = 0  # bytes of its line, if it is one
    cluster: str = ""  # that it shares with others, as its column says

    def make(self) -> tuple[Reading, Any]:
        late = self.texts.read(self.place)
        made, answers = self.of_row(self.fields, late.fields)
        return replace(made, shared=late), answers


def files_in(path: Path) -> list[Path]:
    """The file, or all files of a folder. Raises KoderzError if it has none."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.rglob("*") if each.name.endswith(ENDINGS))
    if not files:
        raise KoderzError(f"there is no {', '.join(ENDINGS)} file in {path}")
    return files


def published(path: Path, layout: Layout, keep: Filter, of_row: OfRow) -> Iterator[PublishedRow]:
    """The rows of a file, or of all files of a folder. Raises KoderzError for another layout."""
    for file in files_in(path):
        texts, first = Texts(file, (*layout.late,)), dict[Any, Any]()
        for place, fields, digest in listed(file, layout):
            place_of_text = first.setdefault(layout.window_of(fields, place), place)
            if keep(fields):
                size = place.size if isinstance(place, Line) else 0
                where = (
                    f"line {place.number}"
                    if isinstance(place, Line)
                    else "group {}, row {}".format(*place)
                )
                cluster = Row(f"{file}, {where}", fields).cluster_by(layout.cluster)
                yield PublishedRow(texts, place_of_text, fields, digest, of_row, size, cluster)


def listed(path: Path, layout: Layout) -> Iterator[tuple[Place, Fields, str]]:
    """The rows of a file without their late columns: the place, the columns and the digest of each.

    Raises KoderzError, naming the row, for what isn't in this layout.
    """
    return (_of_parquet if path.suffix == ".parquet" else _of_lines)(path, layout)


def rows_at(path: Path, places: Collection[Place], columns: Collection[str]) -> list[Fields]:
    """Some rows of a file, in parquet read by group. Raises Fault if one is gone."""
    lines = [place.row().fields for place in places if isinstance(place, Line)]
    groups: dict[int, set[int]] = {}
    for group, number in (place for place in places if not isinstance(place, Line)):
        groups.setdefault(group, set()).add(number)
    return lines + [
        row for group, numbers in groups.items() for row in _rows_in(path, group, numbers, columns)
    ]


def _rows_in(
    path: Path, group: int, numbers: Collection[int], columns: Collection[str]
) -> list[Fields]:
    """The rows up to the last one wanted; a single row, maybe a long text, is read without its neighbours."""
    found: list[Fields] = []
    with opened_parquet(path, Fault) as file:
        if group < file.num_row_groups:
            start, size = 0, 1 if len(numbers) == 1 else _BATCH
            for batch in file.iter_batches(batch_size=size, row_groups=[group], columns=[*columns]):
                here = [n - start for n in sorted(numbers) if start <= n < start + len(batch)]
                found += [row for n in here for row in batch.slice(n, 1).to_pylist()]
                start += len(batch)
                if len(found) == len(numbers):
                    return found
    raise Fault(f"{path} has changed since the run began; put it back", cause="data")


def _of_lines(path: Path, layout: Layout) -> Iterator[tuple[Place, Fields, str]]:
    for line in file_lines(path):
        row = line.row()
        _require(row, {**layout.wanted, **layout.late})
        yield (
            line,
            {name: row.fields[name] for name in layout.early if name in row.fields},
            line.digest,
        )


def _of_parquet(path: Path, layout: Layout) -> Iterator[tuple[Place, Fields, str]]:
    with opened_parquet(path) as file:
        names, groups = file.schema_arrow.names, file.num_row_groups
        _require(
            Row(str(path), dict.fromkeys(names, "")),
            dict.fromkeys((*layout.wanted, *layout.late), object),
        )
        for name, kind in layout.late.items():
            if _LIKE[kind] not in str(file.schema_arrow.field(name).type):
                raise KoderzError(f"{path}: the column {name!r} has to be {_NAMES[kind]}")
        columns = [name for name in layout.early if name in names]
        text = names.index(next(iter(layout.late)))
        for group in range(groups):
            size = file.metadata.row_group(group).column(text).total_compressed_size
            for number, fields in enumerate(
                file.read_row_group(group, columns=columns).to_pylist()
            ):
                _require(Row(f"{path}, group {group}, row {number}", fields), layout.wanted)
                digest = recipe_digest(
                    "oolong 1", path.name, group, number, size, sorted(fields.items())
                )
                yield (group, number), fields, digest


def _require(row: Row, columns: Mapping[str, Kind]) -> None:
    if absent := [name for name in columns if row.fields.get(name) is None]:
        raise row.error(f"the column {absent[0]!r} is missing; there are {', '.join(row.fields)}")
    for name, kind in columns.items():
        value = row.fields[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise row.error(f"the column {name!r} has to be {_NAMES[kind]}")
        if isinstance(value, str):
            row.text(name)
