"""Copies of runs to be published: with `[redacted]` in place of secrets, or without replies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from koderz.systems.publishing.share import PUBLISHED
from koderz_tracker.blobs import copy_blobs, spill, whole
from koderz_tracker.files import open_own, write_whole
from koderz_tracker.index import read_records, scan
from koderz_tracker.journal import NAME
from koderz_tracker.records import Attempt, Call, LongMessage, Once, Plan, Record, encode
from koderz_tracker.runs import read_plan
from koderz_tracker.scrubber import Scrubber, scrubber_of
from koderz_tracker.sinks.json import write_summary

_MOST = 100  # places that are named


class SecretPlace(NamedTuple):
    """A line in which something looks like a secret."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


def secrets_in(folder: Path, summary: Path, environ: Mapping[str, str] = os.environ) -> list[SecretPlace]:
    """The lines of a run's journal and summary that hold secrets, texts in blobs included; at most 100."""
    scrubber = scrubber_of(read_plan(folder), environ)
    found: list[SecretPlace] = []
    for number, record in _numbered(folder):
        if len(found) < _MOST and _scrubbed(record, folder, scrubber) != whole(record, folder):
            found.append(SecretPlace(f"{folder.name}/{NAME}", number))
    with open_own(summary) as lines:
        for number, data in enumerate(lines, 1):
            line = data.decode("utf-8", "replace")
            if len(found) < _MOST and scrubber.text(line) != line:
                found.append(SecretPlace(summary.name, number))
    return found


def published_copy(
    folder: Path, target: Path, *, redact: bool, replies: bool, environ: Mapping[str, str] = os.environ
) -> tuple[Path, Path]:
    """Makes a copy of a run in the folder `target`, and returns its folder and summary.

    With `redact`, secrets are replaced; without `replies`, all texts of models and programs are left out. The plan of
    the copy says so under `environment.published`.
    """
    copy = target / folder.name
    copy.mkdir(parents=True)
    copy_blobs(folder, copy)
    scrubber = scrubber_of(read_plan(folder), environ)

    def lines() -> Iterator[bytes]:
        for _, record in _numbered(folder):
            each = _scrubbed(record, folder, scrubber) if redact else whole(record, folder)
            each = each if replies else _without_replies(each)
            if isinstance(each, Plan):
                each = replace(
                    each, environment={**each.environment, PUBLISHED: {"redacted": redact, "replies": replies}}
                )
            if not isinstance(each, LongMessage) or replies:
                yield encode(spill(each, copy))

    write_whole(copy / NAME, lines())
    text = (copy / NAME).read_bytes()
    for path in (copy / "blobs").glob("*.gz"):
        if path.name.removesuffix(".gz").encode() not in text:  # no line names it any more
            path.unlink()
    return copy, write_summary(copy)[0]


def _numbered(folder: Path) -> Iterator[tuple[int, Record]]:
    """The records of a journal, each with the number of its line."""
    journal = folder / NAME
    for number, entry in enumerate(scan(journal, 0), 1):
        yield from ((number, record) for record in read_records(journal, [entry.span]) if entry.kind)


def _scrubbed(record: Record, folder: Path, scrubber: Scrubber) -> Record:
    return scrubber.record(whole(record, folder))


def _without_replies(record: Record) -> Record:
    match record:
        case Call():
            return replace(record, messages=[], reply="", text=None, reasoning="", tool_calls=[], body="")
        case Attempt():
            return replace(record, program=None, feedback="", detail="", artifacts={})
        case Once():
            return replace(record, value=None, in_blob=False)
        case Plan():
            return replace(record, details={**record.details, "questions": {}})
        case _:
            return record
