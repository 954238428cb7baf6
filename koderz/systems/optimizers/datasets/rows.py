"""The rows of a dataset's source splits, as items."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites.dataset import Row
from koderz.suites.tables import KINDS, kind_of, read_rows
from koderz.systems.optimizers.datasets.payload import Item

_NAMES: Mapping[str, str] = {"train": "train", "validation": "validation", "valid": "validation"} | {
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
_SPLIT = re.compile(rf"({'|'.join(_NAMES)})(?:$|[._-])", re.IGNORECASE)
_MOST_CHARACTERS = 1_000_000  # of an item

MakeItem = Callable[[str, Row], Item]
"""Makes an item of an id and a row. Raises KoderzError for an invalid row."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """A source split: the rows of one file, or of several in sequence."""

    dataset: str
    name: str  # of the source split
    files: tuple[Path, ...]
    make: MakeItem

    def __iter__(self) -> Iterator[Item]:
        number = 0
        for file in self.files:
            for row in read_rows(file):
                item = self.make(f"{self.dataset}/{self.name}/{number}", row)
                if len(item.text) > _MOST_CHARACTERS:
                    raise row.error(f"an item of more than {_MOST_CHARACTERS:,} characters isn't read")
                yield item
                number += 1


def source_splits(
    dataset: str,
    path: Path,
    make: MakeItem,
    usual: str,
    folders: Collection[str] = (),
    unnamed: str = "",
    tests: str = "",
) -> list[FileRows]:
    """The source splits of a file or folder; in a folder, file names begin with their split's name.

    `usual`: the name of the split of a single file, and of files that match the pattern `unnamed`, whose names don't
    say it; `folders`: where files may lie in a folder that has none itself; `tests`: a folder whose files are the split
    test, whatever their names. Raises KoderzError where there is nothing of the kind.
    """
    if path.is_dir():
        for folder in (path, *(path / name for name in folders)):
            if found := _in_folder(folder, unnamed, usual):
                if tests and (path / tests).is_dir():
                    files = sorted(file for file in (path / tests).rglob("*") if file.is_file() and kind_of(file))
                    found |= {"test": files} if files else {}
                return [FileRows(dataset, name, tuple(files), make) for name, files in found.items()]
        raise KoderzError(
            f"{path}: there is no train, validation or test file as {', '.join(KINDS)} (also .gz) for {dataset}"
        )
    if not path.is_file():
        raise KoderzError(f"{path}: there is no such file or folder for {dataset}")
    return [FileRows(dataset, _split_of(path) or usual, (path,), make)]


def _in_folder(folder: Path, unnamed: str, usual: str) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = _split_of(path) or (usual if fnmatch(path.name, unnamed) else "")
        if name and path.is_file() and kind_of(path):
            found.setdefault(name, []).append(path)
    return found


def _split_of(path: Path) -> str:
    begins = _SPLIT.match(path.name)
    return _NAMES[begins[1].lower()] if begins else ""
