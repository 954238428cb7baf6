"""An index of a journal: the offset and kind of each line, in a cache file that is rebuilt when missing or wrong.

An entry of 36 bytes a line lets a run of 100,000 experiments be picked up without parsing a gigabyte
of replies. The file begins with the digest of the journal's first line, and its last entry vouches for
the whole index and for every byte of the journal up to there; else it is thrown away and made anew.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from koderz_tracker.errors import JournalError
from koderz_tracker.files import open_own, pieces
from koderz_tracker.records import (
    KINDS,
    Call,
    Compute,
    Experiment,
    LongMessage,
    Record,
    decode,
    kind_of,
    time_of,
)

CODES = {name: code for code, name in enumerate(KINDS)}
PAID = (CODES["call"], CODES["compute"])
"""The kinds of lines that record a cost."""

ENDS = (CODES["experiment"], CODES["fault"])
"""The kinds of line that end an experiment."""

DOUBLED, DAMAGED = 253, 254
"""Codes of lines that don't count: a repeated line, and a line that can't be read."""

_NAMES = tuple(KINDS)
_UNKNOWN = 255
_FORMATS = dict(
    zip(
        ("code", "success", "check", "length", "offset", "experiment", "cost", "crc"),
        "BBHIQQdI",
        strict=True,
    )
)
_ENTRY = struct.Struct("<" + "".join(_FORMATS.values()))
_MAGIC = b"koderz-index-6  "
_HEADER = len(_MAGIC) + 32


class IndexEntry(NamedTuple):
    """The index entry of one line of the journal."""

    code: int  # of its kind, see CODES
    success: int  # 1 for an experiment that succeeded
    check: int  # see `pack`
    length: int  # bytes, newline included
    offset: int
    # the hex digits of its id; of a message, the first 64 bits of its digest; else 0
    experiment: int
    cost: float  # US dollars, of a call or of compute
    crc: int  # CRC-32 of the journal from its first byte to the end of this line

    @property
    def span(self) -> tuple[int, int]:
        """Offset and length of the line."""
        return self.offset, self.length

    @property
    def kind(self) -> str:
        return _NAMES[self.code] if self.code < len(_NAMES) else ""


def experiment_number(experiment_id: str) -> int:
    """The id as an integer: `exp_00000000000000ff` is 255."""
    return int(experiment_id.removeprefix("exp_"), 16)


def entry_of(record: Record | None, line: bytes, offset: int, crc: int) -> IndexEntry:
    """The entry of a line and its record; None for a kind that this version doesn't know.

    `crc` is that of all lines before it. Raises ValueError where the record is about no experiment.
    """
    crc = zlib.crc32(line, crc)
    if record is None:
        return IndexEntry(_UNKNOWN, 0, 0, len(line), offset, 0, 0.0, crc)
    if isinstance(record, LongMessage):
        number = int(record.digest[:16] or "0", 16)
    else:
        number = experiment_number(getattr(record, "experiment_id", "") or "0")
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number:x} is no id")
    code, cost = CODES[record.kind], record.cost if isinstance(record, Call | Compute) else 0.0
    success = int(isinstance(record, Experiment) and record.success)
    return IndexEntry(code, success, 0, len(line), offset, number, cost, crc)


def scanned(line: bytes, offset: int, crc: int) -> IndexEntry:
    """The entry of a line read from a journal, which may be damaged."""
    try:
        return entry_of(read(line), line, offset, crc)
    except (JournalError, ValueError):
        return IndexEntry(DAMAGED, 0, 0, len(line), offset, 0, 0.0, zlib.crc32(line, crc))


def read(line: bytes) -> Record | None:
    """The record of a line; None for a kind that this version doesn't know. Raises JournalError for anything else."""
    record = decode(line)
    try:
        time = datetime.fromisoformat(record.time if record else time_of(line))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JournalError(f"not a journal line: {error}") from None
    if time.tzinfo or not kind_of(line):
        raise JournalError("not a journal line: it has no kind, or no local time")
    return record


def pack(entries: Iterable[IndexEntry], check: int) -> tuple[bytes, int]:
    """The entries in the form of the file, and the new check.

    `check` is the CRC-32 of all that comes before. Each entry holds 16 bits of what it is with that entry
    added, so that the last one vouches for the whole file.
    """
    packed = []
    for entry in entries:
        data = _ENTRY.pack(*entry._replace(check=0))
        data = data[:2] + _check_of(data, check) + data[4:]
        check = zlib.crc32(data, check)
        packed.append(data)
    return b"".join(packed), check


def _check_of(data: bytes, before: int) -> bytes:
    """The check of an entry, computed while its own check is zero."""
    return (zlib.crc32(data, before) & 0xFFFF).to_bytes(2, sys.byteorder)


def header(first_line: bytes) -> bytes:
    """The first bytes of an index file, made from the first line of its journal."""
    return _MAGIC + hashlib.sha256(first_line).digest()


_IS_CACHED: ContextVar[bool] = ContextVar("is_cached", default=True)


