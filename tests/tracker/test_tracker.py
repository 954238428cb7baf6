"""The tracker: what a run has come to, and what is left of it, session after session."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker import files
from koderz_tracker.errors import KoderzError, StorageError
from koderz_tracker.index import experiment_number
from koderz_tracker.journal import NAME
from koderz_tracker.records import Finished, Once, Record, Resumed, decode
from koderz_tracker.runs import is_locked
from koderz_tracker.tracker import Tracker
from tests.tracker import builders
from tests.tracker.builders import attempt, call, experiment_id, fault, judged


def tally(tracker: Tracker) -> dict[str, Any]:
    return {name: getattr(tracker.tally, name) for name in ("judged", "passed", "faults", "calls", "cost")}


def reopened(tmp_path: Path, *records: Record, look: Callable[[Tracker], Any]) -> Any:
    async def go() -> Any:
        folder = a_journal(tmp_path, *records)
        with Tracker.reopen(folder) as tracker:
            return look(tracker)

    return asyncio.run(go())


HISTORY = (
    call(0),
    attempt(0, verdict="passed"),
    judged(0, True),
    call(1),
    attempt(1),
    judged(1, False),
    call(2),
    fault(2, cost=0.25),
    call(3),
    attempt(3),
)
"""A pass, a failure, a fault, and one that never ended."""


async def test_tracker_counts_while_it_records(tmp_path: Path) -> None:
    zero = {"judged": 0, "passed": 0, "faults": 0, "calls": 0, "cost": 0.0}
    asked = zero | {"calls": 1, "cost": 0.25}
    with Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker:
        found = [tally(tracker)]
        for record in (call(0), judged(0, True), judged(1, False), fault(2), judged(2, True)):
            await tracker.record(record)
            found.append(tally(tracker))
    assert found == [
        zero,
        asked,
        asked | {"judged": 1, "passed": 1},
        asked | {"judged": 2, "passed": 1},
        asked | {"judged": 2, "passed": 1, "faults": 1},
        asked | {"judged": 3, "passed": 2},
    ]


def test_tracker_counts_the_same_in_a_later_session(tmp_path: Path) -> None:
    assert reopened(tmp_path, *HISTORY, look=tally) == {
        "judged": 2,
        "passed": 1,
        "faults": 1,
        "calls": 4,
        "cost": 1.0,
    }


@pytest.mark.parametrize(
    ("choice", "ended"),
    [
        ({}, [0, 1, 2]),
        ({"faults": True}, [0, 1]),
        ({"faults": True, "causes": ["sandbox", "unreachable"]}, [0, 1]),
        ({"faults": True, "causes": ["sandbox"]}, [0, 1, 2]),
        ({"judged": True}, [2]),
        ({"faults": True, "judged": True}, []),
    ],
    ids=["resume", "retry", "retry-of-its-cause", "retry-of-another-cause", "judged", "rescore"],
)
def test_resume_modes_choose_their_experiments(tmp_path: Path, choice: dict[str, Any], ended: list[int]) -> None:
    def look(tracker: Tracker) -> tuple[list[int], list[int], dict[str, Any]]:
        tracker.select(**choice)
        left = [task for task in range(5) if experiment_number(experiment_id(task)) not in tracker.tally.ended]
        return (
            [task for task in range(5) if task not in left],
            [t for t in left if tracker.recorded(experiment_id(t))],
            tally(tracker),
        )

    done, with_lines, counted = reopened(tmp_path, *HISTORY, look=look)

    assert done == ended
    assert with_lines == [task for task in (0, 1, 2, 3) if task not in ended]
    assert counted["judged"] == len({0, 1} & set(ended))
    assert counted["passed"] == len({0} & set(ended))
    assert counted["faults"] == len({2} & set(ended))
    assert (counted["calls"], counted["cost"]) == (4, 1.0)  # what was paid stays paid


async def test_tracker_counts_an_experiment_that_ended_again_once(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, *HISTORY)
    with Tracker.reopen(folder) as tracker:
        tracker.select(faults=True, judged=True)
        for record in (judged(0, False), judged(1, True), judged(2, True), judged(3, True)):
            await tracker.record(record)
        live = tally(tracker)
    with Tracker.reopen(folder) as tracker:
        assert tally(tracker) == live
    assert live == {"judged": 4, "passed": 3, "faults": 0, "calls": 4, "cost": 1.0}


def test_recorded_lines_of_an_experiment_come_in_order(tmp_path: Path) -> None:
    once = Once(experiment_id=experiment_id(0), name="x", value=[1], key="once:x/1")
    mixed = (call(0), call(1), attempt(0), once, attempt(1), call(0, 2, text="l" * 9000), attempt(0, 2))

    def look(tracker: Tracker) -> list[Record]:
        tracker.select()
        assert tracker.recorded(experiment_id(2)) == []
        return tracker.recorded(experiment_id(0))

    found = reopened(tmp_path, *mixed, look=look)

    assert [(r.kind, getattr(r, "call", None)) for r in found] == [
        ("call", 1),
        ("attempt", 1),
        ("once", None),
        ("call", 2),
        ("attempt", 2),
    ]


async def test_recorded_lines_of_a_new_run_are_none(tmp_path: Path) -> None:
    with Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker:
        await tracker.record(call(0))
        assert tracker.recorded(experiment_id(0)) == []
        assert experiment_number(experiment_id(0)) not in tracker.tally.ended


async def test_sessions_and_their_ends_are_on_record(tmp_path: Path) -> None:
    with Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker:
        await tracker.finish("stopped", "the cap")
    with Tracker.reopen(tracker.folder) as tracker:
        tracker.select()
        await tracker.begin_session("retry", {"concurrency": 3})
        await tracker.finish("complete")
    found = [decode(line) for line in (tracker.folder / NAME).read_bytes().splitlines()]
    assert [record.kind for record in found if record] == ["plan", "finished", "resumed", "finished"]
    assert isinstance(found[1], Finished)
    assert isinstance(found[2], Resumed)
    assert (found[1].status, found[1].reason) == ("stopped", "the cap")
    assert (found[2].how, found[2].config) == ("retry", {"concurrency": 3})


async def test_records_that_are_handed_over_together_stay_together(tmp_path: Path) -> None:
    with Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker:
        await asyncio.gather(*(tracker.record(attempt(task), judged(task)) for task in range(3)))
    found = [decode(line) for line in (tracker.folder / NAME).read_bytes().splitlines()]
    assert [record.kind for record in found if record] == ["plan", *["attempt", "experiment"] * 3]


async def test_tracker_does_not_count_refused_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker:
        await tracker.record(judged(0))
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="is full"):
            await tracker.record(call(1), judged(1))
        monkeypatch.undo()
        found = tally(tracker)
    assert found == {"judged": 1, "passed": 1, "faults": 0, "calls": 0, "cost": 0.0}


async def test_tracker_locks_a_new_run_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    folder = tmp_path / builders.RUN
    monkeypatch.setattr(files, "sync_folder", lambda _: seen.append(is_locked(folder)) if folder.exists() else None)

    with Tracker.create(tmp_path, builders.RUN, a_plan()):
        seen.append(is_locked(folder))
    assert seen == [True, True]
    assert not is_locked(folder)


def test_tracker_refuses_an_unwritable_journal_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_journal(tmp_path, judged(0))
    original = os.open

    def read_only(path: Any, flags: int, *mode: int, **more: Any) -> int:
        if str(path).endswith(NAME) and flags & os.O_WRONLY:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, flags, *mode, **more)

    async def go() -> None:
        monkeypatch.setattr(os, "open", read_only)
        with pytest.raises(KoderzError):
            Tracker.reopen(folder)

    try:
        asyncio.run(go())
    finally:
        monkeypatch.undo()
    assert not is_locked(folder)
