"""Every run of a results folder in a line: read off the summaries, and kept in an index that can be rebuilt.

The index, `.runs.index` in the results folder, is a cache: a row is taken from it only where the file that
it was read from still has the size and the time that it had then. A damaged one is made anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from tracker.errors import JournalError
from tracker.journal import NAME
from tracker.runs import RUN_ID, is_locked
from tracker.sinks.standing import NAME as SINKS
from tracker.sinks.standing import standing_of
from tracker.summary import wilson

INDEX = ".runs.index"
_VERSION = 3


@dataclass(frozen=True, slots=True)
class ArmRow:
    """What one solver came to."""

    solver: str
    judged: int
    passed: int
    rate: float  # per cent
    interval: tuple[float, float] | None  # 95 %, per cent
    cost: float  # US dollars
    iterations: float  # average


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run."""

    run_id: str
    status: str  # as in the summary, or "running", or "unfinished": begun, and nobody works on it
    mode: str
    model: str
    suite: str
    started: str  # ISO 8601, local
    seconds: float  # of the sessions that worked on it
    planned: int
    faults: int
    cost: float  # US dollars, all that was paid
    cost_known: bool
    simulated: bool
    imported: bool
    tags: tuple[str, ...]
    arms: tuple[ArmRow, ...]
    sinks: Mapping[str, str] = field(default_factory=dict)  # where each stands: up to date, behind, down or off
    behind: tuple[str, ...] = ()  # those of them that lack something of it; koderz sync catches them up

    @property
    def rate(self) -> float:
        """Per cent, of the last arm: that of a comparative run is the iterative one. -1 where nothing was judged."""
        return self.arms[-1].rate if self.arms and self.arms[-1].judged else -1.0


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The runs of a folder, newest first, and what is wrong with the files that could not be read."""

    rows: list[RunRow]
    unreadable: list[str] = field(default_factory=list)


def load_catalogue(results: Path) -> Catalogue:
    """Every run in `results`, also those that go on or were cut off before they had a summary.

    Nothing is raised for a damaged file: `unreadable` has a line for each.
    """
    known = _read_index(results)
    cached: dict[str, _Cached] = {}
    rows: list[RunRow] = []
    unreadable: list[str] = []
    for name, source, stamp in _sources(results):
        entry = known.get(name)
        if entry is None or entry.stamp != stamp:
            entry = _read(source, stamp)
        cached[name] = entry = _with_sinks(entry, results / name)
        if entry.row is None:
            unreadable.append(entry.problem)
        elif source.name == NAME:
            rows.append(_as_it_goes(entry.row, source.parent))
        else:
            rows.append(entry.row)
    if cached != known:
        _write_index(results, cached)
    rows.sort(key=lambda row: (row.started, row.run_id), reverse=True)
    return Catalogue(rows, unreadable)


@dataclass(frozen=True, slots=True)
class _Cached:
    """A row, or why there is none, and the time and size of the files that it came from."""

    stamp: tuple[int, int, str]
    row: RunRow | None
    problem: str = ""
    sinks: int = 0  # the time of sinks.json; 0 without it


class _Index(msgspec.Struct):
    version: int
    entries: dict[str, _Cached]


def _sources(results: Path) -> Iterator[tuple[str, Path, tuple[int, int, str]]]:
    """Each run with what tells most of it: its summary, or its journal where that is newer."""
    summaries: dict[str, os.DirEntry[str]] = {}
    folders: dict[str, os.DirEntry[str]] = {}
    with contextlib.suppress(OSError), os.scandir(results) as entries:
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                summaries[entry.name.removesuffix(".json")] = entry
            elif RUN_ID.fullmatch(entry.name):
                folders[entry.name] = entry
    for name in summaries.keys() | folders.keys():
        with contextlib.suppress(OSError):  # gone meanwhile
            yield name, *_newest(results, name, summaries.get(name), name in folders)


def _newest(
    results: Path, name: str, summary: os.DirEntry[str] | None, has_folder: bool
) -> tuple[Path, tuple[int, int, str]]:
    told = summary.stat() if summary else None
    if has_folder:
        journal = f"{results}/{name}/{NAME}"
        with contextlib.suppress(FileNotFoundError):
            lies = os.stat(journal)  # noqa: PTH116 a Path for each of 10,000 is dear
            if told is None or lies.st_mtime_ns > told.st_mtime_ns:
                return Path(journal), (lies.st_mtime_ns, lies.st_size, NAME)
    if summary is None or told is None:
        raise FileNotFoundError(name)
    return Path(summary.path), (told.st_mtime_ns, told.st_size, "")


def _read(source: Path, stamp: tuple[int, int, str]) -> _Cached:
    try:
        return _Cached(stamp, _row_of_journal(source) if source.name == NAME else _row_of_summary(source))
    except (JournalError, OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        return _Cached(
            stamp, None, str(said) if str(source) in str(said) else f"{source} is no summary of a run: {said}"
        )


def _with_sinks(entry: _Cached, folder: Path) -> _Cached:
    """With what the sinks lack, looked up again where that may have changed."""
    try:
        stamp = os.stat(f"{folder}/{SINKS}").st_mtime_ns  # noqa: PTH116 as above
    except OSError:
        return entry
    if entry.row is None or entry.sinks == stamp:
        return entry
    sinks = {name: str(standing.state) for name, standing in standing_of(folder).items()}
    behind = tuple(name for name, state in sinks.items() if state in ("behind", "down"))
    return replace(entry, row=replace(entry.row, sinks=sinks, behind=behind), sinks=stamp)


def _as_it_goes(row: RunRow, folder: Path) -> RunRow:
    """Only a run whose journal is newer than its summary can be going on, so only there the lock is looked at."""
    working = (folder / "lock").exists() and is_locked(folder)
    return replace(row, status="running") if working else row


class _Config(msgspec.Struct):
    local_model: str | None = None
    suite: str = "humaneval"
    tags: tuple[str, ...] = ()
    imported: bool = False


class _Figures(msgspec.Struct):
    total_problems: int
    success_rate: float
    successes: int | None = None
    success_rate_interval: tuple[float, float] | None = None
    total_cost: float = 0.0
    avg_iterations: float = 0.0
    cost_known: bool = True


class _Arm(msgspec.Struct):
    summary: _Figures


class _Paid(msgspec.Struct):
    total: float = 0.0


class _Head(msgspec.Struct):
    """What a line needs of a summary; whatever else it holds is passed over unread."""

    run_id: str
    mode: str
    start_time: str = ""
    duration_seconds: float = 0.0
    status: str = "complete"  # as files without it were
    planned: int | None = None
    config: _Config = msgspec.field(default_factory=_Config)
    summary: _Figures | None = None
    zero_shot: _Arm | None = None
    iterative: _Arm | None = None
    faults: list[msgspec.Raw] = []
    paid: _Paid | None = None
    simulated: bool = False


def _row_of_summary(path: Path) -> RunRow:
    head = msgspec.json.decode(path.read_bytes(), type=_Head)
    arms = _arms(head)
    return RunRow(
        run_id=head.run_id,
        status=head.status,
        mode=head.mode,
        model=head.config.local_model or "",
        suite=head.config.suite,
        started=head.start_time,
        seconds=head.duration_seconds,
        planned=sum(arm.judged for arm in arms) if head.planned is None else head.planned,
        faults=len(head.faults),
        cost=head.paid.total if head.paid else sum(arm.cost for arm in arms),
        cost_known=all(figures.cost_known for _, figures in _figures(head)),
        simulated=head.simulated,
        imported=head.config.imported,
        tags=head.config.tags,
        arms=arms,
    )


def _figures(head: _Head) -> list[tuple[str, _Figures]]:
    if head.summary is not None:
        return [(head.mode, head.summary)]
    both = (("zero-shot", head.zero_shot), ("iterative", head.iterative))
    found = [(name, arm.summary) for name, arm in both if arm is not None]
    if not found:
        raise msgspec.ValidationError("it has neither summary nor zero_shot and iterative")
    return found


def _arms(head: _Head) -> tuple[ArmRow, ...]:
    return tuple(_arm(solver, figures) for solver, figures in _figures(head))


def _arm(solver: str, found: _Figures) -> ArmRow:
    n = found.total_problems
    passed = round(found.success_rate * n / 100) if found.successes is None else found.successes
    interval = found.success_rate_interval
    if interval is None and n:
        low, high = wilson(passed, n)
        interval = (100 * low, 100 * high)
    return ArmRow(solver, n, passed, found.success_rate, interval, found.total_cost, found.avg_iterations)


def _row_of_journal(journal: Path) -> RunRow:
    """Of a run that goes on, or was cut off: as far as it came."""
    from tracker.summary import summarize

    summary = summarize(journal.parent)
    config: dict[str, Any] = summary.config
    return RunRow(
        run_id=str(summary.run_id),
        status=summary.status,
        mode=summary.mode,
        model=str(config.get("local_model") or ""),
        suite=str(config.get("suite") or ""),
        started=summary.start_time,
        seconds=summary.duration_seconds,
        planned=summary.planned,
        faults=len(summary.faults),
        cost=summary.paid["total"],
        cost_known=all(arm.summary.cost_known for arm in summary.arms.values()),
        simulated=summary.simulated,
        imported=bool(config.get("imported")),
        tags=tuple(config.get("tags") or ()),
        arms=tuple(
            ArmRow(
                solver,
                arm.summary.total_problems,
                arm.summary.successes,
                arm.summary.success_rate,
                arm.summary.success_rate_interval,
                arm.summary.total_cost,
                arm.summary.avg_iterations,
            )
            for solver, arm in summary.arms.items()
        ),
    )


def _read_index(results: Path) -> dict[str, _Cached]:
    try:
        index = msgspec.msgpack.decode((results / INDEX).read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return index.entries if index.version == _VERSION else {}


def _write_index(results: Path, entries: dict[str, _Cached]) -> None:
    """A folder that can't be written is listed all the same, only more slowly the next time."""
    draft = results / f"{INDEX}.{os.getpid()}"
    try:
        draft.write_bytes(msgspec.msgpack.encode(_Index(_VERSION, entries)))
        draft.replace(results / INDEX)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()


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


SORTS = ("started", "rate", "cost", "time", "model")


def ordered(rows: Sequence[RunRow], sort: str) -> list[RunRow]:
    """By one of SORTS: the newest, best, dearest or longest first; models by name."""
    if sort == "model":
        return sorted(rows, key=lambda row: row.model)
    keys: dict[str, Any] = {
        "rate": lambda row: row.rate,
        "cost": lambda row: row.cost,
        "time": lambda row: row.seconds,
    }
    return sorted(rows, key=keys[sort], reverse=True) if sort in keys else list(rows)
