"""The journal: on disk before it counts, whole lines only, and it says when the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koderz.testing import a_plan
from koderz_tracker.errors import JournalError, StorageError
from koderz_tracker.index import IndexEntry, load_index, read_records
from koderz_tracker.journal import NAME, Journal
from koderz_tracker.records import Finished, Once, Record, encode
from tests.conftest import PATIENCE
from tests.tracker import builders


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with its plan in it."""
    path = tmp_path / NAME
    path.write_bytes(encode(a_plan()))
    return path


@contextmanager
def opened(path: Path, on_durable: Callable[[IndexEntry], None] = lambda entry: None) -> Iterator[Journal]:
    journal = Journal(path, load_index(path), on_durable)
    try:
        yield journal
    finally:
        journal.close()


def note(name: str) -> Once:
    return Once(experiment_id="exp_00000000000000ab", name=name)


def names(path: Path) -> list[str]:
    """The notes that the file holds; each of its lines has to be whole."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [line["name"] for line in map(json.loads, data.splitlines()) if line["kind"] == "once"]


def write(path: Path, *records: Record) -> None:
    async def go() -> None:
        with opened(path) as journal:
            await journal.append(records)

    asyncio.run(go())


class Gate:
    """An fdatasync that waits until it is let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.open, self.passed = threading.Event(), threading.Event(), 0
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, file: int) -> None:
        self.entered.set()
        assert self.open.wait(PATIENCE)
        self.passed += 1
        os.fsync(file)


async def test_append_returns_only_when_the_line_is_on_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    with opened(path) as journal:
        appending = asyncio.create_task(journal.append([note("a")]))
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        assert names(path) == ["a"]  # written, but nobody has said yet that it would outlive a power cut
        done, _ = await asyncio.wait([appending], timeout=0.05)
        assert not done
        gate.open.set()
        await appending
        assert gate.passed == 1


async def test_lines_that_gather_meanwhile_share_one_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    with opened(path) as journal:
        first = asyncio.create_task(journal.append([note("first")]))
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        rest = [asyncio.create_task(journal.append([note(f"{i}")])) for i in range(200)]
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(first, *rest)
    assert gate.passed == 2
    assert names(path) == ["first", *map(str, range(200))]


def test_append_from_several_tasks_keeps_lines_whole_and_ordered(path: Path) -> None:
    counted: list[IndexEntry] = []

    async def appender(journal: Journal, who: str) -> None:
        for i in range(20):
            await journal.append([note(f"{who}{i}a"), note(f"{who}{i}b")])

    async def go() -> None:
        with opened(path, counted.append) as journal:
            await asyncio.gather(*(appender(journal, who) for who in "abcdefgh"))

    asyncio.run(go())
    found = names(path)
    assert len(found) == len(counted) == 320
    for who in "abcdefgh":
        assert [n for n in found if n[0] == who] == [f"{who}{i}{part}" for i in range(20) for part in "ab"]
    data = path.read_bytes()
    assert [json.loads(data[e.offset : e.offset + e.length])["name"] for e in counted] == found


async def test_append_counts_a_line_before_it_returns(path: Path) -> None:
    counted: list[IndexEntry] = []

    with opened(path, counted.append) as journal:
        for i in range(1, 5):
            await journal.append([note("x")])
            assert len(counted) == i


async def test_close_writes_pending_lines(path: Path) -> None:
    with opened(path) as journal:
        waiting = asyncio.create_task(journal.append([note("last")]))
        await asyncio.sleep(0)
    await waiting
    assert names(path) == ["last"]


async def test_append_that_is_cancelled_is_on_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    with opened(path) as journal:
        writing = asyncio.create_task(journal.append([note("a")]))
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        writing.cancel()
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await journal.append([note("b")])
    assert names(path) == ["a", "b"]


# What a crash leaves behind


@pytest.mark.slow
def test_torn_last_line_is_dropped_and_cut_off_on_reopening(path: Path) -> None:
    write(path, note("a"), note("b"))
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut])
        assert load_index(path).end == start

        write(path, note("c"))

        assert names(path) == ["a", "c"], f"torn at byte {cut}"
        assert path.read_bytes()[:start] == whole[:start]


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\0" * 100 + b"\n", b'{"kind":"once","exp\n', b"\xff\xfe", b"{}{}\n"])
def test_torn_end_after_a_power_cut_is_dropped(path: Path, tail: bytes) -> None:
    write(path, note("a"))
    with path.open("ab") as file:
        file.write(tail)

    write(path, note("b"))

    assert names(path) == ["a", "b"]


def test_damaged_line_is_named_and_the_others_count(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, note("a"), note("b"), note("c"))
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], b"#" * (len(lines[2]) - 1) + b"\n", lines[3]])
    path.write_bytes(damaged)

    write(path, note("d"))

    at = len(lines[0]) + len(lines[1])
    assert f"{path}: byte {at}: 1 line can't be read and is left out" in caplog.text
    assert f"koderz doctor --repair {path.parent.name}" in caplog.text
    assert path.read_bytes().startswith(damaged)
    assert [record.name for record in read_records(path, spans(path)) if isinstance(record, Once)] == ["a", "c", "d"]


