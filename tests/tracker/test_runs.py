"""Runs: how they appear, how they are named, and who holds them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from koderz.testing import a_journal, a_plan
from koderz_tracker.errors import JournalError, KoderzError
from koderz_tracker.files import write_whole
from koderz_tracker.journal import NAME
from koderz_tracker.runs import create_run, find_run, is_locked, lock_run, read_plan, run_folders
from koderz_tracker.sinks.feeder import hold
from koderz_tracker.tracker import Tracker
from tests.tracker import builders

OLD = "bench_ff000000_20250101_000000"
MIDDLE = "bench_ab000000_20260101_000000"
NEW = "bench_ab110000_20260101_000001"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three runs, a single experiment, and what else may lie about."""
    results = tmp_path / "results"
    for name in (NEW, OLD, MIDDLE, "exp_00000000000000ab"):
        create_run(results, name, a_plan(run_id=name))[1].release()
        (results / f"{name}.json").write_text("{}")
    (results / "mlflow").mkdir()
    (results / "bench_cd000000_20270101_000000").mkdir()  # no journal in it
    (results / ".bench_ee000000_20270101_000000.17").mkdir()  # a draft of a process that was killed
    return results


def test_run_folder_appears_with_its_plan(tmp_path: Path) -> None:
    folder, lock = create_run(tmp_path / "deep" / "results", builders.RUN, a_plan())

    lock.release()
    assert [path.name for path in folder.parent.iterdir()] == [builders.RUN]
    assert read_plan(folder).tasks == ["T/0", "T/1", "T/2"]


def test_run_that_cannot_be_made_leaves_nothing_and_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(KoderzError, match="choose another with --results"):
        create_run(tmp_path / "file", builders.RUN, a_plan())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_run_never_replaces_another(results: Path) -> None:
    before = (results / OLD / NAME).read_bytes()

    with pytest.raises(KoderzError, match="can't be written"):
        create_run(results, OLD, a_plan(tasks=1))
    assert (results / OLD / NAME).read_bytes() == before
    assert not list(results.glob(f".{OLD}.*"))


def test_runs_are_listed_oldest_first_and_nothing_else_is(results: Path) -> None:
    assert [path.name for path in run_folders(results)] == [OLD, MIDDLE, NEW]
    assert run_folders(results / "nowhere") == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (MIDDLE, MIDDLE),
        ("latest", NEW),
        ("latest~0", NEW),
        ("latest~1", MIDDLE),
        ("latest~2", OLD),
        ("bench_ff", OLD),
        ("ff", OLD),
        ("bench_ab0", MIDDLE),
        ("ab11", NEW),
        ("ab000000_20260101_000000", MIDDLE),
        ("exp_00000000000000ab", "exp_00000000000000ab"),
    ],
)
def test_run_is_found_by_id_prefix_or_age(results: Path, name: str, meant: str) -> None:
    assert find_run(results, name) == results / meant


def test_run_is_found_by_summary_file_or_folder(results: Path, tmp_path: Path) -> None:
    assert find_run(tmp_path, str(results / f"{OLD}.json")) == results / OLD
    assert find_run(tmp_path, str(results / OLD)) == results / OLD
    (results / f"{OLD}.json").unlink()
    assert find_run(tmp_path, str(results / f"{OLD}.json")) == results / OLD


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bench_ab", rf"bench_ab is the beginning of 2 runs \({MIDDLE}, {NEW}, …\); give more of the id"),
        ("bench_", "is the beginning of 3 runs"),
        ("cd000000", f"there is no run cd000000 in .*; the latest is {NEW}"),
        ("latest~3", "holds 3 runs, so there is no latest~3"),
        ("latest~", "is no run"),
        ("latest~-1", "is no run"),
        ("../results", "is no run"),
        ("*", "is no run"),
        ("", "isn't there, so it can't be picked up"),
        ("nowhere.json", "isn't there, so it can't be picked up"),
    ],
)
def test_run_name_unknown_or_ambiguous_lists_what_there_is(results: Path, name: str, said: str) -> None:
    with pytest.raises(KoderzError, match=said) as raised:
        find_run(results, name)

    assert raised.value.exit_code == 2


@pytest.mark.parametrize(("name", "said"), [("latest", "holds no run yet; make one with"), ("ab", "it holds none yet")])
def test_run_lookup_in_an_empty_folder_says_how_to_make_one(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(KoderzError, match=said):
        find_run(tmp_path, name)


@pytest.mark.parametrize("data", [b"", b'{"hello":1}\n', b'{"kind":"finished","status":"complete"}\n', b"\0\0\0"])
def test_run_journal_without_a_plan_first_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / NAME).write_bytes(data)

    with pytest.raises(JournalError, match="doesn't begin with a plan"):
        read_plan(tmp_path)


def test_run_folder_without_a_journal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="can't be read"):
        read_plan(tmp_path)


# Who holds a run

HOLDER = """
import sys, time
from pathlib import Path
from koderz_tracker.runs import lock_run

lock = lock_run(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_run_lock_is_free_when_its_holder_dies(results: Path, number: int) -> None:
    folder = results / NEW
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert is_locked(folder)
    with pytest.raises(KoderzError, match=f"another koderz process is working on {NEW}"):
        lock_run(folder)

    os.kill(holder.pid, number)
    holder.communicate()

    assert not is_locked(folder)
    lock_run(folder).release()


def test_run_lock_of_an_unwritable_folder_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()  # which not even root can open for writing

    with pytest.raises(KoderzError, match="can't be locked"):
        is_locked(tmp_path)


async def test_run_lock_excludes_trackers_of_one_process(tmp_path: Path) -> None:
    folder = tmp_path / builders.RUN
    with (
        Tracker.create(tmp_path, builders.RUN, a_plan()) as tracker,
        pytest.raises(KoderzError, match="another koderz process"),
    ):
        Tracker.reopen(folder)
    assert tracker.folder == folder
    with Tracker.reopen(folder):
        assert is_locked(folder)
    assert not is_locked(folder)


async def test_run_lock_is_not_held_on_an_unreadable_journal(tmp_path: Path) -> None:
    folder = a_journal(tmp_path, builders.judged(0), builders.judged(1))
    path = folder / NAME
    path.write_bytes(b"#" + path.read_bytes())
    with pytest.raises(JournalError):
        Tracker.reopen(folder)
    assert not is_locked(folder)


@pytest.mark.parametrize("name", ["journal.index", "journal.jsonl", "lock", ".json.lock", "blobs", "files/mine.py"])
def test_run_folder_links_are_refused_and_targets_left_alone(tmp_path: Path, name: str) -> None:
    folder, lock = create_run(tmp_path / "results", builders.RUN, a_plan())
    lock.release()
    link, target = folder / name, tmp_path / "target"
    target.write_bytes((folder / NAME).read_bytes())
    before = target.read_bytes()
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)

    with pytest.raises(KoderzError, match=r"is a link, and koderz follows none in folders of runs") as refusal:
        Tracker.reopen(folder)
    assert "\n" not in str(refusal.value)
    assert target.read_bytes() == before
    with pytest.raises(KoderzError, match="is a link"):
        hold(folder, "json")
    assert target.read_bytes() == before


def test_links_are_not_followed_by_files_written_whole(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "file").symlink_to("target")

    write_whole(tmp_path / "file", [b"new"])
    assert (tmp_path / "target").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "target"]
