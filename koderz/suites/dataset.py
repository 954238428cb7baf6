"""Task files: JSON lines or one JSON list, plain or gzipped, read whole and checked before anything is spent."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.settings.paths import cache_folder
from koderz.suites.keys import misspelt
from koderz_tracker.files import MB

GZIP = b"\x1f\x8b"

CLUSTER = "cluster"
"""The field of a row by which its user says which others it resembles, see `Task.cluster`."""

_LONGEST = 256 * MB  # of a line
_LONGEST_CLUSTER = 100  # characters of a cluster's name


class Row(NamedTuple):
    """One row of a task file. Its methods raise KoderzError, naming the line, for a field of another kind."""

    where: str  # "FILE, line 3"
    fields: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A field that has to be text; without a default it has to be there."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise self._unlike(name, "text")
        if not _is_whole(value):
            raise self.error(f"the field {name!r} holds half a surrogate pair, which isn't a character")
        return value

    def texts(self, name: str) -> list[str]:
        """A field that has to be a list of texts; without it, none."""
        value = self.fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and _is_whole(item) for item in value):
            raise self._unlike(name, "a list of texts")
        return value

    def lists(self, name: str) -> list[list[Any]]:
        """A field that has to be a list of lists; without it, none."""
        value = self.fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
            raise self._unlike(name, "a list of lists")
        return value

    def value(self, name: str) -> Any:
        """The value of a field, dotted for a nested one; None where it isn't there."""
        if name in self.fields:
            return self.fields[name]
        value: Any = self.fields
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @property
    def cluster(self) -> str:
        """The cluster that the row shares with others, as text; empty if it names none."""
        return self.cluster_by(None)

    def cluster_by(self, column: str | None) -> str:
        """The cluster that a column names, which every row has to have; of None, that of the field `cluster`.

        A long value, such as a whole passage, is known by its digest.
        """
        name = column or CLUSTER
        value = self.value(name)
        if column and value is None and name.partition(".")[0] not in self.fields:
            raise self._unlike(name, "text or a whole number")
        if isinstance(value, float) and (value.is_integer() or math.isnan(value)):
            value = None if math.isnan(value) else int(value)  # a column with gaps, as tables have it
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            raise self._unlike(name, "text or a whole number")
        text = "" if value is None else str(value)
        return text if len(text) <= _LONGEST_CLUSTER else cluster_of_text(name, text)

    def number(self, name: str, default: float) -> float:
        """A field that has to be a number from 0 up."""
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self._unlike(name, "a number from 0 up")
        return value

    def error(self, problem: str) -> KoderzError:
        return KoderzError(f"{self.where}: {problem}")

    def _unlike(self, name: str, wanted: str) -> KoderzError:
        if self.fields.get(name) is None:
            return self.error(f"the field {name!r} is missing{misspelt(name, self.fields.keys())}")
        return self.error(f"the field {name!r} has to be {wanted}")


def cluster_of_text(what: str, text: str) -> str:
    """The name of the cluster of all that share a text, which is a `what`."""
    return f"{what} {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}"


def read_rows(path: Path, skip: Callable[[KoderzError], None] | None = None) -> Iterator[Row]:
    """The rows of a file of JSON objects, one a line or all in one list. It may be gzipped, whatever its name.

    Numbers keep all their digits, NaN and Infinity are understood. Raises KoderzError, naming the line, for
    what is no JSON object, and for a file that can't be read. With `skip`, lines that are no JSON object are
    handed to it and left out.
    """
    if path.name.removesuffix(".gz").lower().endswith((".csv", ".tsv", ".parquet")):
        raise KoderzError(f"{path} is a table, where JSON lines are read; for questions in a table add --suite qa")
    lines = _lines(path)
    for number, line in lines:
        if line.startswith("["):
            yield from _listed(path, number, chain([line], (line for _, line in lines)))
        elif line:
            try:
                row = _row(f"{path}, line {number}", _parsed(line, path, number))
            except KoderzError as error:
                if skip is None:
                    raise
                skip(error)
            else:
                yield row


def find_dataset(given: Path | None, *names: str, hint: str) -> Path:
    """The file given, or the first of `names` (also with `.gz`) in the cache folder.

    Raises KoderzError saying where to get it from.
    """
    if given is not None:
        return given
    folder = cache_folder()
    for path in (folder / f"{name}{ending}" for name in names for ending in ("", ".gz")):
        if path.is_file():
            return path
    raise KoderzError(f"{names[0]} isn't in {folder}; {hint}, and put it there or name it with --dataset FILE")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines with their numbers from 1, without the white space around them."""
    import gzip

    try:
        with (
            path.open("rb") as plain,
            gzip.open(plain) if plain.peek(2).startswith(GZIP) else nullcontext(plain) as file,
        ):
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST), b""), 1):
                if len(line) == _LONGEST:
                    raise KoderzError(f"{path}, line {number}: a line of {_LONGEST // MB} MB and more isn't read")
                yield number, _decoded(line, path, number)
    except FileNotFoundError:
        raise KoderzError(f"there is no dataset {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise KoderzError(f"the dataset {path} can't be read: {error}") from None


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        raise KoderzError(f"{path}, line {number}: not UTF-8 text") from None


def _listed(path: Path, first: int, lines: Iterable[str]) -> Iterator[Row]:
    entries = _parsed("\n".join(lines), path, first)
    for number, entry in enumerate(entries, 1):
        yield _row(f"{path}, entry {number}", entry)


def _parsed(text: str, path: Path, first: int) -> Any:
    """The value; `first` is the number of the text's first line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {first + error.lineno - 1}"
        raise KoderzError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # an integer of too many digits, lists in lists in lists
        raise KoderzError(f"{path}, line {first}: can't be read ({error})") from None


def _row(where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise KoderzError(f"{where}: not a JSON object")
    return Row(where, value)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
