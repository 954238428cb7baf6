"""The line that `list` has for each run, and the index that keeps it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from koderz.analysis.catalogue import INDEX, RunRow, chosen, load_catalogue, ordered
from koderz.testing import a_journal, a_plan
from koderz_tracker.records import Finished, Plan, Record
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.tracker import Tracker
from tests.koderz.analysis import builders
from tests.tracker.builders import call, fault, judged

TWO = "bench_22222222_20260202_120000"


def run(results: Path, *records: Record, of: Plan | None = None) -> Path:
    folder = a_journal(results, *records, Finished(status="complete"), plan=of)
    write_summary(folder)
    return folder


def rows(results: Path) -> list[RunRow]:
    return load_catalogue(results).rows


def test_run_has_its_rate_interval_cost_and_tags(tmp_path: Path) -> None:
    of = a_plan(config={"local_model": "m", "suite": "humaneval", "tags": ["nightly", "v=2"]})
    run(tmp_path, call(0), judged(0), call(1), judged(1, False), fault(2), of=of)

    (row,) = rows(tmp_path)

    assert (row.model, row.mode, row.status, row.faults, row.tags) == (
        "m",
        "zero-shot",
        "complete",
        1,
        ("nightly", "v=2"),
    )
    assert (row.arms[0].passed, row.arms[0].judged, row.rate) == (1, 2, 50.0)
    assert row.arms[0].interval == pytest.approx((9.45, 90.55), abs=0.01)
    assert row.cost == 0.5


def test_arms_of_a_comparative_run_are_told_apart(tmp_path: Path) -> None:
    of = a_plan(1, arms=("zero-shot", "iterative"))
    run(tmp_path, judged(0, False), judged(0, True, solver="iterative"), of=of)

    (row,) = rows(tmp_path)

    assert [(arm.solver, arm.rate) for arm in row.arms] == [("zero-shot", 0.0), ("iterative", 100.0)]


async def test_run_status_tells_running_from_killed(tmp_path: Path) -> None:
    with Tracker.create(tmp_path, "bench_0a1b2c3d_20260131_120000", a_plan()) as tracker:
        await tracker.record(judged(0))
        found = rows(tmp_path)[0].status
    assert found == "running"
    (row,) = rows(tmp_path)
    assert (row.status, row.arms[0].judged, row.planned) == ("unfinished", 1, 3)


def test_run_whose_lock_is_none_is_one_line_beside_the_others(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, judged(0), plan=a_plan())
    a_journal(tmp_path, judged(0), plan=a_plan(run_id=TWO))
    (folder / "lock").unlink(missing_ok=True)
    (folder / "lock").mkdir()

    found = load_catalogue(tmp_path)

    assert [row.run_id for row in found.rows] == [TWO]
    assert found.unreadable == [f"{folder} can't be locked (Is a directory)"]


def test_old_summary_without_later_fields_is_listed(tmp_path: Path) -> None:
    old = {
        "run_id": TWO,
        "mode": "zero-shot",
        "start_time": "2026-02-02T12:00:00.000000",
        "config": {"local_model": "m"},
        "results": [{"problem_id": "T/0", "success": True, "iterations": 1, "cost": 0.5}],
        "summary": {"total_problems": 1, "successes": 1, "success_rate": 100.0, "total_cost": 0.5},
    }
    (tmp_path / f"{TWO}.json").write_bytes(orjson.dumps(old))

    (row,) = rows(tmp_path)

    assert (row.rate, row.cost, row.status, row.simulated) == (100.0, 0.5, "complete", False)
    assert row.arms[0].interval is not None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"run_id": 3}', b'{"run_id":"x","mode":"y"}', b"\xff"])
def test_damaged_summary_is_one_line_beside_the_others(tmp_path: Path, damage: bytes) -> None:
    run(tmp_path, judged(0))
    (tmp_path / "other.json").write_bytes(damage)

    for _ in range(2):  # the second time from the index
        found = load_catalogue(tmp_path)
        assert len(found.rows) == 1
        assert len(found.unreadable) == 1
        assert "other.json" in found.unreadable[0]
        assert "\n" not in found.unreadable[0]


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x00" * 99])
def test_damaged_index_is_rebuilt(tmp_path: Path, damage: bytes) -> None:
    run(tmp_path, judged(0))
    before = rows(tmp_path)
    (tmp_path / INDEX).write_bytes(damage)

    assert rows(tmp_path) == before
    assert len((tmp_path / INDEX).read_bytes()) > 100


def test_index_is_read_again_where_rows_have_another_field(tmp_path: Path) -> None:
    run(tmp_path, judged(0))
    rows(tmp_path)
    later = f"""
