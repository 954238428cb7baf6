"""The append-only journal of one run: `journal.jsonl`, one record a line, durable before it counts.

Lines are written by one thread that takes whatever has gathered while the last group was being made
durable: a busy run pays for one fsync a group, an idle one for one a line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koderz_tracker.errors import StorageError
from koderz_tracker.files import open_own, write_whole
from koderz_tracker.index import Index, IndexEntry, entry_of, header, index_path, pack
from koderz_tracker.records import Record, encode

if TYPE_CHECKING:
    import asyncio

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
