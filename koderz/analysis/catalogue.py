"""Runs of a results folder in a line each, read from summaries or journals, and an index of them.

A row needs few fields of a run's summary, or its journal if it has no summary yet. The index, `.runs.index` in the
results folder, is a cache that can be rebuilt: a row is taken from it only where the file that it was read from still
has the size and the time that it had then. A damaged one is made anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.inspect import type_info
from msgspec.structs import replace

from koderz.analysis.logs import read_log
from koderz_tracker.basis import PASSING, Whole
from koderz_tracker.errors import KoderzError, cause_of
from koderz_tracker.files import open_own, write_whole
from koderz_tracker.journal import NAME
from koderz_tracker.messages import digest_of
from koderz_tracker.outline import check_told, stopped_early
from koderz_tracker.records import PASSES, Headline, Measure
from koderz_tracker.runs import RUN_ID, is_locked
from koderz_tracker.sinks.standing import NAME as SINKS
from koderz_tracker.sinks.standing import standing_of

if TYPE_CHECKING:
    from koderz_tracker.summary import Summary


class Average(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The average that stands for an arm whose headline isn't its success rate."""

    measure: Measure
    mean: float
    interval: tuple[float, float] | None  # 95 %


class ArmRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The figures of one arm."""

    solver: str  # the arm's name
    judged: int
    passed: int
    rate: float | None  # per cent; None where nothing was judged
    interval: tuple[float, float] | None  # 95 %, per cent
    interval_method: str | None
    cost: float  # US dollars
    iterations: float | None  # average
    simulated: bool  # it asks the simulated model
    # of the headline's measure, where that isn't success and the arm has it
    average: Average | None = None
    solved_by: str = ""  # the name of its solver; empty in files that don't say
    # the rate with its faults all failed, all passed; None without faults
    bounds: tuple[float, float] | None = None


class RunRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    damaged_lines: int  # of its journal, which are left out
    imported: bool
    tags: tuple[str, ...]
    arms: tuple[ArmRow, ...]
    sinks: Mapping[str, str] = {}  # where each stands: up to date, behind, down or off
    # those of them that lack something of it; koderz sync catches them up
    behind: tuple[str, ...] = ()
    progress: Mapping[str, int] = {}  # per cent of the run that those have
    headline: Headline = PASSING  # what its arms are summed up by
    fault_causes: Mapping[str, int] = {}  # the number of faults by cause, the commonest first
    stopped_early: str = ""  # what was decided, of a run that stopped then

    @property
    def rate(self) -> float:
        """The success rate in per cent of the last arm, the iterative one of a comparative run; -1 if there is none."""
        if self.headline.measure != PASSES:
            return -1.0
        rate = self.arms[-1].rate if self.arms else None
        return -1.0 if rate is None else rate


class _Config(msgspec.Struct):
    local_model: str | None = None
    models: tuple[str, ...] = ()  # where several answer
    suite: str = "humaneval"
    tags: tuple[str, ...] = ()
    imported: bool | str = False  # the kind of samples, or the tool whose log it is


class _Mean(msgspec.Struct):
    mean: float
    interval: tuple[float, float] | None = None


class _Figures(msgspec.Struct):
    total_problems: Whole
    success_rate: float | None = None
    successes: Whole | None = None
    success_rate_interval: tuple[float, float] | None = None
    success_rate_interval_method: str | None = None
    success_rate_bounds: tuple[float, float] | None = None
    total_cost: float = 0.0
    avg_iterations: float | None = None
    cost_known: bool = True
    measures: dict[str, _Mean] = {}


class _Result(msgspec.Struct):
    solver: str = ""


class _ArmRow(msgspec.Struct):
    summary: _Figures
    results: list[_Result] = []
    simulated: bool | None = None  # None: as the run


class _PaidCosts(msgspec.Struct):
    total: float = 0.0


class _Fault(msgspec.Struct):
    reason: str = ""
    cause: str = ""


class _Head(msgspec.Struct):
    """The fields of a summary that a line needs; other fields are skipped unread."""

    run_id: str
    mode: str
    start_time: str = ""
    duration_seconds: float = 0.0
    status: str = "complete"  # as files without it were
    planned: Whole | None = None
    config: _Config = msgspec.field(default_factory=_Config)
    summary: _Figures | None = None
    zero_shot: _ArmRow | None = None
    iterative: _ArmRow | None = None
    arms: dict[str, _ArmRow] = {}
    faults: list[_Fault] = []
    paid: _PaidCosts | None = None
    simulated: bool = False
    generated: str = ""
    damaged_lines: Whole = 0
    measures: list[Measure] = []
    headline: Headline = PASSING
    decision: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_told(self.decision)


_HEAD = msgspec.json.Decoder(_Head)


def row_of_summary(data: bytes, sinks: Mapping[str, str]) -> RunRow:
    """The row of a summary file. Raises msgspec.DecodeError or UnicodeDecodeError for any other file."""
    return _row(_HEAD.decode(data), sinks)


def row_of_log(summary: Summary, name: str) -> RunRow:
    """The row of another tool's log, which goes by the name of its file."""
    started = summary.start_time
    with suppress(ValueError):  # of what is no time
        started = datetime.fromisoformat(started).astimezone().replace(tzinfo=None).isoformat()
    named = dataclasses.replace(summary, run_id=name, start_time=started)
    return _row(msgspec.convert(named, _Head, from_attributes=True), {})


