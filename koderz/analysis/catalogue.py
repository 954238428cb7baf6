"""Every run of a results folder in a line, read from summaries and cached in an index that can be rebuilt.

The index, `.runs.index` in the results folder, is a cache: a row is taken from it only where the file that
it was read from still has the size and the time that it had then. A damaged one is made anew.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from operator import attrgetter
from pathlib import Path

import msgspec
from msgspec.inspect import type_info
from msgspec.structs import replace

from koderz.analysis.logs import read_log
from koderz.analysis.rows import RunRow, row_of_journal, row_of_log, row_of_summary
from koderz_tracker.errors import KoderzError
from koderz_tracker.files import open_own, write_whole
from koderz_tracker.journal import NAME
from koderz_tracker.messages import digest_of
from koderz_tracker.runs import RUN_ID, is_locked
from koderz_tracker.sinks.standing import NAME as SINKS
from koderz_tracker.sinks.standing import standing_of

INDEX = ".runs.index"
_VERSION = 15  # of how rows are read off; their fields are in `_form`


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The runs of a folder, newest first, and the errors of files that could not be read."""

    rows: list[RunRow]
    unreadable: list[str] = field(default_factory=list)


def load_catalogue(results: Path, newest: int | None = None) -> Catalogue:
    """Lists every run in `results`, also those without a summary, which still go on or were cut off.

    With `newest`, so many that began last are among them, and logs that are older than these aren't read unless the
    index has them. Nothing is raised for a damaged file: `unreadable` has a line for each.
    """
    known = _read_index(results)
    cached: dict[str, _Cached] = {}
    found = Catalogue([])
    begun: list[str] = []  # when the newest rows began, as a heap
    for name, source, stamp in sorted(_sources(results), key=lambda each: each[2], reverse=True):
        entry = known.get(name)
        if entry is None or entry.stamp != stamp:
            # No log began after it was last written. Runs tell times without their zone, so they are always read.
            is_log = not RUN_ID.fullmatch(name)
            if (
                is_log
                and len(begun) == newest
                and datetime.fromtimestamp(stamp[0] / 1e9).isoformat() < begun[0]
            ):
                continue
            entry = _read(source, stamp, f"{results}/{name}")
        cached[name] = entry
        if entry.row is None:
            found.unreadable.extend(filter(None, [entry.problem]))
        else:
            try:
                row, folder = entry.row, Path(source).parent
                # Only a run with a journal newer than its summary can be running.
                if _is_journal(stamp) and (folder / "lock").exists() and is_locked(folder):
                    row = replace(row, status="running")
                found.rows.append(row)
            except KoderzError as error:  # what its lock is can't be told
                found.unreadable.append(str(error))
                continue
            if newest is not None:
                (heapq.heappushpop if len(begun) == newest else heapq.heappush)(
                    begun, entry.row.started
                )
    if cached != known:
        # A folder that can't be written is still listed, only more slowly the next time.
        with contextlib.suppress(OSError):
            write_whole(results / INDEX, [msgspec.msgpack.encode((_form(), cached))], durable=False)
    found.rows.sort(key=attrgetter("started", "run_id"), reverse=True)
    return found


Stamp = tuple[int, int, str, int]
"""Time (nanoseconds) and size (bytes) of a file, its name where it is a journal, and the time of sinks.json or 0."""


def _is_journal(stamp: Stamp) -> bool:
    return stamp[2] == NAME


