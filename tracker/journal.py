"""The append-only journal of one run: `journal.jsonl`, one record a line, durable before it counts.

Lines are written by one thread that takes whatever has gathered while the last group was being made
durable: a busy run pays for one fsync a group, an idle one for one a line. Another process follows the run by reading
them as the file grows. Running totals are counted of them by both.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from koderz_tracker.errors import JournalError, StorageError
from koderz_tracker.files import open_own, write_whole
from koderz_tracker.index import (
    Index,
    IndexEntry,
    entry_of,
    header,
    index_path,
    pack,
    read,
    unreadable,
)
from koderz_tracker.records import (
    Call,
    Compute,
    Experiment,
    Fault,
    Finished,
    Record,
    Resumed,
    as_dict,
    encode,
)

if TYPE_CHECKING:
    import asyncio


K = TypeVar("K", bound=Hashable)

FAULTED, JUDGED, PASSED = range(3)
"""The outcomes of an experiment: fault, judged as failed, or passed."""


class Tally(Generic[K]):
    """The last outcome of each experiment, by any key that tells experiments apart, and what was paid."""

    def __init__(
        self, ended: Mapping[K, int] | None = None, calls: int = 0, cost: float = 0.0
    ) -> None:
        self.calls = calls
        self.cost = cost  # US dollars
        self.ended = dict(ended or {})
        self._ends = Counter(self.ended.values())

    @property
    def judged(self) -> int:
        return self._ends[JUDGED] + self._ends[PASSED]

    @property
    def passed(self) -> int:
        return self._ends[PASSED]

    @property
    def faults(self) -> int:
        return self._ends[FAULTED]

    def end(self, experiment: K, outcome: int) -> None:
        """Counts the end of an experiment in place of its earlier outcome."""
        if (before := self.ended.get(experiment)) is not None:
            self._ends[before] -= 1
        self.ended[experiment] = outcome
        self._ends[outcome] += 1

    def pay(self, cost: float, *, call: bool) -> None:
        """Counts a call, or another expense in US dollars."""
        self.calls += call
        self.cost += cost

    def reopen(self, outcomes: Collection[int], but: Collection[K] = ()) -> set[K]:
        """Removes the experiments with these outcomes `but` some, which are worked on again, and returns them."""
        again = {
            experiment for experiment, outcome in self.ended.items() if outcome in outcomes
        } - {*but}
        for experiment in again:
            self._ends[self.ended.pop(experiment)] -= 1
        return again


def outcome_of(*, fault: bool, success: object) -> int:
    """The outcome of an experiment."""
    if fault:
        return FAULTED
    return PASSED if success else JUDGED


NAME = "journal.jsonl"


@dataclass(slots=True)
class _Write:
    """Lines that become durable together, and the future of the task that waits for them."""

    data: bytes
    entries: list[IndexEntry]
    done: asyncio.Future[None]


class Journal:
    """Appends records to a journal that only this process holds open."""

    def __init__(self, path: Path, index: Index, on_durable: Callable[[IndexEntry], None]) -> None:
        """Opens the journal at the end of its last whole line; a torn line after it is cut off.

        `on_durable` is called for each line, in order, on the event loop, before its writer goes on.
        """
        # 20 ms, which whoever only reads journals has not to spend
        from asyncio import get_running_loop

        self.path = path
        # called with lines that became durable, after on_durable
        self.on_lines: Callable[[bytes], None] | None = None
        self._on_durable = on_durable
        self._file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._size, self._crc = index.end, index.last.crc
        os.ftruncate(self._file, self._size)
        self._index = _open_index(path, index)
        self._check = index.check
        self._queue: list[_Write] = []
        self._wake = threading.Condition()
        self._closing = False
        self._error: StorageError | None = None
        self._loop = get_running_loop()
        self._thread = threading.Thread(
            target=self._write_groups, name="koderz-journal", daemon=True
        )
        self._thread.start()

    async def append(self, records: Sequence[Record]) -> None:
        """Writes records and returns once they are on disk. Raises StorageError if they can't be written."""
        from asyncio import shield

        lines = [encode(record) for record in records]
        done = self._loop.create_future()
        with self._wake:
            if self._error:
                raise self._error
            entries = []
            for record, line in zip(records, lines, strict=True):
                entry = entry_of(record, line, self._size, self._crc)
                entries.append(entry)
                self._size, self._crc = sum(entry.span), entry.crc
            self._queue.append(_Write(b"".join(lines), entries, done))
            self._wake.notify()
        await shield(done)

    def close(self) -> None:
        """Writes all waiting lines, then closes the files."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        os.close(self._file)
        if self._index is not None:
            os.close(self._index)

    def _write_groups(self) -> None:
        durable = os.lseek(self._file, 0, os.SEEK_END)
        while group := self._next_group():
            if self._error is None:
                durable = self._write(group, durable)
            # A loop that is closed has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._settle, group, self._error)

    def _next_group(self) -> list[_Write]:
        with self._wake:
            while not self._queue and not self._closing:
                self._wake.wait()
            group, self._queue = self._queue, []
            return group

    def _write(self, group: list[_Write], durable: int) -> int:
        """Writes a group of lines durably; returns the journal's new size."""
        data = b"".join(write.data for write in group)
        try:
            _write_all(self._file, data)
            os.fdatasync(self._file) if hasattr(os, "fdatasync") else os.fsync(self._file)
            if not os.fstat(self._file).st_nlink:  # what is written now is gone with this process
                raise OSError(errno.ENOENT, "it was deleted")
        except OSError as error:
            with contextlib.suppress(OSError):  # a torn line is dropped on reading too
                os.ftruncate(self._file, durable)
            with self._wake:
                self._error = StorageError(_explain(error, self.path))
            return durable
        self._write_index(group)
        return durable + len(data)

    def _write_index(self, group: list[_Write]) -> None:
        if self._index is None:
            return
        try:
            packed, self._check = pack(
                (entry for write in group for entry in write.entries), self._check
            )
            _write_all(self._index, packed)
        except OSError:  # the cache is not worth a run; what it lacks is read off the journal
            os.close(self._index)
            self._index = None

    def _settle(self, group: list[_Write], error: StorageError | None) -> None:
        for write in group:
            if error is None:
                for entry in write.entries:
                    self._on_durable(entry)
            if error is None:
                if self.on_lines:
                    self.on_lines(write.data)
                write.done.set_result(None)
            else:
                write.done.set_exception(error)
                write.done.exception()  # its writer may have been cancelled: then nobody asks


def _open_index(journal: Path, index: Index) -> int | None:
    """Opens the index's file and brings it up to date; None if it can't be written."""
    path = index_path(journal)
    with open_own(journal, 2) as lines:
        head = header(lines.readline())
    try:
        if not index.cached:
            write_whole(path, [head], durable=False)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        os.ftruncate(file, len(head) + index.cached)  # an entry may be torn
        _write_all(file, index.packed[index.cached :])
    except OSError:
        return None
    return file


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _explain(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk that holds {path} is full; make room, then resume the run: nothing paid for is lost"
    if error.errno == errno.ENOENT:
        return f"{path} was deleted while the run was recorded in it, so the run ends here; begin another one"
    return f"{path} can't be written ({error.strerror}); what was recorded is safe, resume the run once it can"


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
