"""Rows of task files: their keys and fields, checked before anything is spent, and the bytes they are read from."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from gzip import GzipFile
from io import BufferedReader, BytesIO
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.settings.paths import cache_folder
from koderz_tracker.files import MB

_SHOWN = 20


def require_keys(table: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raises KoderzError naming the first unknown key, and the one that it is nearest to."""
    for key in table:
        if key not in known:
            raise KoderzError(f"{where}: unknown key {key!r}; {meant(key, known)}")


def meant(name: str, known: Collection[str]) -> str:
    """Suggestion in place of an unknown name: the nearest one, else all known names."""
    if near := difflib.get_close_matches(name, known, 1):
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(sorted(known)[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}"


def misspelt(name: str, given: Collection[str]) -> str:
    """Which of the keys that are given looks like the one that lacks, to be put behind the message; or nothing."""
    keys = {key.strip().casefold(): key for key in given if key != name}
    near = difflib.get_close_matches(name.casefold(), keys, 1)
    return f"; is {keys[near[0]]!r} meant for it?" if near else ""


GZIP = b"\x1f\x8b"

CLUSTER = "cluster"
"""The field of a row by which its user says which others it resembles, see `Task.cluster`."""

LONGEST = 256 * MB
"""The bytes of a line from which on it isn't read."""

File = BufferedReader | GzipFile

_KINDS: Mapping[type, str] = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a truth value",
}
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
            raise self.error(
                f"the field {name!r} holds half a surrogate pair, which isn't a character"
            )
        return value

    def id(self, name: str) -> str:
        """A field that names the row: a text, or a whole number."""
        value = self.fields.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # as tables have numbers in a column with gaps
        return (
            str(value)
            if isinstance(value, int) and not isinstance(value, bool)
            else self.text(name)
        )

    def texts(self, name: str) -> list[str]:
        """A field that has to be a list of texts; without it, none."""
        value = self.fields.get(name, [])
        if not isinstance(value, list) or not all(
            isinstance(item, str) and _is_whole(item) for item in value
        ):
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
            # a column with gaps, as tables have it
            value = None if math.isnan(value) else int(value)
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            raise self._unlike(name, "text or a whole number")
        text = "" if value is None else str(value)
        return text if len(text) <= _LONGEST_CLUSTER else cluster_of_text(name, text)

    def number(self, name: str, default: float) -> float:
        """A field that has to be a number from 0 up, which tables have as a text."""
        value = self.fields.get(name, default)
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value < float("inf")
        ):
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


def cached_dataset(*names: str) -> Path | None:
    """The first file of these names, also with `.gz`, that is in the cache folder."""
    paths = (cache_folder() / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


@contextmanager
def opened(
    path: Path, error: Callable[[str], KoderzError] = KoderzError, data: bytes | None = None
) -> Iterator[File]:
    """The content of a file, unpacked if it is gzipped, whatever its name. `data`: the content, if it was read before.

    What can't be read, now or within, is an `error` that names the file.
    """
    import gzip

    plain: Any
    try:
        with path.open("rb") if data is None else BufferedReader(BytesIO(data)) as plain:
            if plain.peek(2).startswith(GZIP):
                with gzip.open(plain) as file:
                    yield file
            else:
                yield plain
    except FileNotFoundError:
        raise error(f"there is no dataset {path}") from None
    except (OSError, EOFError, zlib.error) as problem:
        raise error(f"the dataset {path} can't be read: {problem}") from None


def lines_of(file: File, path: Path, longest: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1. Raises KoderzError for one of `longest` bytes."""
    most = longest or LONGEST
    for number, line in enumerate(iter(lambda: file.readline(most), b""), 1):
        if len(line) == most:
            raise KoderzError(
                f"{path}, line {number}: a line of {most // MB} MB and more isn't read"
            )
        yield number, line


def decoded(data: bytes, path: Path, first: int = 1, encoding: str = "utf-8") -> str:
    """The text of bytes that begin at the line `first` of a file. Raises KoderzError with the line and the remedy."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        number = first + data.count(b"\n", 0, error.start)
        # Excel's "CSV" is in the code page of its machine, which no byte of the file tells, so it isn't guessed.
        remedy = f'save it as UTF-8, as Excel\'s "CSV UTF-8"; of Windows: iconv -f CP1252 -t UTF-8 {quote(str(path))}'
        raise KoderzError(
            f"{path}, line {number}: not {encoding.upper().removesuffix('-SIG')} text; {remedy}"
        ) from None


def row_of_line(line: bytes, path: Path, number: int) -> Row:
    """The row that a line of a file is. Raises KoderzError, naming the line, if it is no JSON object."""
    encoding = json.detect_encoding(line[:4]) if number == 1 else "utf-8"
    if not encoding.startswith("utf-8"):  # whose lines end within a character
        raise KoderzError(
            f"{path}, line 1: not UTF-8 text, but {encoding.upper()}; convert it: "
            f"iconv -f {encoding.upper()} -t UTF-8 {quote(str(path))}"
        )
    text = decoded(line, path, number, encoding).strip()
    if number == 1 and not text.startswith("{"):
        raise KoderzError(
            f"{path}, line 1: not a JSON object; rows of this kind are read from JSON lines alone"
        )
    return row_of(parsed(text, path, number), f"{path}, line {number}")


def parsed(text: str, path: Path, first: int) -> Any:
    """The value of JSON. Raises KoderzError, naming the line; `first` is the number of the text's first."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {first + error.lineno - 1}"
        raise KoderzError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        # an integer of too many digits, lists in lists in lists
        raise KoderzError(f"{path}, line {first}: can't be read ({error})") from None


def row_of(value: Any, where: str) -> Row:
    """The row of a value at a place. Raises KoderzError, which says what it is, if it is no JSON object."""
    if not isinstance(value, dict):
        name = _KINDS.get(type(value), "null")
        raise KoderzError(f"{where}: not a JSON object, but {name}")
    return Row(where, value)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
