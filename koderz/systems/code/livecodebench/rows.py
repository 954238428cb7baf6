"""Rows of LiveCodeBench's published files, read without running anything that is in them.

The files are large: a task holds the place of its row, and its tests are read when a program is judged by them.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import pickletools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.suites.dataset import Row, lines_of, opened, row_of_line
from koderz.suites.keys import misspelt
from koderz_tracker.files import MB

_LONGEST = 1024 * MB  # of a line, and of the tests in it
_CHECKED = 64 * MB  # of a file whose tests are all read at once, so that a broken row is found before anything is spent
_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_AROUND = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"})
_KEPT = 8  # tasks whose tests are remembered


class Cases(NamedTuple):
    """The tests of a task, in their order."""

    function: str  # what they call; empty for a program that reads stdin
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    public: int  # the first so many are shown in the question

    def as_json(self, *, only_public: bool = False) -> str:
        """The tests as `comparison` reads them."""
        most = self.public if only_public else len(self.inputs)
        shown = {"inputs": self.inputs[:most], "outputs": self.outputs[:most]}
        return json.dumps({"function": bool(self.function), **shown})


@dataclass(frozen=True, slots=True)
class Contest:
    """A task of a contest, with the place of its row."""

    path: Path
    offset: int  # bytes, of the unpacked file
    line: int  # its number, from 1
    function: str
    digest: str  # of the row

    def cases(self) -> Cases:
        """Its tests, read anew unless they were lately. Raises KoderzError where they can't be."""
        return _cases_at(self)


class Found(NamedTuple):
    """A row with its place."""

    row: Row
    contest: Contest
    day: date


def read_contests(path: Path) -> Iterator[Found]:
    """The rows of a file, or of the files test*.jsonl of a folder. Raises KoderzError, naming the line."""
    files = sorted({*path.glob("test*.jsonl"), *path.glob("test*.jsonl.gz")}) if path.is_dir() else [path]
    if not files:
        raise KoderzError(f"{path} holds no test*.jsonl, as LiveCodeBench publishes them")
    for file in files:
        yield from _read_file(file)


def _read_file(path: Path) -> Iterator[Found]:
    with opened(path) as file:
        is_small = path.stat().st_size <= _CHECKED
        offset = 0
        for number, line in lines_of(file, path, _LONGEST):
            if line.strip():
                yield _found(row_of_line(line, path, number), path, offset, line, number, is_checked=is_small)
            offset += len(line)


def _found(row: Row, path: Path, offset: int, line: bytes, number: int, *, is_checked: bool) -> Found:
    row.text("question_content")
    row.text("private_test_cases")
    name = row.id("question_id")
    if not name.isprintable() or not 0 < len(name) <= 200:
        raise row.error("the field 'question_id' has to be 1 to 200 printable characters")
    try:
        day = date.fromisoformat(row.text("contest_date")[:10])
    except ValueError:
        raise row.error(f"the field 'contest_date' is no date: {row.text('contest_date')[:40]!r}") from None
    contest = Contest(path, offset, number, _function_of(row), _digest(line))
    if is_checked:
        _cases_of(row, contest.function)
    else:
        _tests_in(row, "public_test_cases")
    return Found(row, contest, day)


def _digest(line: bytes) -> str:
    return hashlib.blake2b(line.strip(), digest_size=16).hexdigest()


def _function_of(row: Row) -> str:
    """The name of the function that tests call; empty where they read stdin."""
    try:
        about = json.loads(row.text("metadata", "{}") or "{}")
    except (ValueError, RecursionError):
        raise row.error("the field 'metadata' isn't JSON") from None
    name = about.get("func_name") if isinstance(about, dict) else None
    if name is None:
        return ""
    if not isinstance(name, str) or not name.isidentifier():
        raise row.error(f"the field 'metadata' names no function: {str(name)[:80]!r}")
    return name


@functools.lru_cache(maxsize=_KEPT)
def _cases_at(contest: Contest) -> Cases:
    with opened(contest.path) as file:
        file.seek(contest.offset)
        line = file.readline(_LONGEST)
    if _digest(line) != contest.digest:
        raise KoderzError(f"{contest.path}, line {contest.line}: the row has changed since the file was read")
    return _cases_of(row_of_line(line, contest.path, contest.line), contest.function)


def _cases_of(row: Row, function: str) -> Cases:
    public, private = _tests_in(row, "public_test_cases"), _tests_in(row, "private_test_cases")
    tests = [*public, *private]
    if not tests:
        raise row.error("it has no tests")
    kinds = {kind for *_, kind in tests}
    if kinds != {"functional" if function else "stdin"}:
        told = "names a function" if function else "names no function"
        raise row.error(f"its tests are {' and '.join(sorted(kinds))}, and 'metadata' {told}")
    return Cases(function, tuple(each[0] for each in tests), tuple(each[1] for each in tests), len(public))


def _tests_in(row: Row, field: str) -> list[tuple[str, str, str]]:
    """Input, output and kind of each test of a field. Raises KoderzError."""
    text = row.text(field)
    try:
        tests = json.loads(text)
    except (ValueError, RecursionError):
        tests = _unpacked(row, field, text)
    if not isinstance(tests, list):
        raise row.error(f"the field {field!r} has to be a list of tests")
    return [_test(row, field, each) for each in tests]


def _test(row: Row, field: str, test: Any) -> tuple[str, str, str]:
    match test:
        case {"input": str(given), "output": str(wanted), "testtype": "stdin" | "functional" as kind}:
            try:
                given.encode(), wanted.encode()
            except UnicodeEncodeError:
                raise row.error(f"a test of {field!r} holds half a surrogate pair, which isn't a character") from None
            return given, wanted, kind
        case {"input": _, "output": _, "testtype": _}:
            raise row.error(f"a test of {field!r} isn't text of the kind 'stdin' or 'functional'")
        case {**keys}:
            lacking = next(name for name in ("input", "output", "testtype") if name not in keys)
            raise row.error(f"a test of {field!r} has no {lacking!r}{misspelt(lacking, [*map(str, keys)])}")
    raise row.error(f"a test of {field!r} isn't an object")


def _unpacked(row: Row, field: str, text: str) -> Any:
    """The tests in a field that is base64 of zlib of a pickle of one string, of JSON."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(text, validate=True), _LONGEST)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise row.error(f"the field {field!r} is cut off, or unpacks to more than {_LONGEST // MB} MB")
        return json.loads(_pickled_string(data))
    except (binascii.Error, zlib.error):
        raise row.error(f"the field {field!r} is neither JSON nor base64 of zlib") from None
    except (ValueError, RecursionError) as error:
        raise row.error(f"the field {field!r} holds something else than a pickled string of JSON ({error})") from None


def _pickled_string(data: bytes) -> str:
    """The string that a pickle holds, without unpickling it. Raises ValueError for any other pickle."""
    found: list[str] = []
    for operation, value, _ in pickletools.genops(data):
        if operation.name not in _STRINGS | _AROUND:
            raise ValueError(f"its pickle does {operation.name}, and may only hold text")
        if operation.name in _STRINGS:
            found.append(str(value))
    if len(found) != 1:
        raise ValueError(f"its pickle holds {len(found)} texts instead of one")
    return found[0]
