"""Where each line of a journal lies: a cache beside it, rebuilt when missing or wrong, never the truth.

An entry of 32 bytes a line lets a run of 100,000 experiments be picked up without parsing a gigabyte
of replies. The file begins with the digest of the journal's first line; the entries must follow each
other without a gap, or the index is thrown away and made anew.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tracker.errors import JournalError
from tracker.records import KINDS, kind_of

CODES = {name: code for code, name in enumerate(KINDS)}
PAID = (CODES["call"], CODES["compute"])
"""The kinds of line that cost something."""

_NAMES = tuple(KINDS)
_UNKNOWN = 255
_FORMATS = {"code": "B", "success": "B", "check": "H", "length": "I", "offset": "Q", "experiment": "Q", "cost": "d"}
_ENTRY = struct.Struct("<" + "".join(_FORMATS.values()))
_MAGIC = b"koderz-index-3  "
_HEADER = len(_MAGIC) + 32


class Entry(NamedTuple):
    """One line of the journal."""

    code: int  # of its kind, see CODES
    success: int  # 1 for an experiment that succeeded
    check: int  # see `pack`
    length: int  # bytes, newline included
    offset: int
    experiment: int  # the hex digits of its id; of a message, the first 64 bits of its digest; else 0
    cost: float  # US dollars, of a call or of compute

    @property
    def span(self) -> tuple[int, int]:
        """Offset and length."""
        return self.offset, self.length

    @property
    def kind(self) -> str:
        return _NAMES[self.code] if self.code < len(_NAMES) else ""


def experiment_number(experiment_id: str) -> int:
    """The id as an integer: `exp_00000000000000ff` is 255."""
    return int(experiment_id.removeprefix("exp_"), 16)


def subject_number(experiment_id: str, digest: str) -> int:
    """What a line is about, as `Entry.experiment` has it."""
    if experiment_id:
        return experiment_number(experiment_id)
    return int(digest[:16], 16) if digest else 0


def entry_of(line: bytes, offset: int) -> Entry:
    """The entry of a whole line. Raises JournalError where the line isn't a JSON object."""
    code = CODES.get(kind_of(line), _UNKNOWN)
    try:
        fields: dict[str, Any] = orjson.loads(line)
        if not isinstance(fields, dict):
            raise TypeError("no JSON object")
        if code == _UNKNOWN:  # its fields mean nothing to this version
            return Entry(code, 0, 0, len(line), offset, 0, 0.0)
        number = subject_number(fields.get("experiment_id") or "", fields.get("digest") or "")
        cost = float(fields.get("cost") or 0.0) if code in PAID else 0.0
        entry = Entry(code, int(fields.get("success") is True), 0, len(line), offset, number, cost)
        _ENTRY.pack(*entry)
    except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError, struct.error) as error:
        raise JournalError(f"byte {offset}: not a journal line: {error}") from None
    return entry


def pack(entries: Iterable[Entry], check: int) -> tuple[bytes, int]:
    """The entries as they lie in the file, and the new check.

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
    """Of an entry whose own check is zero."""
    return (zlib.crc32(data, before) & 0xFFFF).to_bytes(2, sys.byteorder)


def header(first_line: bytes) -> bytes:
    """What an index of the journal that begins with this line begins with."""
    return _MAGIC + hashlib.sha256(first_line).digest()


@dataclass(frozen=True, slots=True)
class Index:
    """The entries of all whole lines of a journal, packed as on disk, and where the last line ends."""

    packed: bytes
    end: int  # bytes of the journal that are whole lines
    cached: int  # bytes of `packed` that the file beside the journal holds; 0 where it has to be made anew
    check: int  # of `packed`

    def __iter__(self) -> Iterator[Entry]:
        return map(Entry._make, _ENTRY.iter_unpack(self.packed))

    def columns(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """These fields of each entry, named in the order of an Entry's: for loops over all of a large run."""
        return _columns(self.packed, names)

    def count(self, kind: str) -> int:
        """How many lines of a kind there are."""
        return self.packed[:: _ENTRY.size].count(CODES[kind])


def index_path(journal: Path) -> Path:
    return journal.with_suffix(".index")


def load_index(journal: Path) -> Index:
    """The index of a journal: from its cache as far as that reaches, from the journal for the rest.

    A torn last line is left out. Raises JournalError where a line before the last is damaged.
    """
    with _mapped(journal) as data:
        newline = data.find(b"\n") + 1
        if not newline:
            raise JournalError(f"{journal}: no whole line, so no plan; the run can't be picked up")
        cached, end = _read_cache(index_path(journal), header(data[:newline]), data)
        tail = list(_scan(journal, data, end))
    added, check = pack(tail, zlib.crc32(cached))
    return Index(cached + added, tail[-1].offset + tail[-1].length if tail else end, len(cached), check)


def scan(journal: Path, start: int) -> Iterator[Entry]:
    """The entries of the whole lines from byte `start` on, of a journal that may be growing.

    Raises JournalError where a line before the last is damaged.
    """
    with _mapped(journal) as data:
        yield from _scan(journal, data, start)


def read_spans(journal: Path, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The lines at these offsets, of these lengths."""
    with journal.open("rb") as file:  # mapped, all of a large journal would stay in memory
        for offset, length in spans:
            yield os.pread(file.fileno(), length, offset)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _scan(journal: Path, data: mmap.mmap | bytes, start: int) -> Iterator[Entry]:
    """Entries of the whole lines from `start` on."""
    while newline := data.find(b"\n", start) + 1:
        try:
            yield entry_of(data[start:newline], start)
        except JournalError as error:
            if newline == len(data):
                return  # torn by a power cut: the length was there before the bytes
            raise JournalError(
                f"{journal}: {error}. The lines before it are whole: cut the file there "
                f"(truncate -s {start} {journal}) and resume the run"
            ) from None
        start = newline


def _read_cache(path: Path, expected: bytes, journal: mmap.mmap | bytes) -> tuple[bytes, int]:
    """The packed entries of the cache and where they end; nothing where it isn't one of this journal."""
    try:
        data = path.read_bytes()
    except OSError:
        return b"", 0
    packed = data[_HEADER : len(data) - (len(data) - _HEADER) % _ENTRY.size]
    end = _contiguous_end(packed) if data[:_HEADER] == expected and packed and _is_sound(packed) else 0
    if end and end <= len(journal) and _ends_a_line(Entry(*_ENTRY.unpack(packed[-_ENTRY.size :])), journal):
        return packed, end
    return b"", 0


def _is_sound(packed: bytes) -> bool:
    before, last = packed[: -_ENTRY.size], packed[-_ENTRY.size :]
    return last[2:4] == _check_of(last[:2] + bytes(2) + last[4:], zlib.crc32(before))


def _contiguous_end(packed: bytes) -> int:
    """Where the last line ends; 0 unless each begins where the one before it ended."""
    at = 0
    for length, offset in _columns(packed, ("length", "offset")):
        if offset != at:
            return 0
        at += length
    return at


def _columns(packed: bytes, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """What isn't named is passed over as padding, which takes no time."""
    fields = (form if name in names else f"{struct.calcsize(form)}x" for name, form in _FORMATS.items())
    return struct.iter_unpack("<" + "".join(fields), packed)


def _ends_a_line(entry: Entry, journal: mmap.mmap | bytes) -> bool:
    line = journal[entry.offset : entry.offset + entry.length]
    return line.endswith(b"\n") and CODES.get(kind_of(line), _UNKNOWN) == entry.code
