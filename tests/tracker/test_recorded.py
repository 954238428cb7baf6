"""Replies on record: where they are found, and which of them can't be taken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from koderz.testing import a_plan
from koderz_tracker.blobs import BLOB_BYTES
from koderz_tracker.journal import NAME
from koderz_tracker.privacy import Privacy
from koderz_tracker.recorded import RecordedReplies
from koderz_tracker.records import Call
from koderz_tracker.tracker import Tracker
from tests.tracker import builders

ASKED, OTHER = "0123456789abcdef" * 2, "f" * 32


def run_of(tmp_path: Path, *calls: Call, privacy: Privacy | None = None) -> Path:
    """A run that has ended, with these calls."""

    async def go() -> Path:
        plan = a_plan()
        with Tracker.create(tmp_path, plan.run_id or "", plan) as tracker:
            tracker.privacy = privacy
            await tracker.record(*calls)
            return tracker.folder

    return asyncio.run(go())


def call(number: int = 1, *, asked: str = ASKED, reply: str = "yes", cost: float = 0.5) -> Call:
    return replace(builders.call(0, number), asked=asked, reply=reply, text=None, cost=cost)


def test_a_reply_is_found_by_what_was_asked_and_taken_once(tmp_path: Path) -> None:
    folder = run_of(tmp_path, call(), call(2, asked=OTHER, reply="no"))
    replies = RecordedReplies([folder])
    found = replies.take(ASKED)

    assert replies.calls == 2
    assert found is not None
    assert found.reused is not None
    assert (found.reply, found.cost, found.cost_saved) == ("yes", 0.0, 0.5)
    assert (found.reused.run_id, found.reused.call) == (folder.name, 1)
    assert replies.take(ASKED) is None
    replies.give_back()
    assert replies.take(ASKED) == found


def test_a_line_that_another_program_wrote_is_found_as_well(tmp_path: Path) -> None:
    folder = run_of(tmp_path, call())
    lines = [orjson.loads(line) for line in (folder / NAME).read_bytes().splitlines()]
    turned = [{"kind": line["kind"], **dict(reversed(line.items()))} for line in lines[1:]]
    again = [orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in (lines[0], *turned)]
    (folder / NAME).write_bytes(b"".join(again))

    assert RecordedReplies([folder]).take(ASKED) is not None


def test_private_texts_are_opened_with_their_key_alone(tmp_path: Path) -> None:
    folder = run_of(tmp_path, call(reply="a secret"), privacy=Privacy(b"key"))
    assert b"a secret" not in (folder / NAME).read_bytes()
    found = RecordedReplies([folder], Privacy(b"key")).take(ASKED)

    assert found is not None
    assert found.reply == "a secret"
    for other in (None, Privacy(b"another")):
        said: list[str] = []
        assert RecordedReplies([folder], other, said.append).take(ASKED) is None
        assert len(said) == 1
        assert said[0].startswith(f"reuse: a reply of {folder.name} can't be read, so that is asked anew: ")


def test_a_long_text_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    long = "x" * (BLOB_BYTES + 1)
    folder = run_of(tmp_path, call(reply=long))
    found = RecordedReplies([folder]).take(ASKED)
    assert found is not None
    assert found.reply == long
    next((folder / "blobs").iterdir()).unlink()
    said: list[str] = []
    assert RecordedReplies([folder], say=said.append).take(ASKED) is None
    assert "is gone from blobs/" in said[0]


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_a_journal_that_changes_meanwhile_gives_nothing(tmp_path: Path, change: str) -> None:
    folder = run_of(tmp_path, call())
    said: list[str] = []
    replies = RecordedReplies([folder], say=said.append)
    journal = folder / NAME
    data = journal.read_bytes()
    journal.unlink()
    if change == "changed":
        journal.write_bytes(data.replace(ASKED.encode(), OTHER.encode()))
    assert replies.take(ASKED) is None
    assert len(said) == 1


def test_runs_that_cannot_be_looked_through_are_said(tmp_path: Path) -> None:
    older = run_of(tmp_path / "older", call(asked=""))
    broken = tmp_path / "bench_00000000_20260101_000000"
    broken.mkdir()
    (broken / NAME).write_bytes(b"nothing\n")
    said: list[str] = []
    assert RecordedReplies([older, broken], say=said.append).calls == 0
    assert any("1 run of an earlier koderz" in line for line in said)
    assert any(f"none of the replies of {broken.name} is taken" in line for line in said)


def test_a_journal_through_a_link_is_not_read(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "runs", call())
    link = tmp_path / folder.name
    link.symlink_to(folder)
    said: list[str] = []
    assert RecordedReplies([link], say=said.append).take(ASKED) is None
    assert len(said) == 1
