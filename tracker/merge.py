"""Copies of runs in a results folder: of those of another machine, and of damaged ones without their damage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from koderz_tracker.blobs import copy_blobs, copy_file, fetched, whole
from koderz_tracker.errors import JournalError, KoderzError, StorageError
from koderz_tracker.files import pieces, whole_folder, write_whole
from koderz_tracker.index import (
    DAMAGED,
    DOUBLED,
    IndexEntry,
    index_path,
    load_index,
    read,
    read_spans,
)
from koderz_tracker.journal import NAME
from koderz_tracker.runs import RUN_ID, lock_run, read_plan, run_folders
from koderz_tracker.sinks import JSON
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.sinks.standing import mark_up_to_date

What = Literal["added", "extended", "there already", "behind"]


class ConflictError(KoderzError):
    """Two journals of one run that differ before the end of the shorter one."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of importing one run."""

    run_id: str
    what: What  # "behind": the one here is longer, and stays


def foreign_runs(path: Path) -> list[Path]:
    """The folders of the runs in `path`: a results folder, or one run's own.

    Raises KoderzError where there is none.
    """
    if (path / NAME).is_file():
        return [path]
    if found := run_folders(path):
        return found
    raise KoderzError(f"{path} holds no run: no folder in it has a {NAME}")


def merge_run(folder: Path, results: Path, *, summary: bool = True) -> Merged:
    """Copies a run into `results`. A longer journal replaces the one here if it begins with the same lines.

    `summary`: with the summary file of a run that is new here. One that is there already is brought up to date.
    Only whole lines are taken, so the run may be going on over there. Raises ConflictError where the two have
    gone different ways, JournalError where the foreign one has no plan, StorageError where the disk refuses.
    """
    run_id = read_plan(folder).run_id or ""
    if not RUN_ID.fullmatch(run_id):
        raise KoderzError(f"{folder} is a single experiment, not a run; only runs are imported")
    end = load_index(folder / NAME).end
    own = results / run_id
    if own.resolve() == folder.resolve():
        return Merged(run_id, "there already")
    try:
        results.mkdir(parents=True, exist_ok=True)
        if not (own / NAME).exists() and _add(folder, end, own, summary=summary):
            return Merged(run_id, "added")
        if (what := _relation(folder, end, own)) != "extended":
            return Merged(run_id, what)
        with lock_run(own):
            # Only while the run is locked is it sure how its journal relates to the longer foreign one.
            if (what := _relation(folder, end, own)) == "extended":
                copy_blobs(folder, own)
                index_path(own / NAME).unlink(missing_ok=True)
                copy_file(folder / NAME, own / NAME, end)
                if own.with_suffix(".json").exists():
                    write_summary(own)
            return Merged(run_id, what)
    except OSError as error:
        raise StorageError(
            f"{own} can't be written ({error.strerror}); what is here is as it was"
        ) from None


def _add(folder: Path, end: int, own: Path, *, summary: bool) -> bool:
    """Adds a run that is new here, whole or not at all, by renaming. False if another import was faster."""
    try:
        with whole_folder(own) as draft:
            copy_blobs(folder, draft)
            copy_file(folder / NAME, draft / NAME, end)
    except OSError:
        if (own / NAME).exists():
            return False
        raise
    if summary:
        write_summary(own)
        mark_up_to_date(own, JSON)
    return True


def _relation(folder: Path, end: int, own: Path) -> What:
    """The relation of the run here to the foreign one: "extended" if the foreign journal continues it."""
    ours = load_index(own / NAME).end
    both = min(ours, end)
    if not all(
        one == other
        for one, other in zip(pieces(folder / NAME, both), pieces(own / NAME, both), strict=True)
    ):
        raise ConflictError(
            f"{own.name}: the journal in {folder} and the one here have different records; both are left unchanged"
        )
    if end > ours:
        return "extended"
    return "there already" if end == ours else "behind"


@dataclass(frozen=True, slots=True)
class Repaired:
    """The damage that was found, and the folder of the copy; None if there was nothing to repair."""

    folder: Path | None
    kept: int  # lines; these names are keys of the JSON of `koderz doctor --repair`
    # lines left out: their first byte, their bytes, what is wrong
    damaged: Sequence[tuple[int, int, str]]
    doubled: Sequence[int]  # first bytes of lines that stand there twice, of which one is kept
    # texts that are gone from blobs/, by the line that names them, which is kept
    lost: Sequence[str]


def repair(folder: Path) -> Repaired:
    """Writes the readable part of the run in `folder`, journal and texts, into `FOLDER_repaired` beside it.

    Raises JournalError where the plan is lost, KoderzError where the copy is there already, StorageError where the
    disk refuses.
    """
    journal = folder / NAME
    read_plan(folder)
    index = load_index(journal)
    entries = list(index)
    sound = [entry for entry in entries if entry.code not in (DAMAGED, DOUBLED)]
    sound.sort(key=lambda entry: entry.kind != "plan")
    torn = [] if index.torn is None else [(index.torn, journal.stat().st_size - index.torn)]
    damaged = []
    for span in [entry.span for entry in entries if entry.code == DAMAGED] + torn:
        problem = "not a journal line: it is about no experiment"
        try:
            read(next(read_spans(journal, [span])))
        except JournalError as error:
            problem = str(error)
        damaged.append((*span, problem))
    doubled = [entry.offset for entry in entries if entry.code == DOUBLED]
    lost = list(_lost(folder, sound))
    if not damaged and not doubled:
        return Repaired(None, len(sound), damaged, doubled, lost)
    target = folder.with_name(f"{folder.name}_repaired")
    if target.exists():
        raise KoderzError(f"{target} is there already; remove it, or take it as it is")
    try:
        with whole_folder(target) as draft:
            copy_blobs(folder, draft)
            write_whole(draft / NAME, read_spans(journal, [entry.span for entry in sound]))
    except OSError as error:
        raise StorageError(
            f"{target} can't be written ({error.strerror}); the run itself is as it was"
        ) from None
    return Repaired(target, len(sound), damaged, doubled, lost)


def _lost(folder: Path, kept: Sequence[IndexEntry]) -> Iterator[str]:
    journal = folder / NAME
    for entry, line in zip(kept, read_spans(journal, [entry.span for entry in kept]), strict=True):
        if b'"blob"' not in line:
            continue
        record = read(line)
        try:
            if record is not None:
                fetched(whole(record, folder), folder)
        except JournalError as error:
            yield f"byte {entry.offset}: {error}"
