"""Long texts: stored once, stored before they are named, and read back as they were."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import os
import random
from pathlib import Path

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.blobs import BLOB_BYTES, fetched, read_text, spill
from koderz_tracker.errors import JournalError, StorageError
from koderz_tracker.journal import NAME
from koderz_tracker.messages import MESSAGE_BYTES, digest_of
from koderz_tracker.privacy import Privacy
from koderz_tracker.records import Attempt, Blob, Call, Finished, LongMessage, Once, Record, decode, encode
from koderz_tracker.stories import LOST, Stories
from koderz_tracker.summary import summarize
from koderz_tracker.tracker import Tracker
from tests.tracker import builders


def lines(folder: Path) -> list[Record]:
    found = [decode(line) for line in (folder / NAME).read_bytes().splitlines()]
    return [record for record in found if record is not None]


def one(folder: Path, kind: str) -> Record:
    (found,) = [line for line in lines(folder) if line.kind == kind]
    return found


def blob_files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "blobs").glob("*")) if (folder / "blobs").exists() else []


@pytest.mark.parametrize("text", ["x" * (BLOB_BYTES + 1), "é" * (BLOB_BYTES // 2 + 1), "🙂\n\0\x1b" * 300_000])
def test_blob_above_a_megabyte_is_read_back(tmp_path: Path, text: str) -> None:
    folder = a_journal(tmp_path, builders.call(0, reply=text))

    found = one(folder, "call")

    assert isinstance(found, Call)
    assert found.reply == Blob(hashlib.sha256(text.encode()).hexdigest(), len(text.encode()))
    assert read_text(found.reply, folder) == text
    assert (folder / NAME).stat().st_size < 2000


@pytest.mark.parametrize("text", ["x" * BLOB_BYTES, "é" * (BLOB_BYTES // 2), "short", ""])
def test_blob_is_not_made_up_to_a_megabyte(tmp_path: Path, text: str) -> None:
    folder = a_journal(tmp_path, builders.call(0, reply=text))

    found = one(folder, "call")

    assert isinstance(found, Call)
    assert found.reply == text
    assert not blob_files(folder)


def test_blob_holds_any_text_of_a_record(tmp_path: Path) -> None:
    program, detail = "p" * (BLOB_BYTES + 1), "d" * (BLOB_BYTES + 2)
    attempt = spill(builders.attempt(0, program=program, detail=detail, feedback="short"), tmp_path)

    assert isinstance(attempt, Attempt)
    assert attempt.program is not None
    assert attempt.feedback == "short"
    assert [read_text(text, tmp_path) for text in (attempt.program, attempt.detail)] == [program, detail]


LONG = "x" * (BLOB_BYTES + 1)


@pytest.mark.parametrize(
    "record",
    [builders.fault(0, reason=LONG), builders.judged(0, note=LONG), Finished(status="stopped", reason=LONG)],
    ids=lambda record: record.kind,
)
def test_blob_of_any_field_is_read_back(tmp_path: Path, record: Record) -> None:
    folder = a_journal(tmp_path, record)

    assert summarize(folder).planned == 3


def test_equal_texts_share_one_file(tmp_path: Path) -> None:
    text = "x" * (BLOB_BYTES + 1)
    folder = a_journal(tmp_path, builders.call(0, reply=text), builders.call(1, reply=text, reasoning=text))

    assert blob_files(folder) == [f"{digest_of(text)}.gz"]


def test_blob_is_stored_before_the_line_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def go() -> Path:
        with Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker:
            monkeypatch.setattr(os, "write", full)
            with pytest.raises(StorageError):
                await tracker.record(builders.call(0, reply="x" * (BLOB_BYTES + 1)))
            monkeypatch.undo()
            return tracker.folder

    folder = asyncio.run(go())
    assert len(blob_files(folder)) == 1
    assert [line.kind for line in lines(folder)] == ["plan"]


def test_blob_that_cannot_be_stored_leaves_neither_file_nor_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def go() -> Path:
        with Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker:
            monkeypatch.setattr(os, "fsync", full)
            with pytest.raises(StorageError, match=r"can't be written \(No space left on device\)"):
                await tracker.record(builders.call(0, reply="x" * (BLOB_BYTES + 1)))
            monkeypatch.undo()
            return tracker.folder

    folder = asyncio.run(go())
    assert blob_files(folder) == []
    assert [line.kind for line in lines(folder)] == ["plan"]


def test_blob_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("in the way")

    with pytest.raises(StorageError):
        spill(builders.call(0, reply="x" * (BLOB_BYTES + 1)), tmp_path)


def test_blob_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="the text abcdefabcdef… is gone from blobs/"):
        read_text(Blob("abcdef" * 10 + "abcd", 5), tmp_path)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "abcdef", "AB" * 32, "ab" * 32 + "\n", ""])
def test_digest_that_is_malformed_names_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(JournalError, match="names no text in blobs/"):
        read_text(Blob(name, 5), tmp_path)


@pytest.mark.parametrize("claimed", [3_000, 1 << 40, -1])
def test_blob_unpacks_no_more_than_its_stated_size(
    tmp_path: Path, claimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb, unpacked = b"\0" * 20_000_000, []
    blob = Blob(hashlib.sha256(bomb).hexdigest(), claimed)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / f"{blob.blob}.gz").write_bytes(gzip.compress(bomb))
    original = gzip.GzipFile.read

    def read(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        unpacked.append(size)
        return original(self, size)

    monkeypatch.setattr(gzip.GzipFile, "read", read)

    with pytest.raises(JournalError):
        read_text(blob, tmp_path)
    assert unpacked in ([], [claimed + 1])


def test_blob_whose_file_was_damaged_is_stored_again(tmp_path: Path) -> None:
    blob, path = a_blob(tmp_path)
    path.write_bytes(b"\0" * 100)

    assert a_blob(tmp_path)[0] == blob
    assert read_text(blob, tmp_path)


def test_story_survives_a_lost_text_or_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long, message = "x" * (BLOB_BYTES + 1), [{"role": "user", "content": "m" * (MESSAGE_BYTES + 1)}]
    call = builders.call(0, reply=long, messages=message)
    once = Once(experiment_id=call.experiment_id, name="log", value="y" * (BLOB_BYTES + 1), key="once:log/1")
    folder = a_journal(tmp_path, call, builders.attempt(0, program=long), once, builders.judged(0))
    for path in (folder / "blobs").iterdir():
        path.unlink()
    lines_ = (folder / NAME).read_bytes().splitlines(keepends=True)
    (folder / NAME).write_bytes(b"".join([lines_[0], b"#\n", *lines_[2:]]))

    stories = Stories(folder)
    stories.refresh()
    found_call, found_attempt, found_once, _ = stories.of(call.experiment_id)

    assert caplog.text.count("texts are gone from blobs/") == 1
    assert isinstance(found_call, Call)
    assert isinstance(found_attempt, Attempt)
    assert isinstance(found_once, Once)
    assert (found_call.reply, found_call.messages) == (LOST, [{"role": "user", "content": LOST}])
    assert (found_attempt.program, found_attempt.verdict, found_once.value) == (None, "failed", None)


def a_blob(folder: Path) -> tuple[Blob, Path]:
    text = random.Random(1).randbytes(BLOB_BYTES).hex()
    call = spill(builders.call(0, reply=text), folder)
    assert isinstance(call, Call)
    assert isinstance(call.reply, Blob)
    return call.reply, folder / "blobs" / f"{call.reply.blob}.gz"


@pytest.mark.parametrize("damage", ["cut", "no gzip"])
def test_blob_whose_file_is_damaged_is_named(tmp_path: Path, damage: str) -> None:
    blob, path = a_blob(tmp_path)
    path.write_bytes(path.read_bytes()[:-100] if damage == "cut" else b"hello" * 100)

    with pytest.raises(JournalError, match="is gone from blobs/"):
        read_text(blob, tmp_path)


@pytest.mark.parametrize("damage", ["overwritten", "another text", "emptied"])
def test_blob_with_other_contents_is_not_handed_out(tmp_path: Path, damage: str) -> None:
    blob, path = a_blob(tmp_path)
    whole = path.read_bytes()
    overwritten = whole[:5000] + b"\xff" * 500 + whole[5500:]
    damaged = {"overwritten": overwritten, "another text": gzip.compress(b"something else"), "emptied": b""}
    path.write_bytes(damaged[damage])

    with pytest.raises(JournalError):
        read_text(blob, tmp_path)


async def test_once_value_above_a_megabyte_is_read_back(tmp_path: Path) -> None:
    text = "measured " * 150_000
    once = Once(experiment_id=builders.experiment_id(0), name="log", value=text, key="once:log/1")

    folder = a_journal(tmp_path, once)
    with Tracker.reopen(folder) as tracker:
        tracker.select()
        (found,) = tracker.recorded(builders.experiment_id(0))
    assert isinstance(found, Once)
    assert found.value == text


# Long messages


def conversation(*sizes: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": chr(97 + i) * size} for i, size in enumerate(sizes)]


def test_message_above_4_kb_is_stored_once_by_digest(tmp_path: Path) -> None:
    messages = conversation(10, MESSAGE_BYTES + 1)
    folder = a_journal(tmp_path, *(builders.call(task, n, messages=messages) for task in (0, 1) for n in (1, 2)))

    (message,) = [line for line in lines(folder) if isinstance(line, LongMessage)]
    calls = [line for line in lines(folder) if isinstance(line, Call)]
    assert message.content == messages[1]["content"]
    assert len(calls) == 4
    for call in calls:
        assert list(call.messages) == [
            messages[0],
            {"role": "user", "digest": message.digest, "bytes": MESSAGE_BYTES + 1},
        ]
    assert [line.kind for line in lines(folder)][:3] == ["plan", "message", "call"]


def test_message_of_4_kb_is_inline(tmp_path: Path) -> None:
    messages = conversation(MESSAGE_BYTES, MESSAGE_BYTES // 4)
    folder = a_journal(tmp_path, builders.call(0, messages=messages))

    found = one(folder, "call")
    assert isinstance(found, Call)
    assert list(found.messages) == messages


def test_messages_are_measured_in_bytes(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "é" * (MESSAGE_BYTES // 2 + 1)}]
    folder = a_journal(tmp_path, builders.call(0, messages=messages))

    assert one(folder, "message").content == messages[0]["content"]  # type: ignore[union-attr]


def test_message_of_an_earlier_session_is_not_stored_again(tmp_path: Path) -> None:
    messages = conversation(MESSAGE_BYTES + 1)

    async def go() -> Path:
        folder = a_journal(tmp_path, builders.call(0, messages=messages))
        with Tracker.reopen(folder) as tracker:
            tracker.select()
            await tracker.record(builders.call(1, messages=messages))
        return folder

    assert [line.kind for line in lines(asyncio.run(go()))] == ["plan", "message", "call", "call"]


def test_message_of_concurrent_calls_is_stored_once_and_first(tmp_path: Path) -> None:
    messages = conversation(MESSAGE_BYTES + 1)

    async def go() -> Path:
        with Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker:
            await asyncio.gather(*(tracker.record(builders.call(task, messages=messages)) for task in range(8)))
        return tracker.folder

    assert [line.kind for line in lines(asyncio.run(go()))] == ["plan", "message", *["call"] * 8]


def test_message_above_a_megabyte_lies_in_a_blob(tmp_path: Path) -> None:
    messages = conversation(BLOB_BYTES + 1)
    folder = a_journal(tmp_path, *(builders.call(0, n, messages=messages) for n in (1, 2, 3)))

    message = one(folder, "message")
    assert isinstance(message, LongMessage)
    assert read_text(message.content, folder) == messages[0]["content"]
    assert (folder / NAME).stat().st_size < 4000


def test_message_with_parts_or_tool_calls_is_read_back(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * MESSAGE_BYTES}"}}
    call = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": "x" * MESSAGE_BYTES}}
    messages: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "y" * (MESSAGE_BYTES + 1), "tool_call_id": "c1"},
        {"role": "user", "content": "short", "name": "ann", "digest": "its own"},
    ]
    folder = a_journal(tmp_path, *(builders.call(0, n, messages=messages) for n in (1, 2)))

    stories = Stories(folder)
    stories.refresh()
    found = [record for record in stories.of(builders.call(0).experiment_id) if isinstance(record, Call)]

    assert [list(call.messages) for call in found] == [messages, messages]
    assert [line.kind for line in lines(folder)] == ["plan", *["message"] * 3, "call", "call"]


def test_journal_grows_linearly_with_a_conversation(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": f"{i}" * 5000} for i in range(40)]
    calls = [builders.call(0, n, messages=turns[:n], reply="r" * 100) for n in range(1, 41)]
    folder = a_journal(tmp_path, *calls)

    content = sum(len(turn["content"]) for turn in turns)
    everything = sum(len(message["content"]) for call in calls for message in call.messages)
    assert (folder / NAME).stat().st_size < content + 40 * 40 * 130 < everything / 8


def test_items_of_a_turn_lie_in_a_blob_where_they_are_large(tmp_path: Path) -> None:
    small, large = [{"type": "reasoning", "text": "a"}], [{"type": "reasoning", "text": "a" * (2 << 20)}]
    calls = [
        Call(experiment_id="exp_1", call=1, purpose="attempt", model="m", messages=(), reply="", items=items)
        for items in (small, large)
    ]
    stored = [spill(call, tmp_path) for call in calls]

    assert stored[0] == calls[0]
    assert isinstance(stored[1], Call)
    assert isinstance(stored[1].items, Blob)
    assert [fetched(call, tmp_path) for call in stored] == calls
    sealed = [Privacy(b"key").sealed(call, a_plan()) for call in calls]
    assert all(b'"type":"reasoning"' not in encode(call) for call in sealed)
    opened = [Privacy(b"key").opened(fetched(spill(call, tmp_path), tmp_path)) for call in sealed]
    assert [call.items for call in opened if isinstance(call, Call)] == [small, large]
