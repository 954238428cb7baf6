"""Published rows of OOLONG, in parquet or JSON lines: found without their texts, which are read when needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from koderz.errors import Fault, KoderzError
from koderz.suites.long_context.contexts import Reading, recipe_digest
from koderz.suites.long_context.lines import FileLine, file_lines
from koderz.suites.long_context.tokens import Characters


@dataclass(frozen=True)
class Layout:
    """The columns of a file."""

    text: str  # the column of the long text
    wanted: tuple[str, ...]  # the others that there have to be
    optional: tuple[str, ...] = ()  # and those that there may be


Filter = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class PublishedRow:
    """A row without its text, and how to make a text with answers of it."""

    fields: Mapping[str, Any]
    recipe: Any


class Text:
    """A text that several rows share."""

    __slots__ = ("__weakref__", "text")

    def __init__(self, text: str) -> None:
        self.text = text


@dataclass(frozen=True)
class Texts:
    """The texts of one parquet file that are held by somebody, by group and number of their row."""

    path: Path
    column: str
    held: WeakValueDictionary[tuple[int, int], Text] = field(default_factory=WeakValueDictionary)

    def read(self, group: int, number: int) -> Text:
        """The text of a row; only those before it in its group are read, too. Raises Fault where there is none."""
        found = self.held.get((group, number))
        if found is None:
            found = Text(self._read(group, number))
            self.held[group, number] = found
        return found

    def _read(self, group: int, number: int) -> str:
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=1, row_groups=[group], columns=[self.column]):
                    if number == 0:
                        return str(batch.column(0)[0].as_py())
                    number -= 1
        except (OSError, ValueError) as error:
            raise Fault(f"{self.path} can't be read: {error}") from None
        raise Fault(f"{self.path} has changed since the run began; put it back")


@dataclass(frozen=True)
class ParquetRow:
    """A recipe: a row of a parquet file."""

    texts: Texts
    group: int
    number: int  # within the group, of the first row with the same text
    fields: Mapping[str, Any]
    digest: str
    of_row: Callable[[Mapping[str, Any], str], tuple[Reading, Any]]

    def make(self) -> tuple[Reading, Any]:
        shared = self.texts.read(self.group, self.number)
        made, answers = self.of_row(self.fields, shared.text)
        return replace(made, shared=shared), answers


def published(
    path: Path, layout: Layout, keep: Filter, of_row: Callable[[Mapping[str, Any], str], tuple[Reading, Any]]
) -> Iterator[PublishedRow]:
    """The rows of a file, or of all files of a folder. Raises KoderzError for what isn't in this layout."""
    files = [path]
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.suffix in (".parquet", ".jsonl"))
        if not files:
            raise KoderzError(f"there is no .parquet or .jsonl file in {path}")
    for file in files:
        yield from (_of_parquet if file.suffix == ".parquet" else _of_lines)(file, layout, keep, of_row)


def _of_lines(path: Path, layout: Layout, keep: Filter, of_row: Any) -> Iterator[PublishedRow]:
    def make(fields: Mapping[str, Any]) -> tuple[Reading, Any]:
        found: tuple[Reading, Any] = of_row(fields, fields[layout.text])
        return found

    for line in file_lines(path):
        row = line.row()
        for name in (*layout.wanted, layout.text):
            if row.fields.get(name) is None:
                raise row.error(f"the column {name!r} is missing; there are {', '.join(row.fields)}")
        row.text(layout.text)
        fields = {name: row.fields.get(name) for name in (*layout.wanted, *layout.optional)}
        if keep(fields):
            yield PublishedRow(fields, FileLine(line, make))


def _of_parquet(path: Path, layout: Layout, keep: Filter, of_row: Any) -> Iterator[PublishedRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for name in (*layout.wanted, layout.text):
                if name not in names:
                    raise KoderzError(f"{path}: the column {name!r} is missing; there are {', '.join(names)}")
            columns = [name for name in (*layout.wanted, *layout.optional) if name in names]
            texts, first = Texts(path, layout.text), dict[Any, tuple[int, int]]()
            text = names.index(layout.text)
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).column(text).total_compressed_size
                for number, fields in enumerate(file.read_row_group(group, columns=columns).to_pylist()):
                    place = first.setdefault(_window(fields, group, number), (group, number))
                    if keep(fields):
                        digest = recipe_digest("oolong 1", path.name, group, number, size, sorted(fields.items()))
                        yield PublishedRow(fields, ParquetRow(texts, *place, fields, digest, of_row))
    except FileNotFoundError:
        raise KoderzError(f"there is no dataset {path}") from None
    except (OSError, pa.ArrowException) as error:
        raise KoderzError(f"the dataset {path} can't be read: {error}") from None


def _window(fields: Mapping[str, Any], group: int, number: int) -> Any:
    """What rows with the same text have in common."""
    window = fields.get("context_window_id")
    if window is None:
        return group, number
    return window, fields.get("dataset"), fields.get("context_len"), fields.get("input_subset")


def reading(text: str, question: str, **more: Any) -> Reading:
    """Text and question, in characters / 4."""
    counter = Characters()
    return Reading(text, question, counter.count(f"{text}\n{question}"), counter.name, more=more)


def matching(names: Collection[str], lengths: Sequence[int]) -> Filter:
    """Rows of these data sets and lengths; of all where none is named."""

    def keep(fields: Mapping[str, Any]) -> bool:
        return (not names or fields["dataset"] in names) and (not lengths or fields["context_len"] in lengths)

    return keep
