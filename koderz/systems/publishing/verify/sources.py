"""Where a run to be verified is: in a results folder, in an archive, or at an address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from koderz.errors import KoderzError
from koderz.systems.publishing.share import SCHEMES, fetched
from koderz.systems.publishing.unpacking import unpack_run
from koderz_tracker.journal import NAME
from koderz_tracker.runs import find_run


class FoundRun(NamedTuple):
    """A run's folder, and its summary beside it if there is one."""

    folder: Path
    summary: Path | None


@contextmanager
def found_run(name: str, results: Path, *, max_size: int) -> Iterator[FoundRun]:
    """The run that a name, path or address stands for. `max_size`: the bytes that an archive may unpack to.

    Raises KoderzError where there is no run, or an archive that could write elsewhere or unpacks to more.
    """
    scheme, separator, rest = name.partition("://")
    if separator and scheme == "file":
        name = rest
    elif separator:
        if scheme not in SCHEMES:
            raise KoderzError(f"{name}: an address begins with {', '.join(f'{each}://' for each in SCHEMES)}")
        with TemporaryDirectory(prefix="koderz-verify-") as temporary:
            yield _only_run(fetched(name, Path(temporary), max_size=max_size), name)
        return
    path = Path(name)
    if path.is_file() and path.suffix != ".json":
        with TemporaryDirectory(prefix="koderz-verify-") as temporary:
            unpack_run(path, Path(temporary), max_size=max_size)
            yield _only_run(Path(temporary), name)
        return
    folder = find_run(results, name)
    yield FoundRun(folder, _summary_of(folder))


def _only_run(place: Path, name: str) -> FoundRun:
    """The one run below a folder. Raises KoderzError where there is none, or several."""
    journals = sorted(path for path in place.rglob(NAME) if path.is_file())
    if len(journals) != 1:
        there = f"{len(journals)} runs" if journals else "no run"
        raise KoderzError(f"{name} holds {there}; give an archive or address of one, with its journal {NAME}")
    folder = journals[0].parent
    return FoundRun(folder, _summary_of(folder))


def _summary_of(folder: Path) -> Path | None:
    beside = folder.with_name(f"{folder.name}.json")
    return beside if beside.is_file() else None