def row_of_journal(journal: Path, sinks: Mapping[str, str]) -> RunRow:
    """The row of an unfinished run, from its journal. Raises JournalError if that is damaged."""
    from koderz_tracker.summary import summarize

    return _row(msgspec.convert(summarize(journal.parent), _Head, from_attributes=True), sinks)


def _row(head: _Head, sinks: Mapping[str, str]) -> RunRow:
    figures = _figures(head)
    marked = {name: arm.simulated for name, arm in head.arms.items() if arm.simulated is not None}
    solvers = {name: arm.results[0].solver for name, arm in head.arms.items() if arm.results}
    arms = tuple(
        replace(
            _arm(name, found, marked.get(name, head.simulated), _average(head, found)),
            solved_by=solvers.get(name, ""),
        )
        for name, found in figures
    )
    planned = sum(arm.judged for arm in arms) if head.planned is None else head.planned
    asked = sum(arm.judged for arm in arms) + len(head.faults)
    return RunRow(
        run_id=head.run_id,
        status=head.status,
        mode=head.mode,
        model=", ".join(head.config.models) or head.config.local_model or "",
        suite=head.generated or head.config.suite,
        started=head.start_time,
        seconds=head.duration_seconds,
        planned=planned,
        faults=len(head.faults),
        cost=head.paid.total if head.paid else sum(arm.cost for arm in arms),
        cost_known=all(found.cost_known for _, found in figures),
        simulated=head.simulated,
        damaged_lines=head.damaged_lines,
        imported=bool(head.config.imported),
        tags=head.config.tags,
        arms=arms,
        sinks=sinks,
        headline=head.headline,
        stopped_early=stopped_early(head.decision, went_on=asked >= planned),
        fault_causes=dict(
            Counter(each.cause or cause_of(each.reason) for each in head.faults).most_common()
        ),
        behind=tuple(name for name, state in sinks.items() if state in ("behind", "down")),
    )


def _figures(head: _Head) -> list[tuple[str, _Figures]]:
    if head.arms:
        return [(name, arm.summary) for name, arm in head.arms.items()]
    if head.summary is not None:
        return [(head.mode, head.summary)]
    both = (("zero-shot", head.zero_shot), ("iterative", head.iterative))
    found = [(name, arm.summary) for name, arm in both if arm is not None]
    if not found:
        raise msgspec.ValidationError("it has neither summary nor zero_shot and iterative nor arms")
    return found


def _arm(solver: str, found: _Figures, simulated: bool, average: Average | None) -> ArmRow:
    n, bounds = found.total_problems, found.success_rate_bounds
    if not n:
        return ArmRow(
            solver, 0, 0, None, None, None, found.total_cost, None, simulated, bounds=bounds
        )
    passed = (
        round((found.success_rate or 0.0) * n / 100) if found.successes is None else found.successes
    )
    interval, method = found.success_rate_interval, found.success_rate_interval_method
    if interval is None and method is None:
        from koderz_tracker.rates import WILSON, wilson  # few files are so old

        low, high = wilson(passed, n)
        interval, method = (100 * low, 100 * high), WILSON
    rate, iterations = 100 * passed / n, found.avg_iterations
    return ArmRow(
        solver,
        n,
        passed,
        rate,
        interval,
        method,
        found.total_cost,
        iterations,
        simulated,
        average,
        bounds=bounds,
    )


def _average(head: _Head, found: _Figures) -> Average | None:
    """The average of the headline measure, if that isn't success."""
    named = head.headline.measure
    mean = found.measures.get(named)
    measure = next((each for each in head.measures if each.name == named), None)
    return Average(measure, mean.mean, mean.interval) if mean and measure else None


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
