"""A run as it grows, seen from another process: only its journal is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from tracker.errors import JournalError
from tracker.index import read, unreadable
from tracker.journal import NAME
from tracker.records import as_dict
from tracker.tally import FAULTED, JUDGED, PASSED, Tally, outcome_of

_REDONE: Mapping[str, Collection[int]] = {"retry": (FAULTED,), "rescore": (FAULTED, JUDGED, PASSED)}
"""Which outcomes are worked on again, by how a session begins."""


class Follower:
    """Folds the whole lines of a journal as they come, and those that are only elsewhere yet."""

    def __init__(self, folder: Path, heard: Callable[[Mapping[str, object]], None] = lambda _: None) -> None:
        """`heard` is told the fields of each line, once."""
        self.tally: Tally[str] = Tally()
        self.tokens_out = 0
        self.ended = ""  # the status and reason of the last session, once it is over
        self.damaged: list[int] = []  # where the lines begin that can't be read
        self.path = folder / NAME
        self._offset = 0
        self._begun: set[str] = set()
        self._heard = heard
        self._folded: set[int] = set()  # hashes of lines, so that one that stands there twice counts once
        self._elsewhere: set[tuple[object, ...]] = set()  # lines that weren't in the journal when they were folded
        self._away: set[str] = set()  # experiments whose outcomes aren't in the journal
        self._since = time.monotonic()
        self._first: tuple[int, int] | None = None  # experiments and tokens at the first look

    def catch_up(self) -> None:
        """Reads what has been added since the last look."""
        for line in self._new_lines():
            try:
                fields = _fields(line)
            except JournalError:
                self.damaged.append(self._offset - len(line))
                continue
            if self._elsewhere and _key(fields) in self._elsewhere:
                self._away.discard(str(fields.get("experiment_id")))
            elif (digest := hash(line)) not in self._folded:
                self._folded.add(digest)
                self._fold(fields)
        self._first = self._first or (len(self.tally.ended), self.tokens_out)

    def add(self, line: bytes) -> None:
        """Folds a line that an engine elsewhere has, and that the journal doesn't have yet."""
        try:
            fields = _fields(line)
        except JournalError:
            return
        self._elsewhere.add(_key(fields))
        if fields.get("kind") in ("experiment", "fault"):
            self._away.add(str(fields.get("experiment_id")))
        self._fold(fields)

    @property
    def done(self) -> int:
        return len(self.tally.ended)

    @property
    def recorded(self) -> int:
        """Experiments that have ended by the journal alone."""
        return len(self.tally.ended) - len(self._away)

    @property
    def in_flight(self) -> int:
        """Experiments that have a call on record but no end."""
        return len(self._begun - self.tally.ended.keys())

    def pace(self) -> tuple[float, float]:
        """Experiments and tokens a second since the first look."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        done, tokens = self._first or (0, 0)
        return (self.done - done) / seconds, (self.tokens_out - tokens) / seconds

    def _new_lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # it is still being written, or a power cut left it torn
                    self._offset += len(line)
                    yield line
        except OSError as error:
            raise unreadable(self.path, error) from None

    def _fold(self, line: dict[str, object]) -> None:
        kind, experiment = line.get("kind"), str(line.get("experiment_id"))
        self._heard(line)
        if kind == "call":
            self._begun.add(experiment)
            self.tokens_out += int(str(line.get("tokens_out", 0)))
        if kind in ("call", "compute"):
            self.tally.pay(float(str(line.get("cost", 0.0))), call=kind == "call")
        elif kind in ("experiment", "fault"):
            self.tally.end(experiment, outcome_of(fault=kind == "fault", success=line.get("success")))
        elif kind == "finished":
            self.ended = ": ".join(dict.fromkeys(str(line[name]) for name in ("status", "reason") if line.get(name)))
            self._begun.clear()
        elif kind == "resumed":
            self.ended = ""
            self._begun.clear()  # none that an earlier session left in flight is worked on as such
            self.tally.reopen(_REDONE.get(str(line.get("how")), ()))


def _fields(line: bytes) -> dict[str, object]:
    """What a line says, as far as this version knows its kind. Raises JournalError for one that can't be read."""
    record = read(line)
    return {} if record is None else as_dict(record)


def _key(line: Mapping[str, object]) -> tuple[object, ...]:
    """What tells a line from all others, wherever it was copied to."""
    return tuple(line.get(name) for name in ("kind", "time", "experiment_id", "key"))