class _Cached(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row, or the reason for having none, with the stamp of the files that it was read from."""

    stamp: Stamp
    row: RunRow | None
    problem: str = ""


_Index = tuple[str, dict[str, _Cached]]
"""The format of the index, and its entry for each run."""


def _sources(results: Path) -> Iterator[tuple[str, str, Stamp]]:
    """Each run with its most informative file: its summary, or its journal if that is newer.

    Paths are plain text here, and below: for each of 10,000 runs, a Path costs as much as the rest.
    """
    summaries: dict[str, os.DirEntry[str]] = {}
    folders: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(results) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if RUN_ID.fullmatch(entry.name.removesuffix(".json")):
                if entry.name.endswith(".json"):
                    summaries[entry.name.removesuffix(".json")] = entry
                else:
                    folders.add(entry.name)
            elif entry.name.endswith((".json", ".jsonl", ".eval")) or entry.is_dir(
                follow_symlinks=False
            ):
                yield entry.name, entry.path, _stamp_of_log(entry)
    for name in summaries.keys() | folders:
        if newest := _newest(f"{results}/{name}" if name in folders else "", summaries.get(name)):
            yield name, *newest


def _stamp_of_log(entry: os.DirEntry[str]) -> Stamp:
    """Of a folder, the newest time of what is directly in it, and how much that is."""
    with contextlib.suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        if not entry.is_dir(follow_symlinks=False):
            return status.st_mtime_ns, status.st_size, "", 0
        with os.scandir(entry.path) as within:
            times = [each.stat(follow_symlinks=False).st_mtime_ns for each in within]
        return max([status.st_mtime_ns, *times]), len(times), "", 0
    return 0, 0, "", 0


def _newest(folder: str, summary: os.DirEntry[str] | None) -> tuple[str, Stamp] | None:
    """The newest file of a run and its stamp; None if both files are gone."""
    status = _stat(summary.path) if summary else None
    sinks = journal = None
    if folder:
        sinks, journal = _stat(f"{folder}/{SINKS}"), _stat(f"{folder}/{NAME}")
    since = sinks.st_mtime_ns if sinks else 0
    if journal and (status is None or journal.st_mtime_ns > status.st_mtime_ns):
        return f"{folder}/{NAME}", (journal.st_mtime_ns, journal.st_size, NAME, since)
    return (
        (summary.path, (status.st_mtime_ns, status.st_size, "", since))
        if summary and status
        else None
    )


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError:
        return None


def _read(source: str, stamp: Stamp, folder: str) -> _Cached:
    """The row of a run, or of another tool's log; neither a row nor a problem for what is none of these."""
    try:
        if not RUN_ID.fullmatch(Path(source).stem) and not _is_journal(stamp):
            log = read_log(Path(source))
            if log is not None:
                return _Cached(stamp, row_of_log(log, Path(source).name))
            if not source.endswith(".json"):
                return _Cached(stamp, None)
        standings = standing_of(folder) if stamp[3] else {}
        sinks = {name: str(standing.state) for name, standing in standings.items()}
        row = (
            row_of_journal(Path(source), sinks)
            if _is_journal(stamp)
            else row_of_summary(_content(source), sinks)
        )
        progress = {name: standings[name].progress(folder) for name in row.behind}
        return _Cached(stamp, replace(row, progress=progress) if progress else row)
    except (KoderzError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error.strerror if isinstance(error, OSError) else error)
        return _Cached(
            stamp,
            None,
            reason if source in reason else f"{source} is no summary of a run: {reason}",
        )


def _content(path: str) -> bytes:
    with open_own(path) as file:
        return file.read()


def _read_index(results: Path) -> dict[str, _Cached]:
    try:
        with open_own(results / INDEX) as file:
            form, entries = msgspec.msgpack.decode(file.read(), type=_Index)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return entries if form == _form() else {}


@cache
def _form() -> str:
    """The format of the index, which changes with the fields of its rows and the version of their reading."""
    return digest_of(f"{_VERSION} {type_info(_Cached)}")


def chosen(
    rows: Sequence[RunRow],
    *,
    model: str | None = None,
    mode: str | None = None,
    suite: str | None = None,
    since: str | None = None,
    tags: Sequence[str] = (),
) -> list[RunRow]:
    """The rows that fit. `model`: part of its name; `since`: ISO 8601; `tags`: all of them."""
    return [
        row
        for row in rows
        if (model is None or model.lower() in row.model.lower())
        and (mode is None or row.mode == mode)
        and (suite is None or row.suite == suite)
        and (since is None or row.started >= since)
        and set(tags) <= set(row.tags)
    ]


SORTS = {"started": "started", "rate": "rate", "cost": "cost", "time": "seconds", "model": "model"}
"""The orders of rows: newest, best, dearest or longest first; models by name."""


def ordered(rows: Sequence[RunRow], sort: str) -> list[RunRow]:
    """The rows in one of the orders SORTS; `rows` are the newest first."""
    return sorted(rows, key=attrgetter(SORTS[sort]), reverse=sort != "model")
