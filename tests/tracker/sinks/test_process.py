"""The process that feeds the sinks: killed at any step, hung or down, it costs a catching up and nothing else."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from koderz.testing import a_plan
from koderz_tracker.records import Finished
from koderz_tracker.runs import lock_run
from koderz_tracker.sinks.feeder import FOLDER, Job, Projection, Pulse, Queue, environment_of, start_again
from koderz_tracker.sinks.process import BEAT, SinkProcess, Status, Submission, at_work, describe_sinks, wake
from koderz_tracker.sinks.standing import choose_sinks, standing_of
from koderz_tracker.tracker import Tracker
from tests.conftest import PATIENCE, processes_of, wait_for
from tests.tracker.builders import call, judged
from tests.tracker.sinks.standins import rows_of
from tests.tracker.sinks.test_projection import a_run, assert_whole

NOTHING: Callable[[Mapping[str, Status]], None] = lambda _: None  # noqa: E731
LONG = 600.0  # seconds of patience where none should be needed


@pytest.fixture
def process(tmp_path: Path, standins: Mapping[str, str]) -> Iterator[SinkProcess]:
    yield SinkProcess(tmp_path, standins)
    end(tmp_path)


def end(results: Path) -> None:
    """Withdraws all jobs of a folder; no process stays, also not to see whether there are more."""
    for path in (results / FOLDER).glob("*/*.[0-9]"):
        path.unlink(missing_ok=True)
    for process in processes(results):
        with suppress(ProcessLookupError):  # it ended just now
            os.kill(process, signal.SIGTERM)
    wait_for(lambda: not processes(results))


def submit(process: SinkProcess, folder: Path, *sinks: str, patience: float = LONG, patient: bool = True) -> Submission:
    jobs = [Job(run=folder.name, sink=sink, patience=patience, patient=patient) for sink in sinks or ("ledger",)]
    return Submission(process, folder, jobs)


def processes(results: Path) -> set[int]:
    """The processes that feed the sinks of this folder, or wait for their turn."""
    return processes_of(b"\0koderz_tracker.sinks\0%s\0" % os.fsencode(results))


def is_level(folder: Path, name: str = "ledger") -> bool:
    return state_of(folder, name) == "up to date"


def state_of(folder: Path, name: str = "ledger") -> str:
    standing = standing_of(folder).get(name)
    return standing.state if standing else ""


def another_run(results: Path, number: int) -> Path:
    async def go() -> Path:
        run = f"bench_{number:08x}_20260131_120000"
        with Tracker.create(results, run, a_plan(4, run_id=run)) as tracker:
            for task in range(4):
                await tracker.record(call(task), judged(task))
            await tracker.record(Finished(status="complete"))
        return tracker.folder

    return asyncio.run(go())


@pytest.mark.slow
def test_sinks_are_brought_level_and_nothing_is_left_lying_about(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    seen: list[Mapping[str, Status]] = []

    assert submit(process, folder, "ledger", "other").wait(seen.append) == {}

    assert_whole(folder)
    assert rows_of(tmp_path, folder.name, "other") == rows_of(tmp_path, folder.name)
    assert {status.state for status in seen[-1].values()} == {"done"}
    wait_for(lambda: not processes(tmp_path))
    assert not process.queue.entries()
    assert not (tmp_path / "sinks.log").exists()


def test_feeder_follows_a_run_in_progress(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path, 1)
    with lock_run(folder):
        submission = submit(process, folder)
        wait_for(lambda: is_level(folder))

    async def more() -> None:
        with Tracker.reopen(folder) as tracker:
            submit(process, folder)
            await tracker.record(call(1), judged(1))
            wait_for(lambda: len(rows_of(tmp_path, folder.name)) == 6)
            assert process.queue.entries()

    asyncio.run(more())
    assert submission.wait(NOTHING) == {}
    assert_whole(folder)


def test_wait_ends_when_a_run_in_progress_lacks_nothing(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    with lock_run(folder):
        assert submit(process, folder).wait(NOTHING) == {}
        assert process.queue.entries()


@pytest.mark.slow
def test_runs_of_a_folder_are_fed_by_one_process(tmp_path: Path, standins: Mapping[str, str]) -> None:
    (tmp_path / "ledger.wait").touch()
    folders = [another_run(tmp_path, number) for number in range(3)]
    submissions = [submit(SinkProcess(tmp_path, standins), folder, "ledger", "other") for folder in folders]
    wait_for(lambda: all(is_level(folder, "other") for folder in folders))
    wait_for(lambda: len(processes(tmp_path)) == 1)  # the others have seen that there is one
    assert set(at_work(tmp_path)) == {folder.name for folder in folders}
    (tmp_path / "ledger.wait").unlink()

    assert [submission.wait(NOTHING) for submission in submissions] == [{}, {}, {}]

    for folder in folders:
        assert_whole(folder)
    end(tmp_path)


@pytest.mark.slow
def test_process_with_other_variables_waits_its_turn(tmp_path: Path, standins: Mapping[str, str]) -> None:
    one, other = (another_run(tmp_path, number) for number in range(2))
    with lock_run(one):
        submit(SinkProcess(tmp_path, standins), one)
        wait_for(lambda: is_level(one))
        second = submit(SinkProcess(tmp_path, {**standins, "MLFLOW_TRACKING_URI": "http://elsewhere"}), other)
        wait_for(lambda: set(at_work(tmp_path)) == {one.name, other.name})
        assert state_of(other) == ""
    assert second.wait(NOTHING) == {}

    assert_whole(other)
    end(tmp_path)


@pytest.mark.slow
def test_wait_for_another_process_is_announced(
    tmp_path: Path, standins: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_TO_BEGIN", "TO_OPEN"):
        monkeypatch.setattr(f"koderz_tracker.sinks.process.{name}", 0)
    one, other = (another_run(tmp_path, number) for number in range(2))
    with lock_run(one):
        submit(SinkProcess(tmp_path, standins), one)
        wait_for(lambda: is_level(one))
        second = submit(SinkProcess(tmp_path, {**standins, "MLFLOW_TRACKING_URI": "http://elsewhere"}), other)
        assert "this one waits" in second.wait(NOTHING)["ledger"]
    end(tmp_path)


@pytest.mark.slow
def test_wait_covers_a_process_that_starts_slowly(
    tmp_path: Path, process: SinkProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_TO_BEGIN", "TO_OPEN"):
        monkeypatch.setattr(f"koderz_tracker.sinks.process.{name}", 0)
    submission = submit(process, a_run(tmp_path))
    wait_for(lambda: processes(tmp_path))
    (pid,) = processes(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    looks = iter(range(100))

    def go_on(_: Mapping[str, Status]) -> None:
        if next(looks, 0) == 20:  # 0.05 s each, so that it was looked after by then
            os.kill(pid, signal.SIGCONT)

    assert submission.wait(go_on) == {}


@pytest.mark.parametrize("moment", ["die-before", "die-after"])
def test_killed_between_target_and_cursor_another_one_goes_on(
    tmp_path: Path, process: SinkProcess, moment: str
) -> None:
    folder = a_run(tmp_path)
    (tmp_path / f"ledger.{moment}").touch()
    with lock_run(folder):
        submission = submit(process, folder)
        said = ""
        while not said:
            said = submission.keep_alive()
        assert "(signal 9)" in said
        wait_for(lambda: is_level(folder))

    assert submission.wait(NOTHING) == {}
    assert_whole(folder)


def test_leftovers_of_a_killed_process_are_taken_up(
    tmp_path: Path, process: SinkProcess, standins: Mapping[str, str]
) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.die-before").touch()
    submit(process, folder)
    wait_for(lambda: not (tmp_path / "ledger.die-before").exists())
    wait_for(lambda: not process.is_alive())

    wake(tmp_path, {**standins, "MLFLOW_TRACKING_URI": "http://elsewhere"})  # whose sinks are others
    assert not processes(tmp_path)
    wake(tmp_path, standins)

    wait_for(lambda: is_level(folder))
    assert_whole(folder)


@pytest.mark.slow
def test_killed_again_and_again_it_gives_up_and_says_so(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.wait").touch()

    def kill(_: Mapping[str, Status]) -> None:
        for pid in processes(tmp_path):
            os.kill(pid, signal.SIGKILL)

    (reason,) = submit(process, folder).wait(kill).values()
    assert reason.startswith("the process that feeds it ended")
    (tmp_path / "ledger.wait").unlink()
    assert submit(process, folder).wait(NOTHING) == {}
    assert_whole(folder)


@pytest.mark.slow
def test_job_that_processes_die_of_is_given_up(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    for number in range(3):
        (tmp_path / "ledger.die-before").touch()
        if number:
            process.start()
        else:
            submit(process, folder)
        wait_for(lambda: not (tmp_path / "ledger.die-before").exists())
        wait_for(lambda: not process.is_alive())
    process.start()
    wait_for(lambda: not process.queue.entries())

    assert str(standing_of(folder)["ledger"]) == "behind: the process that feeds it ended again and again"
    assert submit(process, another_run(tmp_path, 1)).wait(NOTHING) == {}
    wait_for(lambda: is_level(folder))  # the next run's process takes it up
    assert_whole(folder)


@pytest.mark.slow
def test_hanging_sink_is_given_up_and_holds_up_no_other(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.hang").touch()
    other = submit(process, folder, "other")
    hung = submit(process, folder, "ledger", patience=0.5)

    assert hung.wait(NOTHING) == {"ledger": "no progress for 1.5 s"}  # it hung in its first batch
    assert state_of(folder) == "behind"

    assert other.wait(NOTHING) == {}
    (tmp_path / "ledger.hang").unlink()
    assert submit(process, folder).wait(NOTHING) == {}  # while the hung one may be there still
    assert_whole(folder)


def test_busy_thread_is_slow_not_hanging() -> None:
    used = iter([0.0, 0.0, 5.0, 5.001, 5.1])
    pulse = Pulse(lambda: next(used))

    assert [pulse.last(now) for now in (1.0, 2.0, 3.0, 4.0, 5.0)] == [0.0, 0.0, 3.0, 3.0, 5.0]


@pytest.mark.slow
def test_sink_that_starts_slowly_beside_load_is_not_given_up(tmp_path: Path, process: SinkProcess) -> None:
    (tmp_path / "ledger.busy").touch()  # for twice as long as it may take where it does nothing

    assert submit(process, a_run(tmp_path), patience=1).wait(NOTHING) == {}


@pytest.mark.slow
def test_hanging_sink_without_demand_keeps_no_process(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.hang").touch()
    submission = submit(process, folder)
    wait_for(lambda: [entry.tries for entry in process.queue.entries()] == [1])
    submission.withdraw()

    wait_for(lambda: not processes(tmp_path))


@pytest.mark.slow
def test_sink_that_is_down_is_retried_until_patience_ends(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.down").touch()
    with lock_run(folder):
        submission = submit(process, folder, patience=1)
        wait_for(lambda: str(standing_of(folder).get("ledger")) == "behind: the ledger is closed today")
        assert process.queue.entries()

    assert submission.wait(NOTHING) == {"ledger": "the ledger is closed today"}
    assert str(standing_of(folder)["ledger"]) == "down: the ledger is closed today"
    (tmp_path / "ledger.down").unlink()
    assert submit(process, folder).wait(NOTHING) == {}
    assert_whole(folder)


def test_sink_that_was_down_is_fed_once_it_is_back(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.down").touch()
    submission = submit(process, folder)
    wait_for(lambda: state_of(folder) == "behind")
    (tmp_path / "ledger.down").unlink()

    assert submission.wait(NOTHING) == {}
    assert_whole(folder)


def test_sink_that_is_down_is_given_up_at_once_without_patience(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.down").touch()

    assert submit(process, folder, patient=False).wait(NOTHING) == {"ledger": "the ledger is closed today"}


def test_sink_that_is_given_up_is_never_shown_as_done(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.down").touch()
    shown: list[Mapping[str, Status]] = []

    behind = submit(process, folder, patient=False, patience=0.2).wait(shown.append)

    assert "closed today" in behind["ledger"]
    assert {status["ledger"].state for status in shown} <= {"behind", "down"}
    assert shown[-1]["ledger"].state == "down"


def test_sink_that_refuses_something_for_good_is_up_to_date_with_a_note(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.picky").touch()
    submission = submit(process, folder)

    assert submission.wait(NOTHING) == {}
    assert submission.notes() == {"ledger": "without two rows"}
    assert describe_sinks(folder) == {"ledger": "up to date: without two rows"}


def test_sink_that_cannot_be_loaded_is_not_waited_for(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)

    behind = submit(process, folder, "absent", "ledger").wait(NOTHING)

    assert list(behind) == ["absent"]
    assert "can't be loaded" in behind["absent"]
    assert_whole(folder)


def test_lock_of_another_process_is_waited_for(
    tmp_path: Path, process: SinkProcess, standins: Mapping[str, str]
) -> None:
    folder = a_run(tmp_path)
    with Projection(folder, "ledger", {}, standins) as held:
        submission = submit(process, folder)
        wait_for(lambda: "another koderz process" in str(standing_of(folder).get("ledger")))
        while held.look():
            held.take()

    assert submission.wait(NOTHING) == {}
    assert_whole(folder)


def test_feeder_survives_its_killed_starter(tmp_path: Path, standins: Mapping[str, str]) -> None:
    folder = a_run(tmp_path, 40)
    (tmp_path / "ledger.slow").touch()
    starter = textwrap.dedent(f"""
        import os, pathlib, signal
        from koderz_tracker.sinks.feeder import Job
        from koderz_tracker.sinks.process import SinkProcess, Submission
        folder = pathlib.Path({str(folder)!r})
        Submission(SinkProcess(folder.parent, os.environ), folder, [Job(run=folder.name, sink="ledger")])
        os.killpg(0, signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", starter], env=dict(standins), start_new_session=True, check=False)

    assert done.returncode == -signal.SIGKILL
    wait_for(lambda: is_level(folder))
    assert_whole(folder)
    end(tmp_path)


@pytest.mark.slow
def test_told_to_end_it_leaves_the_rest_to_the_next(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path, 40)
    (tmp_path / "ledger.wait").touch()
    submission = submit(process, folder)
    wait_for(lambda: (tmp_path / "ledger.db").exists())
    (pid,) = processes(tmp_path)
    os.kill(pid, signal.SIGTERM)
    (tmp_path / "ledger.wait").unlink()
    wait_for(lambda: not process.is_alive())

    assert submission.wait(NOTHING) == {}
    assert_whole(folder)


@pytest.mark.slow
def test_feeder_ends_when_the_results_folder_is_deleted(tmp_path: Path, standins: Mapping[str, str]) -> None:
    results = tmp_path / "results"
    folder = a_run(results)
    process = SinkProcess(results, standins)
    with lock_run(folder):
        submit(process, folder)
        wait_for(lambda: is_level(folder))
        shutil.rmtree(results.rename(tmp_path / "deleted"))
        wait_for(lambda: not processes(results))

    assert not results.exists()


def test_environment_set_by_a_library_reaches_no_other_run(
    tmp_path: Path, process: SinkProcess, standins: Mapping[str, str]
) -> None:
    (tmp_path / "ledger.litter").touch()
    one, other = (another_run(tmp_path, number) for number in range(2))
    with lock_run(one):  # so that the process goes on
        assert submit(process, one).wait(NOTHING) == {}
        assert submit(SinkProcess(tmp_path, standins), other).wait(NOTHING) == {}


def test_rebuild_is_done_by_a_fresh_process(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    assert submit(process, folder).wait(NOTHING) == {}
    start_again(folder, "ledger", PATIENCE)  # once the process is done with the run, not with the job alone

    jobs = [Job(run=folder.name, sink="ledger", renew=True)]
    assert Submission(process, folder, jobs).wait(NOTHING) == {}

    assert_whole(folder)


@pytest.mark.slow
def test_backlog_of_earlier_runs_is_taken_up_by_the_next_run(tmp_path: Path, process: SinkProcess) -> None:
    folder, another = a_run(tmp_path), another_run(tmp_path, 1)
    (tmp_path / "ledger.down").touch()
    assert submit(process, folder, patience=0.1).wait(NOTHING) == {"ledger": "the ledger is closed today"}
    assert submit(process, another, patience=0.1).wait(NOTHING) == {"ledger": "the ledger is closed today"}
    assert (state_of(folder), state_of(another)) == ("down", "down")
    assert not at_work(tmp_path)
    (tmp_path / "ledger.down").unlink()

    assert submit(process, another_run(tmp_path, 2)).wait(NOTHING) == {}

    wait_for(lambda: is_level(folder) and is_level(another))
    assert_whole(folder)
    assert_whole(another)
    assert not process.queue.leftovers()


def test_job_that_was_given_up_is_no_leftover_once_done(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.down").touch()
    submit(process, folder, patient=False).wait(NOTHING)
    (leftover,) = process.queue.leftovers()
    assert (leftover.key, leftover.sink) == (f"{folder.name}.ledger", "ledger")
    (tmp_path / "ledger.down").unlink()

    assert submit(process, folder).wait(NOTHING) == {}

    assert not process.queue.leftovers()


@pytest.mark.slow
def test_heartbeat_tells_a_stopped_process(
    tmp_path: Path, process: SinkProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.wait").touch()
    submission = submit(process, folder)
    wait_for(lambda: at_work(tmp_path) == {folder.name: ["ledger"]})
    (pid,) = processes(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    os.utime(process.queue.folder / BEAT, (0, 0))
    assert at_work(tmp_path) == {}
    assert process.is_alive()  # it still holds what another one would need
    with monkeypatch.context() as patched:
        patched.setattr("koderz_tracker.sinks.process._BEAT_LOST", 0.0)
        assert submission.wait(NOTHING) == {"ledger": "the process that feeds it is stopped"}

    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: at_work(tmp_path))
    (tmp_path / "ledger.wait").unlink()
    assert submission.wait(NOTHING) == {}


def test_progress_of_a_sink_is_told(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path, 40)
    choose_sinks(folder, ["ledger"], ["ledger", "other"])
    assert describe_sinks(folder) == {"ledger": "behind, 0% there", "other": "off"}
    (tmp_path / "ledger.wait").touch()
    submit(process, folder)
    wait_for(lambda: at_work(tmp_path))

    assert describe_sinks(folder)["ledger"] == "behind, 0% there, in progress"


def test_job_replaces_an_earlier_one_of_its_run_and_sink(tmp_path: Path) -> None:
    here, elsewhere = Queue(tmp_path, "here"), Queue(tmp_path, "elsewhere")
    here.submit(Job(run="bench_1", sink="ledger"))
    here.submit(Job(run="bench_1", sink="other"))
    assert here.of_run("bench_1")["ledger"].counted(+1)
    elsewhere.submit(Job(run="bench_1", sink="ledger", patience=1.0))

    assert set(here.of_run("bench_1")) == {"other"}
    (entry,) = elsewhere.entries()
    assert (entry.tries, entry.read()) == (0, Job(run="bench_1", sink="ledger", patience=1.0))


def test_variables_of_sinks_alone_tell_processes_apart() -> None:
    here = {"PATH": "/bin", "MLFLOW_TRACKING_URI": "http://a"}

    assert environment_of(here) == environment_of({**here, "SHLVL": "2", "KODERZ_MODEL": "m"})
    assert environment_of(here) != environment_of({**here, "MLFLOW_TRACKING_URI": "http://b"})


def test_job_is_not_done_by_a_process_without_its_secret() -> None:
    here = {"PATH": "/bin"}

    assert environment_of(here) != environment_of({**here, "OPENAI_API_KEY": "sk-1"})
    assert environment_of({**here, "MINE": "1"}, ["MINE"]) != environment_of({**here, "MINE": "2"}, ["MINE"])


def test_output_of_a_sink_goes_into_a_file(
    tmp_path: Path, process: SinkProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site" / "noisy.py").write_text("print('hello from a library')\nraise ValueError('no way')\n")
    entries = next((tmp_path / "site").glob("*.dist-info")) / "entry_points.txt"
    entries.write_text(entries.read_text() + "noisy = noisy:Noisy\n")
    folder = a_run(tmp_path)

    reason = submit(process, folder, "noisy", patient=False).wait(NOTHING)["noisy"]
    assert reason == "sink 'noisy': noisy:Noisy can't be loaded: ValueError: no way"

    end(tmp_path)
    log = (tmp_path / "sinks.log").read_text()
    assert "hello from a library" in log
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_feeder_yields_to_runs_without_starving(tmp_path: Path, process: SinkProcess) -> None:
    folder = a_run(tmp_path)
    (tmp_path / "ledger.wait").touch()
    submit(process, folder)
    wait_for(lambda: [entry.tries for entry in process.queue.entries()] == [1])
    (pid,) = processes(tmp_path)

    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert max(own, 5) == os.getpriority(os.PRIO_PROCESS, pid)
