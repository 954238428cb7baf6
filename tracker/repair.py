"""A damaged run copied without its damage; the original is never changed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracker.blobs import copy_blobs, fetched, whole
from tracker.errors import JournalError, KoderzError, StorageError
from tracker.files import sync_folder
from tracker.index import DAMAGED, DOUBLED, Entry, load_index, read, read_spans
from tracker.journal import NAME
from tracker.runs import read_plan


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was found, and the copy; None where there is nothing to be repaired."""

    folder: Path | None
    kept: int  # lines
    damaged: Sequence[tuple[int, int, str]]  # lines left out: their first byte, their bytes, what is wrong
    doubled: Sequence[int]  # first bytes of lines that stand there twice, of which one is kept
    lost: Sequence[str]  # texts that are gone from blobs/, by the line that names them, which is kept


def repair(folder: Path) -> Repaired:
    """Writes what can be read of the run in `folder` into `FOLDER_repaired` beside it: its journal and its texts.

    Raises JournalError where the plan is lost, KoderzError where the copy is there already, StorageError where the
    disk refuses.
    """
    journal = folder / NAME
    read_plan(folder)
    index = load_index(journal)
    entries = list(index)
    kept = sorted((entry for entry in entries if entry.code not in (DAMAGED, DOUBLED)), key=_plan_first)
    torn = [] if index.torn is None else [(index.torn, journal.stat().st_size - index.torn)]
    damaged = [_problem(journal, span) for span in [e.span for e in entries if e.code == DAMAGED] + torn]
    doubled = [entry.offset for entry in entries if entry.code == DOUBLED]
    lost = list(_lost(folder, kept))
    if not damaged and not doubled:
        return Repaired(None, len(kept), damaged, doubled, lost)
    target = folder.with_name(f"{folder.name}_repaired")
    if target.exists():
        raise KoderzError(f"{target} is there already; remove it, or take it as it is")
    _write(folder, kept, target)
    return Repaired(target, len(kept), damaged, doubled, lost)


def _plan_first(entry: Entry) -> bool:
    return entry.kind != "plan"


def _problem(journal: Path, span: tuple[int, int]) -> tuple[int, int, str]:
    try:
        read(next(read_spans(journal, [span])))
    except JournalError as error:
        return *span, str(error)
    return *span, "not a journal line: it is about no experiment"


def _lost(folder: Path, kept: Sequence[Entry]) -> Iterator[str]:
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


def _write(folder: Path, kept: Sequence[Entry], target: Path) -> None:
    """The copy appears by rename, or not at all."""
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        draft.mkdir()
        copy_blobs(folder, draft)
        with (draft / NAME).open("wb") as file:
            file.writelines(read_spans(folder / NAME, [entry.span for entry in kept]))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(draft)
        draft.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise StorageError(f"{target} can't be written ({error.strerror}); the run itself is as it was") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
