"""Runs that are over are brought level with their sinks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.runs.documents import lacks_documents, write_documents
from tracker.runs import find_run, is_locked, run_folders
from tracker.sinks import JSON
from tracker.sinks.feeder import HUNG
from tracker.sinks.jobs import Job
from tracker.sinks.json import write_summary
from tracker.sinks.process import SinkProcess, Submission, Watch
from tracker.sinks.projection import Held, is_outdated, start_again
from tracker.sinks.standing import mark_up_to_date, standing_of

ANOTHER = "another koderz process works on this run"
_TO_LET_GO = 10.0  # seconds that the process has which has fed a run a moment ago, and looks whether it goes on


@dataclass(frozen=True, slots=True)
class Backlog:
    """A run, and the sinks that are to be brought level with it."""

    folder: Path
    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Synced:
    """How it went with one sink of one run."""

    run_id: str
    sink: str
    state: str  # "up to date" or "behind"
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which sinks of which runs are meant."""

    runs: Sequence[str] = ()  # as users name them; none: all that lack something
    sinks: tuple[str, ...] = ()  # that are on where a run doesn't say otherwise
    named: bool = False  # whether these were asked for, so that a run has no say
    refused: Sequence[str] = ()  # left as they are, whatever a run says
    options: Mapping[str, Any]
    rebuild: bool = False
    patient: bool = False  # try again where a sink is down


def choose_work(results: Path, choice: Choice) -> list[Backlog]:
    """What there is to do, oldest run first. Raises KoderzError for a run that isn't there.

    A run that another process works on is left out unless it was named: that process feeds its sinks.
    """
    folders = [find_run(results, name) for name in choice.runs] or run_folders(results)
    work = [Backlog(folder, _lacking(folder, choice)) for folder in dict.fromkeys(folders)]
    return [each for each in work if each.sinks and (choice.runs or not is_locked(each.folder))]


def _lacking(folder: Path, choice: Choice) -> tuple[str, ...]:
    """The sinks that aren't up to date, or all where they are to be made anew; never one that is turned off."""
    standings = standing_of(folder)
    on = [name for name, standing in standings.items() if standing.state != "off"]
    names = choice.sinks if choice.named else dict.fromkeys((*choice.sinks, *on))
    lacking = []
    for name in names:
        standing = standings.get(name)
        if name in choice.refused or (standing and standing.state == "off" and not choice.named):
            continue
        is_level = standing and standing.state == "up to date" and not is_outdated(standing, name, choice.options)
        if choice.rebuild or not is_level or (name == JSON and _is_away(folder, named=bool(choice.runs))):
            lacking.append(name)
    return tuple(lacking)


def _is_away(folder: Path, *, named: bool) -> bool:
    """Whether the summary file is gone, or a document; one that other runs write, too, only where the run is named."""
    return not folder.with_suffix(".json").exists() or lacks_documents(folder, shared=named)


def sync_runs(
    work: Sequence[Backlog],
    choice: Choice,
    *,
    environ: Mapping[str, str],
    patience: float,
    showing: Callable[[str], AbstractContextManager[Watch]] = lambda _: nullcontext(lambda _: None),
) -> Iterator[Synced]:
    """Does the work run by run, saying how each sink of it went; a sink that hangs is not tried again.

    `showing` is called with each run's id for what shows its progress. Raises KoderzError where a sink that is
    to be made anew is in use.
    """
    if choice.rebuild:
        _forget(work)
    renew = {name for each in work for name in each.sinks} if choice.rebuild and not choice.runs else set()
    hopeless: dict[str, str] = {}
    process_of = functools.cache(lambda results: SinkProcess(results, environ))
    for each in work:
        yield from _summary_of(each)
        jobs = [job for job in _jobs(each, choice, patience, renew) if job.sink not in hopeless]
        behind: Mapping[str, str] = {}
        if jobs:
            submission = Submission(process_of(each.folder.parent), each.folder, jobs)
            with showing(each.folder.name) as watch:
                behind = submission.wait(watch)
        behind = {**hopeless, **behind}
        hopeless |= {name: why for name, why in behind.items() if choice.rebuild or why.startswith(HUNG)}
        renew -= {job.sink for job in jobs}
        for name in (name for name in each.sinks if name != JSON):
            yield Synced(each.folder.name, name, "behind" if name in behind else "up to date", behind.get(name, ""))


def leave_runs(work: Sequence[Backlog], choice: Choice, *, environ: Mapping[str, str], patience: float) -> None:
    """Has the work done in the background, but for the summary files. Raises KoderzError for one of those."""
    for each in work:
        for synced in _summary_of(each):
            if synced.reason:
                raise KoderzError(synced.reason)
        if jobs := _jobs(each, choice, patience):
            Submission(SinkProcess(each.folder.parent, environ), each.folder, jobs)


def _jobs(each: Backlog, choice: Choice, patience: float, renew: Collection[str] = ()) -> list[Job]:
    run, options, patient = each.folder.name, choice.options, choice.patient
    return [
        Job(run=run, sink=name, options=options, patience=patience, patient=patient, renew=name in renew)
        for name in each.sinks
        if name != JSON
    ]


def _forget(work: Sequence[Backlog]) -> None:
    """Every cursor is set back before a target is made anew, so that a crash in between loses nothing."""
    for each in work:
        for name in each.sinks:
            try:
                if name != JSON:
                    start_again(each.folder, name, _TO_LET_GO)
            except Held as error:
                raise KoderzError(f"{each.folder.name}, sink {name}: {error}; wait for it to end") from None


def _summary_of(work: Backlog) -> Iterator[Synced]:
    if JSON not in work.sinks:
        return
    if is_locked(work.folder):
        yield Synced(work.folder.name, JSON, "behind", ANOTHER)
        return
    try:
        _, summary = write_summary(work.folder)
        write_documents(work.folder, summary)
        mark_up_to_date(work.folder, JSON)
    except KoderzError as error:
        yield Synced(work.folder.name, JSON, "behind", str(error))
    else:
        yield Synced(work.folder.name, JSON, "up to date")
