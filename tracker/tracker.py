"""Begins, resumes, records and finishes one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from msgspec.structs import replace

from koderz_tracker.blobs import fetched, spill, whole
from koderz_tracker.errors import JournalError
from koderz_tracker.index import (
    CODES,
    ENDS,
    PAID,
    Index,
    IndexEntry,
    experiment_number,
    load_index,
    read_records,
    tell,
)
from koderz_tracker.journal import FAULTED, JUDGED, NAME, PASSED, Journal, Tally, outcome_of
from koderz_tracker.messages import share_messages
from koderz_tracker.privacy import Privacy, shown
from koderz_tracker.records import (
    Attempt,
    Call,
    Fault,
    Finished,
    Keyed,
    Once,
    Plan,
    Record,
    Resumed,
)
from koderz_tracker.runs import create_run, lock_run, read_plan

if TYPE_CHECKING:
    from filelock import BaseFileLock

_CALL, _FAULT, _MESSAGE = (CODES[name] for name in ("call", "fault", "message"))


class Listener(Protocol):
    """Hears the journal's lines once they are durable, in order, and may make whoever writes them wait."""

    def hear(self, lines: bytes) -> None:
        """Called on the event loop with lines, each with its newline."""
        ...

    async def room(self) -> None:
        """Returns once more lines may come."""
        ...