def spans(path: Path) -> list[tuple[int, int]]:
    return [entry.span for entry in load_index(path) if entry.kind]


@pytest.mark.parametrize("data", [b"", b'{"kind":"plan"', b"\0" * 100])
def test_journal_without_a_whole_line_is_an_error(path: Path, data: bytes) -> None:
    path.write_bytes(data)

    with pytest.raises(JournalError, match="no whole line, so no plan"):
        load_index(path)


# A disk that refuses


class Disk:
    """Takes `room` bytes for one file, then refuses, in the middle of a line if need be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int, code: int = errno.ENOSPC) -> None:
        self.room, self._code, self._write = room, code, os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, file: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{file}").readlink().name == NAME:
            if not self.room:
                raise OSError(self._code, os.strerror(self._code))
            data = data[: self.room]
            self.room -= len(data)
        return self._write(file, data)


async def refused(append: Coroutine[Any, Any, None]) -> str:
    with pytest.raises(StorageError) as raised:
        await append
    return str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="looks files up in /proc")
@pytest.mark.parametrize("room", [0, 1, 70, 150])
def test_append_fails_for_good_on_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    async def go() -> list[str]:
        with opened(path) as journal:
            await journal.append([note("before")])
            Disk(monkeypatch, room)
            waiting = [asyncio.create_task(refused(journal.append([note(f"{i}")]))) for i in range(5)]
            said = await asyncio.gather(*waiting)
            monkeypatch.undo()  # room again: a journal that has failed stays closed all the same
            return [*said, await refused(journal.append([note("after")]))]

    said = asyncio.run(go())
    assert all("is full; make room, then resume the run" in text for text in said)
    assert names(path) == ["before"]
    write(path, note("resumed"))
    assert names(path) == ["before", "resumed"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks files up in /proc")
async def test_sync_failure_counts_as_a_failed_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    counted: list[IndexEntry] = []

    with opened(path, counted.append) as journal:
        await journal.append([note("before")])
        monkeypatch.setattr(os, "fdatasync", broken)
        found = await refused(journal.append([note("lost")]))
    assert "Input/output error" in found
    assert names(path) == ["before"]
    assert len(counted) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks files up in /proc")
async def test_close_leaves_no_file_open(path: Path) -> None:
    def opened_files() -> list[str]:
        links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
        return sorted(str(link.readlink()) for link in links if path.parent in link.resolve().parents)

    with opened(path):
        found = await asyncio.to_thread(opened_files)
    assert [Path(name).name for name in found] == ["journal.index", "journal.jsonl"]
    assert opened_files() == []


async def test_append_to_a_journal_that_was_deleted_says_so(path: Path) -> None:
    with opened(path) as journal:
        await journal.append([note("before")])
        await asyncio.to_thread(path.unlink)
        found = await refused(journal.append([note("lost")]))
    assert found == (f"{path} was deleted while the run was recorded in it, so the run ends here; begin another one")


@pytest.mark.skipif(sys.platform != "linux", reason="looks files up in /proc")
def test_index_that_cannot_be_written_does_not_stop_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.write

    def write_journal_only(file: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{file}").readlink().suffix == ".index":
            original(file, data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(file, data)

    async def go() -> None:
        with opened(path) as journal:
            await journal.append([note("a")])
            monkeypatch.setattr(os, "write", write_journal_only)
            await journal.append([note("b")])
            await journal.append([note("c")])
            monkeypatch.undo()

    asyncio.run(go())
    assert names(path) == ["a", "b", "c"]
    assert len(list(load_index(path))) == 4
    write(path, note("d"))
    assert len(load_index(path).packed) == load_index(path).cached


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from koderz.testing import a_plan
from tests.tracker import builders
from koderz_tracker.errors import StorageError
from koderz_tracker.tracker import Tracker

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

async def main():
    with Tracker.create(Path(sys.argv[1]), builders.RUN, a_plan()) as tracker:
        kept = 0
        try:
            for number in range(1000):
                await tracker.record(builders.call(0, number, reply="x" * 700))
                kept += 1
        except StorageError as error:
            print(kept, error.exit_code)

asyncio.run(main())
"""


def test_append_on_a_real_full_disk_keeps_acknowledged_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True, timeout=PATIENCE
    )

    kept, exit_code = map(int, done.stdout.split())
    lines = [json.loads(line) for line in (tmp_path / builders.RUN / NAME).read_bytes().splitlines()]
    assert exit_code == 3
    assert 5 < kept < 1000
    assert [line["call"] for line in lines if line["kind"] == "call"] == list(range(kept))


async def test_append_of_an_unserializable_record_fails_alone(path: Path) -> None:
    with opened(path) as journal:
        with pytest.raises(JournalError, match="a finished can't be written down"):
            await journal.append([note("half"), Finished(status="\ud800")])
        await journal.append([note("next")])
    assert names(path) == ["next"]
