"""All records of each experiment of a run, also while it goes on, without secrets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koderz_tracker.blobs import whole, with_texts
from koderz_tracker.errors import JournalError
from koderz_tracker.index import (
    CODES,
    DAMAGED,
    DOUBLED,
    IndexEntry,
    experiment_number,
    load_index,
    read_records,
    scan,
    tell,
)
from koderz_tracker.journal import NAME
from koderz_tracker.messages import restored
from koderz_tracker.privacy import shown
from koderz_tracker.records import (
    Attempt,
    Call,
    Experiment,
    Grade,
    LongMessage,
    Once,
    Plan,
    Record,
    Text,
)
from koderz_tracker.runs import read_plan
from koderz_tracker.scrubber import Scrubber, scrubber_of

LOST = "[this text is lost: its file in blobs/ or its line in the journal can't be read]"

_MESSAGE = CODES["message"]


class Stories:
    """The experiments of one journal, each read when it is asked for; damaged lines are left out.

    What is handed out has no secrets in it, those in `environ` among them: it is for sinks, exports and reports.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str] = os.environ, *, with_messages: bool = True
    ) -> None:
        """With `with_messages=False`, messages above 4 KB stay digests, which is faster if nobody reads them."""
        self.folder = folder
        self._with_messages = with_messages
        self._environ = environ
        self._journal = folder / NAME
        self._end = 0
        self._lines: dict[int, list[tuple[int, int]]] = {}
        self._messages: dict[int, tuple[int, int]] = {}
        self._left_out: set[int] = set()  # where lines begin that don't count

    @cached_property
    def plan(self) -> Plan:
        """The run's plan. Raises JournalError if there is none."""
        return self.scrubber.record(read_plan(self.folder))

    @cached_property
    def scrubber(self) -> Scrubber:
        """The scrubber of the run's records."""
        return scrubber_of(read_plan(self.folder), self._environ)

    def refresh(self) -> list[IndexEntry]:
        """Reads the whole lines added since the last call, and returns their entries in order."""
        index = None if self._end else load_index(self._journal)
        new = list(index or scan(self._journal, self._end))
        for entry in new:
            if entry.code in (DAMAGED, DOUBLED):
                self._left_out.add(entry.offset)
            elif entry.code == _MESSAGE:
                self._messages[entry.experiment] = entry.span
            elif entry.experiment:
                self._lines.setdefault(entry.experiment, []).append(entry.span)
            self._end = entry.offset + entry.length
        return new

    def of(self, experiment_id: str) -> list[Record]:
        """The records of an experiment in order, up to the last `refresh`, with every text and message whole.

        Where attempts were judged anew, the last verdict on each stands in its place, and those that the experiment
        came to no more are left out. So does the last grade of each item that was graded anew.
        """
        return list(
            _as_last_judged([*self.records(self._lines.get(experiment_number(experiment_id), ()))])
        )

    def lines_of(self, experiment_id: str) -> int:
        """The number of lines of the experiment, up to the last `refresh`."""
        return len(self._lines.get(experiment_number(experiment_id), ()))

    def records(self, spans: Iterable[tuple[int, int]]) -> Iterator[Record]:
        """The records at these offsets and of these lengths, with every text and message whole.

        Lines that can't be read or stand there twice are left out, and so are those of an unknown kind.
        """
        return map(self.scrubber.record, self._whole_records(spans))

    def _whole_records(self, spans: Iterable[tuple[int, int]]) -> Iterator[Record]:
        counted = (span for span in spans if span[0] not in self._left_out)
        return map(self._whole, read_records(self._journal, counted))

    def _whole(self, record: Record) -> Record:
        try:
            record = whole(record, self.folder)
        except JournalError:  # what else the run holds is worth telling
            tell(
                f"{self.folder}: texts are gone from blobs/; see koderz doctor --repair {self.folder.name}"
            )
            if isinstance(record, Once):
                record = replace(record, value=None, in_blob=False)
            else:
                record = with_texts(record, _unless_lost)
        if isinstance(record, Call):
            messages = record.messages
            if self._with_messages:
                messages = shown(
                    [each for message in messages for each in self._messages_of(message)]
                )
            return replace(record, messages=messages, tool_calls=shown(record.tool_calls))
        return replace(record, value=shown(record.value)) if isinstance(record, Once) else record

    def _messages_of(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        if "content" in message:
            return [message]
        try:
            span = self._messages[int(message["digest"][:16], 16)]
            (stored,) = self._whole_records([span])
            if isinstance(stored, LongMessage) and stored.content != LOST:
                return restored(message, str(stored.content))
        except (KeyError, TypeError, ValueError):  # the line is damaged, or never was one of ours
            pass
        return [{"role": message.get("role", ""), "content": LOST}]


def _unless_lost(name: str, text: Text) -> Text | None:
    if isinstance(text, str) or (name == "artifacts" and text.binary):
        return text
    return None if name == "program" else LOST


def _as_last_judged(records: Sequence[Record]) -> Iterator[Record]:
    last = {record.number: record for record in records if isinstance(record, Attempt)}
    if records and isinstance(ended := records[-1], Experiment) and ended.iterations:
        last = {number: attempt for number, attempt in last.items() if number <= ended.iterations}
    graded = {record.key: record for record in records if isinstance(record, Grade)}
    for record in records:
        if isinstance(record, Grade):
            if grade := graded.pop(record.key, None):
                yield grade
        elif not isinstance(record, Attempt):
            yield record
        elif record.number in last and last[record.number].key == record.key:
            yield last.pop(record.number)
