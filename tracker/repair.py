"""Copies a damaged run without its damage; the original is never changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from koderz_tracker.blobs import copy_blobs, fetched, whole
from koderz_tracker.errors import JournalError, KoderzError, StorageError
from koderz_tracker.files import whole_folder, write_whole
from koderz_tracker.index import DAMAGED, DOUBLED, IndexEntry, load_index, read, read_spans
from koderz_tracker.journal import NAME
from koderz_tracker.runs import read_plan


@dataclass(frozen=True, slots=True)
class Repaired:
    """The damage that was found, and the folder of the copy; None if there was nothing to repair."""

    folder: Path | None
    kept: int  # lines; these names are keys of the JSON of `koderz doctor --repair`
    damaged: Sequence[tuple[int, int, str]]  # lines left out: their first byte, their bytes, what is wrong
    doubled: Sequence[int]  # first bytes of lines that stand there twice, of which one is kept
    lost: Sequence[str]  # texts that are gone from blobs/, by the line that names them, which is kept


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
        raise StorageError(f"{target} can't be written ({error.strerror}); the run itself is as it was") from None
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
