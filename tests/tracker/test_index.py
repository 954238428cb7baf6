"""The index is a cache: whatever became of it, reading gives what the journal says."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.index import (
    CODES,
    DAMAGED,
    DOUBLED,
    IndexEntry,
    experiment_number,
    index_path,
    load_index,
    read_spans,
    scanned,
)
from koderz_tracker.journal import NAME
from koderz_tracker.records import Call, Record, decode, encode
from koderz_tracker.tracker import Tracker
from tests.tracker import builders

MAGIC = 48  # bytes before the first entry: a magic word and the digest of the plan
ENTRY = 36


def history(cost: float = 0.25) -> Iterator[Record]:
    """Calls with long messages, verdicts, passes, failures and a fault."""
    for task in range(4):
        yield builders.call(task, text="long " * 1500 if task % 2 else "short", cost=cost)
        yield builders.attempt(task)
        yield builders.fault(task) if task == 3 else builders.judged(task, task != 1, cost=cost)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    folder = a_journal(tmp_path, *history(), plan=a_plan(4))
    return folder / NAME


def fresh(journal: Path) -> list[IndexEntry]:
    """What a scan of the whole journal finds."""
    alone = journal.parent / "alone.jsonl"
    shutil.copy(journal, alone)
    return list(load_index(alone))


def test_index_that_exists_is_used(journal: Path) -> None:
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


def test_index_written_live_equals_a_scan(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    at, crc, found = 0, 0, []
    for line in lines:
        found.append(scanned(line, at, crc))
        at, crc = at + len(line), found[-1].crc

    assert [entry._replace(check=0) for entry in load_index(journal)] == found


def test_index_that_is_missing_is_rebuilt(journal: Path) -> None:
    expected = fresh(journal)
    index_path(journal).unlink()

    found = load_index(journal)

    assert (list(found), found.cached) == (expected, 0)
    reopen(journal)
    assert load_index(journal).cached == len(found.packed)


def test_index_torn_at_any_byte_gives_the_same(journal: Path) -> None:
    expected, whole = fresh(journal), index_path(journal).read_bytes()
    for cut in range(len(whole)):
        index_path(journal).write_bytes(whole[:cut])
        assert list(load_index(journal)) == expected, f"torn at byte {cut}"


@pytest.mark.parametrize("cut", [0, 5, MAGIC, MAGIC + 1, MAGIC + ENTRY, MAGIC + 3 * ENTRY + 17])
def test_index_that_is_torn_is_mended_on_resume(journal: Path, cut: int) -> None:
    whole = index_path(journal).read_bytes()
    index_path(journal).write_bytes(whole[:cut])

    reopen(journal)

    assert index_path(journal).read_bytes() == whole


def test_index_behind_its_journal_reads_on(journal: Path) -> None:
    expected, whole = fresh(journal), index_path(journal).read_bytes()
    for entries in range(len(expected)):
        index_path(journal).write_bytes(whole[: MAGIC + entries * ENTRY])
        found = load_index(journal)
        assert list(found) == expected
        assert found.cached == entries * ENTRY


def test_index_ahead_of_its_journal_is_discarded(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        journal.write_bytes(b"".join(lines[:kept]))
        found = load_index(journal)
        assert list(found) == fresh(journal)
        assert found.cached == 0


def test_index_of_another_run_is_discarded(journal: Path, tmp_path: Path) -> None:
    other = a_journal(tmp_path / "other", *history(cost=9.0), plan=a_plan(4, samples=2))
    shutil.copy(index_path(other / NAME), index_path(journal))

    found = load_index(journal)

    assert (list(found), found.cached) == (fresh(journal), 0)


@pytest.mark.parametrize("garbage", [b"", b"\0", b"\0" * 500, b"\xff" * 500, b"hello", b"koderz-index-3  " * 20])
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


@pytest.mark.slow
def test_index_with_a_flipped_bit_gives_the_same(journal: Path) -> None:
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
        file.write(
            b'{"kind":"artifact","time":"2026-01-31T12:00:00","experiment_id":"exp_00000000000000ff","cost":5}\n{"kind":"odd","time":"2026-01-31T12:00:00"}\n'
        )
        file.write(encode(builders.judged(2)))

    entries = list(load_index(journal))

    assert entries[: len(before)] == before
    assert [entry.kind for entry in entries[len(before) :]] == ["", "", "experiment"]
    assert entries[len(before)].cost == 0.0
    assert list(load_index(journal)) == fresh(journal)


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"artifact","time":"2026-01-31T12:00:00","digest":"sha256:00ff"}\n',
        b'{"kind":"artifact","time":"2026-01-31T12:00:00","experiment_id":"batch-7"}\n',
        b'{"kind":"artifact","time":"2026-01-31T12:00:00","experiment_id":17}\n',
    ],
)
def test_index_guesses_nothing_of_an_unknown_kind(journal: Path, line: bytes) -> None:
    with journal.open("ab") as file:
        file.write(line + encode(builders.judged(2)))

    assert list(load_index(journal))[-1].kind == "experiment"


NO_RECORDS = [
    b"[]",
    b'"x"',
    b"3",
    b"",
    b"\0" * 300,
    b'{"odd":1}',
    b'{"kind":"artifact"}',
    b'{"kind":"artifact","time":"noon"}',
    b'{"kind":"call","experiment_id":"exp_zz"}',
    b'{"kind":"call","experiment_id":"exp_00000000000000ff","cost":"dear"}',
    b'{"kind":"fault","experiment_id":"exp_ffffffffffffffffff"}',
    encode(builders.fault(0)).replace(b"exp_", b"exp_-").strip(),
    encode(builders.fault(0)).replace(b"exp_", b"exp_f").strip(),
    encode(builders.call(0)).replace(b'"cost":', b'"cost":"much",').strip(),
    encode(builders.judged(0)).strip()[:-1],
]


@pytest.mark.parametrize("line", NO_RECORDS)
@pytest.mark.parametrize("indexed", [True, False])
def test_index_skips_and_names_an_unreadable_line(journal: Path, line: bytes, indexed: bool) -> None:
    whole = journal.read_bytes().splitlines(keepends=True)
    before = b"".join(whole[:5])
    journal.write_bytes(before + line + b"\n" + b"".join(whole[5:]))
    if not indexed:
        index_path(journal).unlink()

    found = load_index(journal)

    assert found.damaged == [len(before)]
    assert [entry.code == DAMAGED for entry in found] == [number == 5 for number in range(len(whole) + 1)]
    read = [line for entry, line in zip(found, read_spans(journal, [e.span for e in found]), strict=True) if entry.kind]
    assert read == whole


def test_index_does_not_hide_an_overwritten_line(journal: Path) -> None:
    """Every line, every byte of one line: what the index says is what a scan finds."""
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for start, line in zip(starts[1:], lines[1:], strict=True):
        for damage in (b"\0" * (len(line) - 1), b"#" + line[1:-1]):
            journal.write_bytes(whole[:start] + damage + whole[start + len(damage) :])
            assert list(load_index(journal)) == fresh(journal)
            assert load_index(journal).damaged == [start]


def test_index_counts_a_doubled_line_once(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    twice = [*lines[:4], lines[2], *lines[4:], lines[3], lines[2], lines[1]]
    counted = [entry.kind for entry in load_index(journal)]

    journal.write_bytes(b"".join(twice))
    behind = [entry.kind for entry in load_index(journal) if entry.kind]
    index_path(journal).unlink()
    found = load_index(journal)

    assert behind == [entry.kind for entry in found if entry.kind] == counted
    assert [number for number, entry in enumerate(found) if entry.code == DOUBLED] == [
        4,
        *range(-3 + len(twice), len(twice)),
    ]
    assert sum(entry.cost for entry in found) == sum(scanned(line, 0, 0).cost for line in lines)


def test_index_finds_a_doubled_line_behind_its_end(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    with journal.open("ab") as file:
        file.writelines([lines[1], encode(builders.call(0, 7))])

    found = load_index(journal)

    assert found.cached == len(lines) * ENTRY
    assert [entry.code for entry in found][-2:] == [DOUBLED, CODES["call"]]
    assert list(found) == fresh(journal)


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
        "grade": 11,
        "reward": 12,
        "calibration": 13,
        "decision": 14,
        "batch": 15,
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
    assert index.count(CODES["call"]) == sum(entry.kind == "call" for entry in index) > 0
