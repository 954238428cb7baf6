"""The batches of a run, read from its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from koderz_tracker.index import CODES, Index, load_index, read_records, read_spans
from koderz_tracker.journal import NAME
from koderz_tracker.records import Batch

_BATCH, _CALL = CODES["batch"], CODES["call"]

FREED = ("lost", "failed", "gone")
"""The states of batches whose calls have to be sent again: nothing was paid for them, or its results are no more."""

ENDED = (*FREED, "completed", "expired", "cancelled", "ended")
"""The states of batches of which nothing more will come."""


class LineOfBatch(NamedTuple):
    """A call as it stands in a batch."""

    custom_id: str
    digest: str  # of its request
    dollars: float  # that it was likely to cost


class _Answered(Struct):
    """The part of a call's line that says in which batch it was answered."""

    batch: dict[str, str] | None = None


def batches_in(folder: Path, index: Index | None = None) -> list[Batch]:
    """The last state of each batch of a run, in the order of sending, each with the `time` and `lines` of its first."""
    journal = folder / NAME
    found: dict[str, Batch] = {}
    columns = (index or load_index(journal)).columns("code", "length", "offset")
    for record in read_records(
        journal, [(offset, length) for code, length, offset in columns if code == _BATCH]
    ):
        if isinstance(record, Batch):
            first = found.get(record.name)
            if first and not record.lines:
                record = replace(record, time=first.time, lines=first.lines, newest=first.newest)
            found[record.name] = record
    return [*found.values()]


def lines_of(batch: Batch) -> list[LineOfBatch]:
    """The calls in a batch."""
    split = (line.split() for line in batch.lines.splitlines())
    return [LineOfBatch(name, digest, float(dollars)) for name, digest, dollars in split]


def answered_in(folder: Path) -> set[str]:
    """The custom ids of the calls whose answers are on record."""
    columns = load_index(folder / NAME).columns("code", "length", "offset")
    spans = [(offset, length) for code, length, offset in columns if code == _CALL]
    decoder = msgspec.json.Decoder(_Answered)
    answered = (decoder.decode(line).batch for line in read_spans(folder / NAME, spans))
    return {batch["custom_id"] for batch in answered if batch}


def told_batches(folder: Path, index: Index | None = None) -> list[dict[str, Any]]:
    """The batches in the form in which a summary has them."""
    names = ("id", "state", "provider", "model", "count", "done", "failed", "reason", "time")
    return [{name: getattr(batch, name) for name in names} for batch in batches_in(folder, index)]
