"""The process that feeds the sinks: killed at any step, hung or down, it costs a catching up and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.tracker.builders import RUN, call, judged
from tests.tracker.sinks.standins import rows_of
from tests.tracker.sinks.test_projection import a_run, assert_whole
from tracker.sinks.jobs import Job, Status
from tracker.sinks.process import SinkProcess, catch_up
from tracker.sinks.projection import Projection
from tracker.sinks.standing import standing_of
from tracker.tracker import Tracker

NOTHING: Callable[[Mapping[str, Status]], None] = lambda _: None  # noqa: E731
LONG = 60.0  # seconds of patience where none should be needed
HUNG = {"ledger": "working", "other": "done"}


@pytest.fixture
def process(standins: Mapping[str, str]) -> Iterator[SinkProcess]:
    process = SinkProcess(standins)
    yield process
    process.stop()


def job(folder: Path, *sinks: str, follow: bool = False, patient: bool = True) -> Job:
    return Job(folder=str(folder), sinks=sinks or ("ledger",), follow=follow, patient=patient)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z"
    except OSError:
        return True


def test_sinks_are_brought_level_and_nothing_is_left_lying_about(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    seen: list[Mapping[str, Status]] = []
    process.begin(job(folder, "ledger", "other"))

    assert catch_up(process, LONG, seen.append) == {}

    assert_whole(folder)
    assert rows_of(tmp_path, RUN, "other") == rows_of(tmp_path, RUN)
    assert {status.state for status in seen[-1].values()} == {"done"}
    process.stop()
    assert not (folder / "sinks.log").exists()


def test_a_run_is_followed_while_it_goes_on(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path, 1)
    process.begin(job(folder, follow=True))
    wait_for(lambda: standing_of(folder).get("ledger") and standing_of(folder)["ledger"].state == "up to date")

    async def more() -> None:
        with Tracker.reopen(folder) as tracker:
            await tracker.record(call(1), judged(1))

    asyncio.run(more())
    wait_for(lambda: len(rows_of(tmp_path, RUN)) == 6)

    assert catch_up(process, LONG, NOTHING) == {}
    assert_whole(folder)


@pytest.mark.parametrize("moment", ["die-before", "die-after"])
def test_killed_between_target_and_cursor_another_one_goes_on(
    tmp_path: Path, process: SinkProcess, moment: str
) -> None:
    folder = a_run(tmp_path)
    (tmp_path / f"ledger.{moment}").touch()
    process.begin(job(folder, follow=True))
    wait_for(lambda: not process.is_alive)
    assert "signal 9" in process.death()
    assert process.death() == ""  # it is said once

    assert catch_up(process, LONG, NOTHING) == {}

    assert_whole(folder)


def test_killed_again_and_again_it_gives_up_and_says_so(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.slow").touch()
    process.begin(job(folder))

    def kill(_: Mapping[str, Status]) -> None:
        if process.is_alive:
            os.kill(process.pid, signal.SIGKILL)

    behind = catch_up(process, LONG, kill)

    assert "the process that feeds it ended (signal 9)" in behind["ledger"]
    process.stop()
    process.begin(job(folder))
    assert catch_up(process, LONG, NOTHING) == {}
    assert_whole(folder)


def test_a_sink_that_hangs_is_given_up_and_holds_up_no_other(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.hang").touch()
    process.begin(job(folder, "ledger", "other"))
    wait_for(lambda: {name: seen.status.state for name, seen in process.seen.items()} == HUNG)

    behind = catch_up(process, 0.5, NOTHING)

    assert behind == {"ledger": "no progress for 1.5 s"}  # it hung in its first batch
    assert standing_of(folder)["other"].state == "up to date"
    pid = process.pid
    process.stop()
    assert is_gone(pid)


def test_a_sink_that_is_down_is_tried_again_until_patience_ends(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.down").touch()
    process.begin(job(folder, follow=True))
    wait_for(lambda: standing_of(folder).get("ledger") and standing_of(folder)["ledger"].state == "down")

    assert catch_up(process, 0.5, NOTHING) == {"ledger": "the ledger is closed today"}
    assert str(standing_of(folder)["ledger"]) == "down: the ledger is closed today"
    (tmp_path / "ledger.down").unlink()
    assert catch_up(process, LONG, NOTHING) == {}
    assert_whole(folder)


def test_without_patience_a_sink_that_is_down_is_given_up_at_once(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.down").touch()
    process.begin(job(folder, patient=False))

    assert catch_up(process, LONG, NOTHING) == {"ledger": "the ledger is closed today"}


def test_a_sink_that_cannot_be_loaded_is_no_reason_to_wait(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    process.begin(job(folder, "absent", "ledger"))

    behind = catch_up(process, LONG, NOTHING)

    assert list(behind) == ["absent"]
    assert "can't be loaded" in behind["absent"]
    assert_whole(folder)


def test_what_another_process_feeds_is_waited_for(
    tmp_path: Path, process: SinkProcess, standins: Mapping[str, str]
) -> None:
    folder = a_run(tmp_path)
    with Projection(folder, "ledger", {}, standins) as held:
        process.begin(job(folder))
        wait_for(lambda: "ledger" in process.seen and process.seen["ledger"].status.state == "waiting")
        while held.look():
            held.take()

    assert catch_up(process, LONG, NOTHING) == {}
    assert_whole(folder)


def test_two_processes_at_once_leave_what_one_would(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path, 40)
    both = [SinkProcess(standins), SinkProcess(standins)]
    for each in both:
        each.begin(job(folder))
    try:
        assert [catch_up(each, LONG, NOTHING) for each in both] == [{}, {}]
    finally:
        for each in both:
            each.stop()
    assert_whole(folder)


def test_it_ends_when_whoever_started_it_is_killed(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path)
    starter = textwrap.dedent(f"""
        import os, time
        from tracker.sinks.jobs import Job
        from tracker.sinks.process import SinkProcess
        process = SinkProcess(os.environ)
        process.begin(Job(folder={str(folder)!r}, sinks=["ledger"], follow=True))
        print(process.pid, flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", starter], env=standins, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_for(lambda: standing_of(folder).get("ledger") and standing_of(folder)["ledger"].state == "up to date")
        parent.kill()

    wait_for(lambda: is_gone(pid))


def test_what_a_sink_prints_goes_into_a_file_of_the_run(
    tmp_path: Path, process: SinkProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site" / "noisy.py").write_text("print('hello from a library')\nraise ValueError('no way')\n")
    entries = next((tmp_path / "site").glob("*.dist-info")) / "entry_points.txt"
    entries.write_text(entries.read_text() + "noisy = noisy:Noisy\n")
    folder = a_run(tmp_path)
    process.begin(job(folder, "noisy", patient=False))

    assert catch_up(process, LONG, NOTHING) == {"noisy": "ValueError: no way"}

    process.stop()
    log = (folder / "sinks.log").read_text()
    assert "hello from a library" in log
    assert "ValueError: no way" in log
    assert capfd.readouterr() == ("", "")