class Tracker:
    """One run that this process records. Made by `create` or `reopen`; use it as a context manager."""

    def __init__(self, folder: Path, plan: Plan, lock: BaseFileLock) -> None:
        self.folder = folder
        self.plan = plan
        self._lock = lock
        self._redone: set[int] = set()
        self._messages: set[int] = set()
        self._lost: set[int] = set()  # experiments of which something on record can't be read
        index = load_index(folder / NAME)
        self.tally = self._tally_of(index)  # by the numbers of experiments, see `experiment_number`
        self.is_finished = index.last.code == CODES["finished"]
        self._is_damaged = bool(index.damaged)
        self.privacy: Privacy | None = None  # encrypts what is recorded
        self._listener: Listener | None = None
        self._index: Index | None = index
        self._open: dict[int, list[tuple[int, int]]] = {}  # where the lines of the unfinished lie
        self._journal = Journal(folder / NAME, index, self._count)

    @classmethod
    def create(cls, results: Path, name: str, plan: Plan) -> Self:
        """Begins a run. Its folder appears with the plan in it and locked, so that no other process can take it up."""
        folder, lock = create_run(results, name, plan)
        return cls(folder, plan, lock)

    @classmethod
    def reopen(cls, folder: Path) -> Self:
        """Resumes a run. Raises KoderzError if another process holds it."""
        plan = read_plan(folder)
        lock = lock_run(folder)
        try:
            return cls(folder, plan, lock)
        except OSError as error:
            lock.release()
            raise JournalError(f"{folder} can't be opened for writing ({error.strerror})") from None
        except JournalError:
            lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()
        self._lock.release()

    async def record(self, *records: Record) -> Sequence[Record]:
        """Writes records, and returns them as readers will see them once they are durable.

        Raises StorageError where the disk refuses.
        """
        lines: list[Record] = []
        if self.privacy:
            records = tuple(self.privacy.sealed(record, self.plan) for record in records)
        for record in records:
            if isinstance(record, Call):
                lines += [
                    spill(part, self.folder) for part in share_messages(record, self._messages)
                ]
            else:
                lines.append(spill(record, self.folder))
        await self._journal.append(lines)
        if self._listener:
            await self._listener.room()
        return [
            replace(each, value=shown(each.value)) if isinstance(each, Once) else each
            for each in records
        ]

    def tell(self, listener: Listener) -> None:
        """Tells a listener of each line from now on."""
        self._listener, self._journal.on_lines = listener, listener.hear

    def select(
        self, *, faults: bool = False, judged: bool = False, causes: Collection[str] = ()
    ) -> None:
        """Selects ended experiments for this session to work on again, besides those that never ended.

        Their recorded lines become available by `recorded`. `causes`: of faults, only those of these causes.
        """
        if faults or judged:
            others = self._faults_but(causes) if causes else ()
            self._redone = self.tally.reopen([FAULTED] * faults + [JUDGED, PASSED] * judged, others)
        if self._index:
            self._find_lines(self._index, lambda experiment: experiment not in self.tally.ended)
        self._index = None

    def redo(self, faulted: Collection[int]) -> None:
        """Opens experiments again that ended in a fault in this session or before, from all they have on record."""
        wanted = {*faulted}
        self._redone |= self.tally.reopen([FAULTED], {*self.tally.ended} - wanted)
        for experiment in wanted:
            self._open.pop(experiment, None)
        self._find_lines(load_index(self.folder / NAME), wanted.__contains__)

    def _find_lines(self, index: Index, is_wanted: Callable[[int], bool]) -> None:
        """Notes where the lines of experiments lie."""
        for code, length, offset, experiment in index.columns(
            "code", "length", "offset", "experiment"
        ):
            if experiment and code != _MESSAGE and is_wanted(experiment):
                self._open.setdefault(experiment, []).append((offset, length))

    def _faults_but(self, causes: Collection[str]) -> set[int]:
        """The experiments that ended in a fault of another cause than these."""
        lines = self._index.columns("code", "length", "offset", "experiment") if self._index else ()
        last = {
            experiment: (offset, length)
            for code, length, offset, experiment in lines
            if code == _FAULT
        }
        return {
            experiment_number(record.experiment_id)
            for record in read_records(self.folder / NAME, last.values())
            if isinstance(record, Fault) and record.cause not in causes
        }

    def is_redone(self, experiment_id: str) -> bool:
        """Whether an experiment had ended before and is worked on again in this session."""
        return experiment_number(experiment_id) in self._redone

    def recorded(self, experiment_id: str) -> list[Record]:
        """The readable records of an unfinished experiment, in order."""
        number = experiment_number(experiment_id)
        spans = self._open.pop(number, ())
        found: list[Record] = []
        for record in read_records(self.folder / NAME, spans) if spans else ():
            try:
                whole(record, self.folder)
                inline = fetched(record, self.folder)
                found.append(self.privacy.opened(inline) if self.privacy else inline)
            except JournalError as error:
                self._lost.add(number)
                tell(str(error))
        if _has_gap(found):
            self._lost.add(number)
        return found

    def is_whole(self, experiment_id: str) -> bool:
        """Whether `recorded` returned all records that the experiment has."""
        return not self._is_damaged and experiment_number(experiment_id) not in self._lost

    @property
    def ended(self) -> tuple[str, str]:
        """The status of the last session and its reason; `unfinished` if it has no end on record."""
        last = load_index(self.folder / NAME).last
        (record,) = (
            read_records(self.folder / NAME, [last.span])
            if last.code == CODES["finished"]
            else (None,)
        )
        return (
            (record.status, record.reason) if isinstance(record, Finished) else ("unfinished", "")
        )

    async def begin_session(self, how: str, config: dict[str, object]) -> None:
        await self.record(Resumed(how=how, config=config))

    async def finish(self, status: str, reason: str = "") -> None:
        await self.record(Finished(status=status, reason=reason))

    def _tally_of(self, index: Index) -> Tally[int]:
        """The tally of a whole index, computed as fast as a run of 100,000 experiments needs."""
        ended: dict[int, int] = {}
        for code, success, subject in index.columns("code", "success", "experiment"):
            if code in ENDS:
                ended[subject] = outcome_of(fault=code == _FAULT, success=success)
            elif code == _MESSAGE:
                self._messages.add(subject)
        # the cost of free calls is 0
        return Tally(ended, index.count(_CALL), sum(cost for (cost,) in index.columns("cost")))

    def _count(self, entry: IndexEntry) -> None:
        if entry.code in PAID:
            self.tally.pay(entry.cost, call=entry.code == _CALL)
        elif entry.code in ENDS:
            self.tally.end(
                entry.experiment, outcome_of(fault=entry.code == _FAULT, success=entry.success)
            )
        elif entry.code == _MESSAGE:
            self._messages.add(entry.experiment)


def _has_gap(records: Sequence[Record]) -> bool:
    """Whether a call or attempt is missing before the last one present or judged, or one has lost its key."""
    if not all(record.key for record in records if isinstance(record, Keyed)):
        return True
    calls = {record.call for record in records if isinstance(record, Call)}
    attempts = {
        record.number: record.call or 0 for record in records if isinstance(record, Attempt)
    }
    return max((*calls, *attempts.values()), default=0) > len(calls) or max(
        attempts, default=0
    ) > len(attempts)