from pathlib import Path
from msgspec.structs import asdict
from koderz.analysis import catalogue

class RunRow(catalogue.RunRow, frozen=True, array_like=True, gc=False):
    column: int = 0

read = catalogue.row_of_summary
catalogue.RunRow = RunRow
catalogue.row_of_summary = lambda *given: RunRow(**{{**asdict(read(*given)), "column": 7}})
print([row.column for row in catalogue.load_catalogue(Path({str(tmp_path)!r})).rows])
"""

    done = subprocess.run([sys.executable, "-c", later], capture_output=True, text=True, check=True)

    assert done.stdout == "[7]\n"
    index = (tmp_path / INDEX).read_bytes()
    subprocess.run([sys.executable, "-c", later], check=True, capture_output=True)
    assert (tmp_path / INDEX).read_bytes() == index


def test_changed_run_is_read_again(tmp_path: Path) -> None:
    folder = run(tmp_path, judged(0))
    assert rows(tmp_path)[0].rate == 100

    async def go() -> None:
        with Tracker.reopen(folder) as tracker:
            await tracker.record(judged(1, False), Finished(status="complete"))

    asyncio.run(go())
    write_summary(folder)

    assert rows(tmp_path)[0].rate == 50


def test_deleted_run_is_gone_from_the_list(tmp_path: Path) -> None:
    folder = run(tmp_path, judged(0))
    rows(tmp_path)
    folder.with_suffix(".json").unlink()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()

    assert rows(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_is_listed(tmp_path: Path) -> None:
    run(tmp_path, judged(0))
    tmp_path.chmod(0o500)
    try:
        assert len(rows(tmp_path)) == 1
    finally:
        tmp_path.chmod(0o700)


def test_missing_folder_has_no_runs(tmp_path: Path) -> None:
    assert rows(tmp_path / "nowhere") == []


def test_runs_are_chosen_and_ordered(tmp_path: Path) -> None:
    run(
        tmp_path,
        judged(0),
        of=a_plan(time="2026-01-31T12:00:00.000000", config={"local_model": "ollama/a", "tags": ["x"]}),
    )
    run(tmp_path, judged(0, False), judged(1, cost=2.0), of=a_plan(time="2026-02-02T12:00:00.000000", run_id=TWO))
    found = rows(tmp_path)

    assert found[0].run_id == TWO
    assert [row.model for row in ordered(found, "rate")] == ["ollama/a", "m"]
    assert [row.model for row in chosen(found, model="OLLAMA")] == ["ollama/a"]
    assert [row.model for row in chosen(found, tags=["x"])] == ["ollama/a"]
    assert chosen(found, tags=["x", "y"]) == []
    assert [row.model for row in chosen(found, since="2026-02-01")] == ["m"]
    assert chosen(found, mode="comparative") == []


def test_models_of_a_run_are_named_together(tmp_path: Path) -> None:
    several = builders.document(config={"local_model": "a", "models": ["a", "b"], "suite": "humaneval"})
    builders.write(tmp_path / f"{builders.RUN}.json", several)

    (row,) = load_catalogue(tmp_path).rows

    assert row.model == "a, b"
    assert chosen([row], model="B") == [row]
