"""Follows a run that another process works on, by reading its journal as it grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from koderz_tracker.errors import JournalError
from koderz_tracker.files import open_own
from koderz_tracker.index import read, unreadable
from koderz_tracker.journal import NAME
from koderz_tracker.records import (
    Call,
    Compute,
    Experiment,
    Fault,
    Finished,
    Record,
    Resumed,
    as_dict,
)
from koderz_tracker.tally import FAULTED, JUDGED, PASSED, Tally

_REDONE: Mapping[str, Collection[int]] = {"retry": (FAULTED,), "rescore": (FAULTED, JUDGED, PASSED)}
"""The outcomes that a session of each kind works on again."""


class Follower:
    """Counts a run's records as they come: whole lines of its journal, and lines that are only on an engine yet."""

    def __init__(
        self, folder: Path, heard: Callable[[Mapping[str, object]], None] = lambda _: None
    ) -> None:
        """`heard` is called once with the fields of each line."""
        self.tally: Tally[str] = Tally()
        self.tokens_out = 0
        self.ended = ""  # the status and reason of the last session, once it is over
        self.damaged: list[int] = []  # where the lines begin that can't be read
        self.path = folder / NAME
        self._offset = 0
        self._begun: set[str] = set()
        self._heard = heard
        # hashes of lines, so that one that stands there twice counts once
        self._folded: set[int] = set()
        # lines that weren't in the journal when they were folded
        self._elsewhere: set[tuple[object, ...]] = set()
        self._away: set[str] = set()  # experiments whose outcomes aren't in the journal
        self._since = time.monotonic()
        self._first: tuple[int, int] | None = None  # experiments and tokens at the first look

    def catch_up(self) -> None:
        """Reads all lines that were added since the last call."""
        for line in self._new_lines():
            try:
                record = read(line)
            except JournalError:
                self.damaged.append(self._offset - len(line))
                continue
            if record is None:  # of a kind that this version doesn't know
                continue
            if self._elsewhere and _key(record) in self._elsewhere:
                self._away.discard(getattr(record, "experiment_id", ""))
            elif (digest := hash(line)) not in self._folded:
                self._folded.add(digest)
                self._fold(record)
        self._first = self._first or (len(self.tally.ended), self.tokens_out)

    def add(self, line: bytes) -> None:
        """Counts a line that a remote engine has and the journal doesn't have yet."""
        with suppress(JournalError):
            if record := read(line):
                self._elsewhere.add(_key(record))
                if isinstance(record, Experiment | Fault):
                    self._away.add(record.experiment_id)
                self._fold(record)

    @property
    def done(self) -> int:
        return len(self.tally.ended)

    @property
    def recorded(self) -> int:
        """The number of experiments that have ended, counted from the journal alone."""
        return len(self.tally.ended) - len(self._away)

    @property
    def in_flight(self) -> int:
        """The number of experiments that have a call on record but no end."""
        return len(self._begun - self.tally.ended.keys())

    def pace(self) -> tuple[float, float]:
        """Experiments and tokens a second since the first call of `catch_up`."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        done, tokens = self._first or (0, 0)
        return (self.done - done) / seconds, (self.tokens_out - tokens) / seconds

    def _new_lines(self) -> Iterator[bytes]:
        try:
            with open_own(self.path, 2) as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # it is still being written, or a power cut left it torn
                    self._offset += len(line)
                    yield line
        except OSError as error:
            raise unreadable(self.path, error) from None

    def _fold(self, record: Record) -> None:
        self._heard(as_dict(record))
        match record:
            case Call():
                self._begun.add(record.experiment_id)
                self.tokens_out += record.tokens_out
                self.tally.pay(record.cost, call=True)
            case Compute():
                self.tally.pay(record.cost, call=False)
            case Experiment():
                self.tally.end(record.experiment_id, PASSED if record.success else JUDGED)
            case Fault():
                self.tally.end(record.experiment_id, FAULTED)
            case Finished():
                self.ended = ": ".join(dict.fromkeys(filter(None, (record.status, record.reason))))
                self._begun.clear()
            case Resumed():
                self.ended = ""
                # none that an earlier session left in flight is worked on as such
                self._begun.clear()
                self.tally.reopen(_REDONE.get(record.how, ()))


def _key(record: Record) -> tuple[object, ...]:
    """A key that is the same for all copies of a line, and different for other lines."""
    return tuple(getattr(record, name, None) for name in ("kind", "time", "experiment_id", "key"))