@contextmanager
def without_caches() -> Iterator[None]:
    """Within the block, indexes are made from journals alone: a cache beside one is as its author wants it."""
    token = _IS_CACHED.set(False)
    try:
        yield
    finally:
        _IS_CACHED.reset(token)


@dataclass(frozen=True, slots=True)
class Index:
    """The entries of all whole lines of a journal, packed as on disk, and the offset at which the last line ends."""

    packed: bytes
    end: int  # bytes of the journal that are whole lines
    # bytes of `packed` that the file beside the journal holds; 0 where it has to be made anew
    cached: int
    check: int  # of `packed`
    torn: int | None = None  # where a last line begins that can't be read, which is not in `packed`

    def __iter__(self) -> Iterator[IndexEntry]:
        return map(IndexEntry._make, _ENTRY.iter_unpack(self.packed))

    @property
    def last(self) -> IndexEntry:
        """The entry of the last line."""
        return _last_of(self.packed)

    @property
    def damaged(self) -> list[int]:
        """The offsets of the lines that can't be read."""
        found = [] if self.torn is None else [self.torn]
        if self.count(DAMAGED):
            found = [
                offset for code, offset in self.columns("code", "offset") if code == DAMAGED
            ] + found
        return found

    def columns(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """The named fields of each entry, in the order of Entry's fields, for fast loops over large runs."""
        return _columns(self.packed, names)

    def ends(self) -> Iterator[tuple[int, int]]:
        """Offset and length of the line that last ended each experiment."""
        lines = self.columns("code", "length", "offset", "experiment")
        last = {
            subject: offset << 32 | length
            for code, length, offset, subject in lines
            if code in ENDS
        }
        # one number each: there may be many
        return ((both >> 32, both & 0xFFFFFFFF) for both in last.values())

    def grouped(self) -> Spans:
        """The lines of each experiment, and those of each long message by its number, for reading in any order."""
        import numpy as np  # which most commands have no need of

        order = np.dtype(
            {
                "names": [*_FORMATS],
                "formats": ["u1", "u1", "<u2", "<u4", "<u8", "<u8", "<f8", "<u4"],
            }
        )
        lines = np.frombuffer(self.packed, dtype=order)
        counted = lines[~np.isin(lines["code"], [DOUBLED, DAMAGED])]
        counted = counted[counted["experiment"] != 0]
        is_message = counted["code"] == CODES["message"]
        return Spans(
            *(
                each[np.argsort(each["experiment"], kind="stable")]
                for each in (counted[~is_message], counted[is_message])
            )
        )

    def count(self, code: int) -> int:
        """The number of lines of a kind, given by its code."""
        return self.packed[:: _ENTRY.size].count(code)


@dataclass(frozen=True, slots=True)
class Spans:
    """The places of a journal's lines by the experiment that they are about, and of its long messages."""

    _experiments: Any  # arrays of entries, sorted by the number of the experiment
    _messages: Any

    def of(self, experiment: int) -> list[tuple[int, int]]:
        """Offset and length of each line of an experiment, in order."""
        return _rows(self._experiments, experiment)

    def of_message(self, number: int) -> list[tuple[int, int]]:
        """The same of a long message, by the first 64 bits of its digest."""
        return _rows(self._messages, number)

    def numbers(self) -> list[int]:
        """The number of each experiment that has a line."""
        import numpy as np

        return [int(number) for number in np.unique(self._experiments["experiment"])]


def _rows(entries: Any, number: int) -> list[tuple[int, int]]:
    numbers = entries["experiment"]
    begin, end = (
        int(numbers.searchsorted(numbers.dtype.type(number), side)) for side in ("left", "right")
    )
    return [
        (int(offset), int(length)) for offset, length in entries[["offset", "length"]][begin:end]
    ]


def index_path(journal: Path) -> Path:
    return journal.with_suffix(".index")


def load_index(journal: Path) -> Index:
    """The index of a journal: read from its cache as far as that reaches, then scanned from the journal.

    A line that can't be read has an entry that says so, and so has one that stands there twice; a torn last line
    has none. Raises JournalError where there is no whole line.
    """
    try:
        with _mapped(journal) as data:
            newline = data.find(b"\n") + 1
            if not newline:
                raise JournalError(
                    f"{journal}: byte 0: no whole line, so no plan; the run can't be picked up"
                )
            cached = (
                _read_cache(index_path(journal), journal, header(data[:newline]))
                if _IS_CACHED.get()
                else b""
            )
            last = _last_of(cached) if cached else _BEFORE
            tail = list(_scan(data, sum(last.span), last.crc))
            torn = None
            if tail and tail[-1].code == DAMAGED and sum(tail[-1].span) == len(data):
                torn = tail.pop().offset  # by a power cut: its length was there before its bytes
            tail = _without_doubles(tail, cached, data)
    except OSError as error:
        raise unreadable(journal, error) from None
    if not cached and not tail:
        raise JournalError(f"{journal}: byte 0: its only line can't be read, so there is no plan")
    added, check = pack(tail, zlib.crc32(cached))
    index = Index(cached + added, sum((tail[-1] if tail else last).span), len(cached), check, torn)
    if damaged := index.damaged:
        if len(damaged) == 1:
            message = f"byte {damaged[0]}: 1 line can't be read and is left out"
        else:
            message = f"byte {damaged[0]}: {len(damaged)} lines from here on can't be read and are left out"
        tell(
            f"{journal}: {message}; a copy without damage: koderz doctor --repair {journal.parent.name}"
        )
    return index


@cache
def tell(problem: str) -> None:
    """Logs one warning about a journal that is damaged but still readable, to the logger `tracker`."""
    from logging import getLogger  # which most commands have no need of

    getLogger("tracker").warning("note: %s", problem)


def scan(journal: Path, start: int) -> Iterator[IndexEntry]:
    """The entries of the whole lines from byte `start` on, of a journal that may be growing."""
    try:
        with _mapped(journal) as data:
            yield from _scan(data, start, 0)
    except OSError as error:
        raise unreadable(journal, error) from None


def read_spans(journal: Path, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The lines at these offsets and of these lengths."""
    try:
        with open_own(journal, 2) as file:  # mapped, all of a large journal would stay in memory
            for offset, length in spans:
                yield os.pread(file.fileno(), length, offset)
    except OSError as error:
        raise unreadable(journal, error) from None


def read_records(journal: Path, spans: Iterable[tuple[int, int]]) -> Iterator[Record]:
    """The records at these offsets and of these lengths, without those of unknown kinds.

    Raises JournalError where the journal was changed since its index was loaded.
    """
    spans = list(spans)
    for (offset, _), line in zip(spans, read_spans(journal, spans), strict=True):
        try:
            record = decode(line)
        except JournalError as error:
            raise JournalError(
                f"{journal}: byte {offset}: {error}; it was changed while it was read"
            ) from None
        if record is not None:
            yield record


def unreadable(journal: Path, error: OSError) -> JournalError:
    """The error for a journal that the system refuses to read."""
    return JournalError(f"{journal} can't be read ({error.strerror})")


_BEFORE = IndexEntry(_UNKNOWN, 0, 0, 0, 0, 0, 0.0, 0)  # the first line


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    with open_own(path, 2) as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _scan(data: mmap.mmap | bytes, start: int, crc: int) -> Iterator[IndexEntry]:
    """Entries of the whole lines from `start` on."""
    while newline := data.find(b"\n", start) + 1:
        entry = scanned(data[start:newline], start, crc)
        yield entry
        start, crc = newline, entry.crc


def _without_doubles(
    tail: list[IndexEntry], cached: bytes, data: mmap.mmap | bytes
) -> list[IndexEntry]:
    """The entries after the cached ones; a line that is also in an earlier place is marked as repeated."""

    def line(offset: int, length: int) -> int:
        return hash(data[offset : offset + length])

    alike = {(entry.code, entry.length, entry.experiment) for entry in tail} if cached else set()
    names = ("code", "length", "offset", "experiment")
    columns = _columns(cached, names) if tail else ()
    seen = {
        line(offset, length)
        for code, length, offset, subject in columns
        if (code, length, subject) in alike
    }
    found = []
    for entry in tail:
        digest = line(*entry.span)
        is_double = digest in seen and entry.code != DAMAGED
        found.append(
            entry._replace(code=DOUBLED, success=0, experiment=0, cost=0.0) if is_double else entry
        )
        seen.add(digest)
    return found


def _read_cache(path: Path, journal: Path, expected: bytes) -> bytes:
    """The packed entries of the cache; empty if it doesn't belong to this journal as it is now."""
    try:
        with open_own(path, 2) as file:
            data = file.read()
    except OSError:
        return b""
    packed = data[_HEADER : len(data) - (len(data) - _HEADER) % _ENTRY.size]
    if data[:_HEADER] != expected or not packed or not _is_sound(packed):
        return b""
    last = _last_of(packed)
    # CRC-32 of all that the cache covers takes 0.4 s a GB.
    left, crc = sum(last.span), 0
    for piece in pieces(journal, left):
        crc = zlib.crc32(piece, crc)
        left -= len(piece)
    return packed if crc == last.crc and not left else b""


def _is_sound(packed: bytes) -> bool:
    before, last = packed[: -_ENTRY.size], packed[-_ENTRY.size :]
    return last[2:4] == _check_of(last[:2] + bytes(2) + last[4:], zlib.crc32(before))


def _last_of(packed: bytes) -> IndexEntry:
    return IndexEntry(*_ENTRY.unpack(packed[-_ENTRY.size :]))


def _columns(packed: bytes, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """The named fields of packed entries. Other fields are declared as padding, which costs no time."""
    fields = (
        form if name in names else f"{struct.calcsize(form)}x" for name, form in _FORMATS.items()
    )
    return struct.iter_unpack("<" + "".join(fields), packed)
