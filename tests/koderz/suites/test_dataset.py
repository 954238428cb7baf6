"""Task files as people have them: with and without gzip, from Windows, cut off, or no task files at all."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.suites.dataset import Row, cached_dataset
from koderz.suites.tables import read_rows
from tests.koderz.suites.rows import complaint


def fields(path: Path) -> list[dict[str, Any]]:
    return [dict(row.fields) for row in read_rows(path)]


def every_row(path: Path) -> list[Row]:
    return list(read_rows(path))


@pytest.mark.parametrize(
    "data",
    {
        "plain": b'{"n": 1}\n{"n": 2}\n',
        "without an end of line": b'{"n": 1}\n{"n": 2}',
        "with a byte order mark": b'\xef\xbb\xbf{"n": 1}\n{"n": 2}\n',
        "from Windows": b'{"n": 1}\r\n{"n": 2}\r\n',
        "with empty lines": b'\n{"n": 1}\n\n  \n{"n": 2}\n\n',
        "as one list": b'[{"n": 1}, {"n": 2}]',
        "as one list over many lines": b'\xef\xbb\xbf\r\n[\r\n  {"n": 1},\r\n  {"n": 2}\r\n]\r\n',
    }.values(),
)
def test_rows_are_the_same_in_any_file_format(tmp_path: Path, data: bytes) -> None:
    plain, zipped, misnamed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl"
    plain.write_bytes(data)
    zipped.write_bytes(gzip.compress(data, mtime=0))
    misnamed.write_bytes(gzip.compress(data, mtime=0))

    assert fields(plain) == fields(zipped) == fields(misnamed) == [{"n": 1}, {"n": 2}]


def test_numbers_keep_what_json_libraries_like_to_lose(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": [123456789012345678901234567890, Infinity, NaN, 1e400]}\n')

    large, infinite, nan, beyond = fields(path)[0]["n"]

    assert large == 123456789012345678901234567890
    assert infinite == beyond == float("inf")
    assert nan != nan


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"n": 1}\nhello\n', "line 2: not JSON (Expecting value, column 1)"),
        (b'{"n": 1}\n{"n": 1\n', "line 2: not JSON"),
        (b'{"n": 1}\n\n3\n', "line 3: not a JSON object"),
        (b'{"n": 1}\n{"n": "\xff"}\n', "line 2: not UTF-8 text"),
        (b'\n[{"n": 1},\n  4]', "entry 2: not a JSON object"),
        (b'[{"n": 1},\n {"n": ]\n', "line 2: not JSON"),
        (b'{"n": ' + b"9" * 5000 + b"}\n", "line 1: can't be read"),
        (b'{"n": ' + b"[" * 100_000 + b"\n", "line 1: can't be read"),
        (gzip.compress(b'{"n": 1}\n' * 1000, mtime=0)[:-9], "can't be read"),
        (gzip.compress(b'{"n": 1}\n', mtime=0)[:12] + b"garbage garbage", "can't be read"),
    ],
)
def test_file_error_is_told_with_its_line(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)

    assert said in complaint(every_row, path)
    assert str(path) in complaint(every_row, path)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "the field 'x' is missing"),
        ({"x": None}, "the field 'x' is missing"),
        ({"xx": "y"}, "the field 'x' is missing; is 'xx' meant for it?"),
        ({"x": 3}, "the field 'x' has to be text"),
        ({"x": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_field_that_is_no_text_is_named_with_its_line(value: dict[str, Any], said: str) -> None:
    with pytest.raises(KoderzError, match=f"a.jsonl, line 7: .*{said}"):
        Row("a.jsonl, line 7", value).text("x")


def test_fields_of_other_kinds_are_checked_too() -> None:
    row = Row("line 1", {"texts": ["a", 1], "lists": [[1], 2], "number": True, "less": -1, "nan": float("nan")})

    with pytest.raises(KoderzError, match="a list of texts"):
        row.texts("texts")
    with pytest.raises(KoderzError, match="a list of lists"):
        row.lists("lists")
    for name in ("number", "less", "nan"):
        with pytest.raises(KoderzError, match="a number from 0 up"):
            row.number(name, 0)


def test_cached_file_is_found_gzipped_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "koderz"
    folder.mkdir()

    assert cached_dataset("a.jsonl", "b.json") is None
    (folder / "b.json").write_text("[]")
    assert cached_dataset("a.jsonl", "b.json") == folder / "b.json"
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps({}).encode()))
    assert cached_dataset("a.jsonl", "b.json") == folder / "a.jsonl.gz"
