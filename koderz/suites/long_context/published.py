"""Rows of published data sets, in parquet or JSON lines: found without their texts, which are read when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from koderz.errors import Fault, KoderzError
from koderz.suites.long_context.contexts import Reading, recipe_digest
from koderz.suites.long_context.lines import Line, file_lines

Fields = Mapping[str, Any]
Filter = Callable[[Fields], bool]
OfRow = Callable[[Fields, Fields], tuple[Reading, Any]]
"""Makes a text, and what belongs into the answer, of a row's fields and of those that are read late."""


@dataclass(frozen=True)
class Layout:
    """The columns of a file."""

    late: Mapping[str, type]  # the long ones, which are read when they are needed: str, or list
    wanted: tuple[str, ...]  # the others that there have to be
    optional: tuple[str, ...] = ()  # and those that there may be
    window: tuple[str, ...] = ()  # what rows with the same late columns have in common; without these, they share none

    def window_of(self, fields: Fields, place: Any) -> Any:
        """Differs between rows whose late columns do."""
        found = tuple(fields.get(name) for name in self.window)
        return found if found and found[0] is not None else place


class Late:
    """The late columns of a row, held for as long as somebody needs them."""

    __slots__ = ("__weakref__", "fields")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields


@dataclass(frozen=True)
class Texts:
    """The late columns of a file's rows, those that several rows share once."""

    path: Path
    columns: tuple[str, ...]
    held: WeakValueDictionary[Any, Late] = field(default_factory=WeakValueDictionary)

    def read(self, place: Any) -> Late:
        """Of the row at a place: its line, or its group and number in it. Raises Fault where there is none."""
        found = self.held.get(place)
        if found is None:
            row = place.row().fields if isinstance(place, Line) else self._of_parquet(*place)
            found = Late({name: row[name] for name in self.columns})
            self.held[place] = found
        return found

    def _of_parquet(self, group: int, number: int) -> Fields:
        """Only the rows before it in its group are read, too."""
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=1, row_groups=[group], columns=[*self.columns]):
                    if number == 0:
                        found: Fields = batch.to_pylist()[0]
                        return found
                    number -= 1
        except (OSError, ValueError) as error:
            raise Fault(f"{self.path} can't be read: {error}") from None
        raise Fault(f"{self.path} has changed since the run began; put it back")


@dataclass(frozen=True)
class PublishedRow:
    """A recipe: a row of a file."""

    texts: Texts
    place: Any  # of the first row with the same late columns
    fields: Fields
    digest: str
    of_row: OfRow
    size: int = 0  # bytes of its line, if it is one

    def make(self) -> tuple[Reading, Any]:
        late = self.texts.read(self.place)
        made, answers = self.of_row(self.fields, late.fields)
        return replace(made, shared=late), answers


def files_in(path: Path) -> list[Path]:
    """The file, or all of a folder. Raises KoderzError where it holds none."""
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.rglob("*") if each.suffix in (".parquet", ".jsonl"))
    if not files:
        raise KoderzError(f"there is no .parquet or .jsonl file in {path}")
    return files


def published(path: Path, layout: Layout, keep: Filter, of_row: OfRow) -> Iterator[PublishedRow]:
    """The rows of a file, or of all files of a folder. Raises KoderzError for what isn't in this layout."""
    for file in files_in(path):
        texts, first = Texts(file, (*layout.late,)), dict[Any, Any]()
        for place, fields, digest in (_of_parquet if file.suffix == ".parquet" else _of_lines)(file, layout):
            place_of_text = first.setdefault(layout.window_of(fields, place), place)
            if keep(fields):
                size = place.size if isinstance(place, Line) else 0
                yield PublishedRow(texts, place_of_text, fields, digest, of_row, size)


def _of_lines(path: Path, layout: Layout) -> Iterator[tuple[Line, Fields, str]]:
    for line in file_lines(path):
        row = line.row()
        for name in (*layout.wanted, *layout.late):
            if row.fields.get(name) is None:
                raise row.error(f"the column {name!r} is missing; there are {', '.join(row.fields)}")
        for name, kind in layout.late.items():
            if kind is str:
                row.text(name)
            elif not isinstance(row.fields[name], kind):
                raise row.error(f"the column {name!r} has to be a {kind.__name__}")
        yield line, {name: row.fields.get(name) for name in (*layout.wanted, *layout.optional)}, line.digest


def _of_parquet(path: Path, layout: Layout) -> Iterator[tuple[tuple[int, int], Fields, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for name in (*layout.wanted, *layout.late):
                if name not in names:
                    raise KoderzError(f"{path}: the column {name!r} is missing; there are {', '.join(names)}")
            columns = [name for name in (*layout.wanted, *layout.optional) if name in names]
            text = names.index(next(iter(layout.late)))
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).column(text).total_compressed_size
                for number, fields in enumerate(file.read_row_group(group, columns=columns).to_pylist()):
                    digest = recipe_digest("oolong 1", path.name, group, number, size, sorted(fields.items()))
                    yield (group, number), fields, digest
    except FileNotFoundError:
        raise KoderzError(f"there is no dataset {path}") from None
    except (OSError, pa.ArrowException) as error:
        raise KoderzError(f"the dataset {path} can't be read: {error}") from None
