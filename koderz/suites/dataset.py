"""Task files: JSON lines, plain or gzipped, read whole and checked before anything is spent."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from koderz.errors import KoderzError


class Row(NamedTuple):
    """One line of a task file."""

    where: str  # "FILE, line 3"
    fields: Mapping[str, Any]

    def text(self, name: str, default: str | None = None) -> str:
        """A field that has to be text. Raises KoderzError naming the line where it isn't."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            problem = "is missing" if value is None else f"is {type(value).__name__}, not text"
            raise KoderzError(f"{self.where}: the field {name!r} {problem}")
        return value

    def texts(self, name: str) -> list[str]:
        """A field that has to be a list of texts."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise KoderzError(f"{self.where}: the field {name!r} is no list of texts")
        return value

    def error(self, problem: str) -> KoderzError:
        return KoderzError(f"{self.where}: {problem}")


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file, `.gz` or not. Raises KoderzError, naming the line, for what is no JSON object."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise KoderzError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
        if not isinstance(fields, dict):
            raise KoderzError(f"{where}: not a JSON object")
        yield Row(where, fields)


def cache_folder() -> Path:
    """Where downloaded datasets and cached specifications lie: `$XDG_CACHE_HOME/koderz`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koderz"


def find_dataset(given: Path | None, *names: str, hint: str) -> Path:
    """The file given, or the first of `names` (also with `.gz`) in the cache folder.

    Raises KoderzError saying where to get it from.
    """
    if given is not None:
        return given
    folder = cache_folder()
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise KoderzError(f"{names[0]} isn't in {folder}; {hint}, and put it there or name it with --dataset FILE")


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        raise KoderzError(f"there is no dataset {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise KoderzError(f"the dataset {path} can't be read: {error}") from None
