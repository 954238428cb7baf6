"""The index is a cache: whatever became of it, reading gives what the journal says."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tracker import builders
from tracker.errors import JournalError
from tracker.index import CODES, Entry, entry_of, experiment_number, index_path, load_index, read_spans
from tracker.journal import NAME
from tracker.records import Call, Record, decode, encode
from tracker.tracker import Tracker

MAGIC = 48  # bytes before the first entry: a magic word and the digest of the plan
ENTRY = 32


def history(cost: float = 0.25) -> Iterator[Record]:
    """Calls with long messages, verdicts, passes, failures and a fault."""
    for task in range(4):
        yield builders.call(task, text="long " * 1500 if task % 2 else "short", cost=cost)
        yield builders.attempt(task)
        yield builders.fault(task) if task == 3 else builders.judged(task, task != 1, cost=cost)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    folder = asyncio.run(builders.recorded(tmp_path, *history(), of=builders.plan(4)))
    return folder / NAME


def fresh(journal: Path) -> list[Entry]:
    """What a scan of the whole journal finds."""
    alone = journal.parent / "alone.jsonl"
    shutil.copy(journal, alone)
    return list(load_index(alone))


def test_an_index_that_is_there_is_used(journal: Path) -> None:
    found = load_index(journal)

    assert found.cached == len(found.packed) == index_path(journal).stat().st_size - MAGIC
    assert list(found) == fresh(journal)


def test_entries_say_what_each_line_is_about(journal: Path) -> None:
    entries = fresh(journal)
    records = [decode(line) for line in read_spans(journal, [entry.span for entry in entries])]

    assert [entry.kind for entry in entries] == [record.kind for record in records if record]
    assert [entry.kind for entry in entries[:4]] == ["plan", "call", "attempt", "experiment"]
    for entry, record in zip(entries, records, strict=True):
        if experiment := getattr(record, "experiment_id", None):
            assert entry.experiment == experiment_number(experiment)
        assert entry.success == (getattr(record, "success", False) is True)
        assert entry.cost == (record.cost if isinstance(record, Call) else 0.0)


def test_what_is_written_down_live_equals_what_a_scan_finds(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    at, scanned = 0, []
    for line in lines:
        scanned.append(entry_of(line, at))
        at += len(line)

    assert [entry._replace(check=0) for entry in load_index(journal)] == scanned


def test_a_missing_index_is_made_anew(journal: Path) -> None:
    expected = fresh(journal)
    index_path(journal).unlink()

    found = load_index(journal)

    assert (list(found), found.cached) == (expected, 0)
    reopen(journal)
    assert load_index(journal).cached == len(found.packed)


def test_an_index_torn_at_any_byte_gives_the_same(journal: Path) -> None:
    expected, whole = fresh(journal), index_path(journal).read_bytes()
    for cut in range(len(whole)):
        index_path(journal).write_bytes(whole[:cut])
        assert list(load_index(journal)) == expected, f"torn at byte {cut}"


@pytest.mark.parametrize("cut", [0, 5, MAGIC, MAGIC + 1, MAGIC + ENTRY, MAGIC + 3 * ENTRY + 17])
def test_a_torn_index_is_mended_when_the_run_is_picked_up(journal: Path, cut: int) -> None:
    whole = index_path(journal).read_bytes()
    index_path(journal).write_bytes(whole[:cut])

    reopen(journal)

    assert index_path(journal).read_bytes() == whole


def test_an_index_that_is_behind_is_read_on_from_the_journal(journal: Path) -> None:
    expected, whole = fresh(journal), index_path(journal).read_bytes()
    for entries in range(len(expected)):
        index_path(journal).write_bytes(whole[: MAGIC + entries * ENTRY])
        found = load_index(journal)
        assert list(found) == expected
        assert found.cached == entries * ENTRY


def test_an_index_that_is_ahead_of_its_journal_is_thrown_away(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        journal.write_bytes(b"".join(lines[:kept]))
        found = load_index(journal)
        assert list(found) == fresh(journal)
        assert found.cached == 0


def test_the_index_of_another_run_is_thrown_away(journal: Path, tmp_path: Path) -> None:
    other = asyncio.run(builders.recorded(tmp_path / "other", *history(cost=9.0), of=builders.plan(4, samples=2)))
    shutil.copy(index_path(other / NAME), index_path(journal))

    found = load_index(journal)

    assert (list(found), found.cached) == (fresh(journal), 0)


@pytest.mark.parametrize("garbage", [b"", b"\0", b"\0" * 500, b"\xff" * 500, b"hello", b"koderz-index-2  " * 20])
def test_garbage_in_place_of_an_index_is_thrown_away(journal: Path, garbage: bytes) -> None:
    index_path(journal).write_bytes(garbage)

    assert list(load_index(journal)) == fresh(journal)


@pytest.mark.parametrize("length", [1, 16, 31, 32, 33, 320])
@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"k"])
def test_garbage_after_an_index_gives_the_same(journal: Path, filler: bytes, length: int) -> None:
    expected = fresh(journal)
    with index_path(journal).open("ab") as file:
        file.write(filler * length)

    assert list(load_index(journal)) == expected


def test_pages_that_a_power_cut_left_empty_give_the_same(journal: Path) -> None:
    expected, whole = fresh(journal), index_path(journal).read_bytes()
    for start in range(0, len(whole) - ENTRY, 16):
        index_path(journal).write_bytes(whole[:start].ljust(len(whole), b"\0"))
        assert list(load_index(journal)) == expected, f"zeros from byte {start}"


def test_an_index_with_a_flipped_bit_anywhere_gives_the_same(journal: Path) -> None:
    expected, whole = fresh(journal), index_path(journal).read_bytes()
    bits = random.Random(1)
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bits.randrange(8)
        index_path(journal).write_bytes(flipped)
        assert list(load_index(journal)) == expected, f"a bit flipped in byte {at}"


def test_lines_of_a_kind_that_is_not_known_are_counted_over(journal: Path) -> None:
    before = fresh(journal)
    with journal.open("ab") as file:
        file.write(b'{"kind":"artifact","time":"t","experiment_id":"exp_00000000000000ff","cost":5}\n{"odd":1}\n')
        file.write(encode(builders.judged(2)))

    entries = list(load_index(journal))

    assert entries[: len(before)] == before
    assert [entry.kind for entry in entries[len(before) :]] == ["", "", "experiment"]
    assert entries[len(before)].cost == 0.0
    assert list(load_index(journal)) == fresh(journal)


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"artifact","digest":"sha256:00ff"}\n',
        b'{"kind":"artifact","experiment_id":"batch-7"}\n',
        b'{"kind":"artifact","experiment_id":17}\n',
    ],
)
def test_what_fields_mean_in_a_kind_that_is_not_known_is_not_guessed(journal: Path, line: bytes) -> None:
    with journal.open("ab") as file:
        file.write(line + encode(builders.judged(2)))

    assert list(load_index(journal))[-1].kind == "experiment"


@pytest.mark.parametrize("line", [b"[]\n", b'"x"\n', b"3\n", b"\n", b'{"kind":"call","experiment_id":"exp_zz"}\n'])
def test_a_line_that_is_no_record_is_damage(journal: Path, line: bytes) -> None:
    with journal.open("ab") as file:
        file.write(line + encode(builders.judged(2)))

    with pytest.raises(JournalError, match="truncate -s"):
        load_index(journal)


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"call","experiment_id":"exp_00000000000000ff","cost":"dear"}\n',
        b'{"kind":"call","experiment_id":"exp_00000000000000ff","cost":[1]}\n',
        b'{"kind":"fault","experiment_id":"exp_ffffffffffffffffff"}\n',
        b'{"kind":"fault","experiment_id":"-ff"}\n',
    ],
)
def test_a_known_kind_with_impossible_fields_is_damage_too(journal: Path, line: bytes) -> None:
    with journal.open("ab") as file:
        file.write(line + encode(builders.judged(2)))

    with pytest.raises(JournalError, match="truncate -s"):
        load_index(journal)


def test_codes_are_what_older_indexes_hold() -> None:
    assert CODES == {
        "plan": 0,
        "message": 1,
        "call": 2,
        "attempt": 3,
        "once": 4,
        "experiment": 5,
        "fault": 6,
        "resumed": 7,
        "finished": 8,
        "submitted": 9,
        "compute": 10,
    }


def reopen(journal: Path) -> None:
    async def go() -> None:
        with Tracker.reopen(journal.parent):
            pass

    asyncio.run(go())


def test_columns_are_fields_of_the_entries_in_their_order(journal: Path) -> None:
    index = load_index(journal)

    assert list(index.columns("offset", "cost")) == [(entry.offset, entry.cost) for entry in index]
    assert list(index.columns("code", "success", "experiment")) == [(e.code, e.success, e.experiment) for e in index]
    assert index.count("call") == sum(entry.kind == "call" for entry in index) > 0
