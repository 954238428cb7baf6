"""Runs of other machines come together: none lost, none doubled."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.errors import KoderzError
from koderz_tracker.journal import NAME
from koderz_tracker.merge import ConflictError, foreign_runs, merge_run
from koderz_tracker.records import Record
from koderz_tracker.runs import lock_run
from koderz_tracker.stories import Stories
from koderz_tracker.summary import summarize
from koderz_tracker.tracker import Tracker
from tests.tracker.builders import RUN, call, judged


def a_run(results: Path, *records: Record) -> Path:
    return a_journal(results, *records)


def append(folder: Path, *records: Record) -> None:
    async def go() -> None:
        with Tracker.reopen(folder) as tracker:
            await tracker.record(*records)

    asyncio.run(go())


def test_merge_adds_a_whole_run_with_its_summary(tmp_path: Path) -> None:
    large = "x" * (3 << 20)
    theirs = a_run(tmp_path / "there", call(0, reply=large), judged(0))

    assert merge_run(theirs, tmp_path / "here").what == "added"

    own = tmp_path / "here" / RUN
    assert (own / NAME).read_bytes() == (theirs / NAME).read_bytes()
    assert own.with_suffix(".json").exists()
    stories = Stories(own)
    stories.refresh()
    assert any(getattr(record, "reply", "") == large for record in stories.of(judged(0).experiment_id))
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [RUN, f"{RUN}.json"]


def test_merge_adds_a_run_without_a_summary(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0))
    merge_run(theirs, tmp_path / "here", summary=False)
    append(theirs, judged(1))

    assert merge_run(theirs, tmp_path / "here").what == "extended"

    assert [path.name for path in (tmp_path / "here").iterdir()] == [RUN]


def test_merge_leaves_an_existing_run_unchanged(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0))
    merge_run(theirs, tmp_path / "here")
    before = (tmp_path / "here" / RUN / NAME).stat()

    assert merge_run(theirs, tmp_path / "here").what == "there already"

    assert (tmp_path / "here" / RUN / NAME).stat() == before


def test_merge_replaces_a_shorter_journal_by_a_longer_one_only(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0))
    merge_run(theirs, tmp_path / "here")
    append(theirs, judged(1))

    assert merge_run(theirs, tmp_path / "here").what == "extended"
    assert summarize(tmp_path / "here" / RUN).summary.total_problems == 2

    append(tmp_path / "here" / RUN, judged(2))
    assert merge_run(theirs, tmp_path / "here").what == "behind"
    assert summarize(tmp_path / "here" / RUN).summary.total_problems == 3


def test_journals_that_went_different_ways_are_left_alone(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0))
    merge_run(theirs, tmp_path / "here")
    append(theirs, judged(1))
    append(tmp_path / "here" / RUN, judged(2))
    before = (tmp_path / "here" / RUN / NAME).read_bytes()

    with pytest.raises(ConflictError, match="have different records"):
        merge_run(theirs, tmp_path / "here")

    assert (tmp_path / "here" / RUN / NAME).read_bytes() == before


def test_merge_takes_whole_lines_of_an_unfinished_run(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0))
    whole = (theirs / NAME).read_bytes()
    with (theirs / NAME).open("ab") as file:
        file.write(b'{"kind":"call","ti')

    merge_run(theirs, tmp_path / "here")

    assert (tmp_path / "here" / RUN / NAME).read_bytes() == whole


def test_merge_does_not_touch_a_held_run(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0))
    merge_run(theirs, tmp_path / "here")
    append(theirs, judged(1))

    with lock_run(tmp_path / "here" / RUN), pytest.raises(KoderzError, match="another koderz process"):
        merge_run(theirs, tmp_path / "here")


def test_imports_at_once_end_as_one_set_of_runs(tmp_path: Path) -> None:
    folders = []
    for machine in range(3):
        for number in range(4):
            run_id = f"bench_{number:08x}_20260131_12000{number}"
            of = a_plan(run_id=run_id, time="2026-01-31T12:00:00.000000")
            results = tmp_path / f"machine-{machine}"
            folder = a_journal(results, plan=of)
            folders.append(folder)

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(lambda folder: merge_run(folder, tmp_path / "here").what, folders))

    assert outcomes.count("added") == 4
    assert outcomes.count("there already") == 8
    assert len(list((tmp_path / "here").glob("bench_*.json"))) == 4


def test_links_and_strange_files_of_a_foreign_folder_are_not_taken(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    theirs = a_run(tmp_path / "there", judged(0))
    (theirs / "blobs").mkdir()
    (theirs / "blobs" / f"{'a' * 64}.gz").symlink_to(secret)
    (theirs / "blobs" / "evil.sh").write_text("rm")
    (theirs / "extra").write_text("x")

    merge_run(theirs, tmp_path / "here")

    taken = {path.name for path in (tmp_path / "here" / RUN).rglob("*")}
    assert taken - {"journal.index", "sinks.json", ".sinks.lock"} == {NAME}  # the others are made here


def test_merge_names_a_run_by_its_plan_not_its_folder(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0))
    renamed = theirs.rename(tmp_path / "there" / "copy")

    assert merge_run(renamed, tmp_path / "here").run_id == RUN


def test_merge_refuses_a_plan_that_names_a_place_outside(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0))
    data = (theirs / NAME).read_bytes().replace(RUN.encode(), b"../../../../tmp/evil_____________", 1)
    (theirs / NAME).write_bytes(data)

    with pytest.raises(KoderzError, match="not a run"):
        merge_run(theirs, tmp_path / "here")


def test_merge_of_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match="holds no run"):
        foreign_runs(tmp_path)
    theirs = a_run(tmp_path / "there", judged(0))
    assert foreign_runs(tmp_path / "there") == foreign_runs(theirs) == [theirs]


def test_merge_takes_readable_lines_of_a_damaged_journal(tmp_path: Path) -> None:
    theirs = a_run(tmp_path / "there", judged(0), judged(1))
    lines = (theirs / NAME).read_bytes().splitlines(keepends=True)
    (theirs / NAME).write_bytes(lines[0] + b"garbage\n" + lines[2])

    assert merge_run(theirs, tmp_path / "here").what == "added"

    ours = summarize(tmp_path / "here" / theirs.name)
    assert (len(ours.results), ours.damaged_lines) == (1, 1)
