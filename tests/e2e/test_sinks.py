"""Sinks as users meet them: whatever befalls one, the run is whole, and `koderz sync` makes up for the rest."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import koderz as api
from koderz.cli.sync import showing
from koderz_tracker.sinks.process import Status, at_work
from koderz_tracker.sinks.standing import standing_of
from tests.conftest import PATIENCE, Shell, kill_after, wait_for
from tests.forks import Fork
from tests.tracker.sinks.servers import MlflowServer
from tests.tracker.sinks.standins import installed, killing, rows_of
from tests.tracker.sinks.test_process import processes, state_of

LEDGER = ("--sink", "json", "--sink", "ledger", "--wait")


@pytest.fixture
def env(koderz: Shell) -> Mapping[str, str]:
    """In which the stand-in sinks are there."""
    return installed(koderz.folder)


def run_of(koderz: Shell) -> Path:
    (journal,) = koderz.results.glob("bench_*/journal.jsonl")
    return journal.parent


def standings(koderz: Shell) -> dict[str, Any]:
    return dict(json.loads((run_of(koderz) / "sinks.json").read_text())["sinks"])


def states(koderz: Shell) -> dict[str, str]:
    return {name: standing["state"] for name, standing in standings(koderz).items()}


def assert_whole(koderz: Shell, sink: str = "ledger") -> None:
    rows = rows_of(koderz.results, run_of(koderz).name, sink)
    assert sorted(map(str, rows)) == sorted(map(str, koderz.journal()))
    assert states(koderz)[sink] == "up to date"


def trouble(koderz: Shell, what: str) -> Path:
    koderz.results.mkdir(exist_ok=True)
    (koderz.results / what).touch()
    return koderz.results / what


def test_sinks_that_were_chosen_have_the_run_at_its_end(koderz: Shell, env: Mapping[str, str]) -> None:
    done = koderz("benchmark", 0, 4, "--mode", "comparative", *LEDGER, env=env)

    assert_whole(koderz)
    assert states(koderz) == {"json": "up to date", "ledger": "up to date", "mlflow": "off", "memory": "off"}
    assert "sync" not in done.err
    assert koderz.summary()["config"]["sinks"] == ["json", "ledger"]
    assert "nothing to do" in koderz("sync", env=env).err


@pytest.mark.slow
def test_sinks_default_to_all_three(koderz: Shell) -> None:
    done = koderz("benchmark", 0, 3, "--wait", "--sink-patience", 120, env={"KODERZ_SINKS": "json,mlflow,memory"})

    run = run_of(koderz).name
    assert states(koderz) == {"json": "up to date", "mlflow": "up to date", "memory": "up to date"}
    assert (
        f"Cortex: tags=['benchmark_run', '{run}']\nFile: benchmark_results/{run}.json\nView in MLflow: koderz ui\n"
        in done.out
    )
    assert "warning" not in done.err
    assert done.err.endswith("sinks: json, mlflow, memory up to date\n")
    assert [path.name for path in koderz.results.glob("*.json")] == [f"{run}.json"]


@pytest.mark.slow
def test_sink_that_is_down_costs_a_warning_and_a_sync(koderz: Shell, env: Mapping[str, str]) -> None:
    down = trouble(koderz, "ledger.down")
    done = koderz("benchmark", 0, 2, *LEDGER, "--sink-patience", 4, env=env)

    run = run_of(koderz).name
    (warning,) = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert "ledger" in warning
    assert "the ledger is closed today" in warning
    assert warning.endswith(f"koderz sync {run}")
    assert koderz.summary()["status"] == "complete"
    told = koderz("sync", "--json", env=env, code=3)
    assert json.loads(told.out) == [
        {"run_id": run, "sink": "ledger", "state": "behind", "reason": "the ledger is closed today"}
    ]

    down.unlink()
    assert "nothing to do" in koderz("sync", run, "--no-sink", "ledger", env=env).err
    assert koderz("sync", run, env=env).out == f"{run}  ledger   up to date\n"

    assert_whole(koderz)


def interrupt_waiting(koderz: Shell, running: Fork) -> None:
    """Ctrl-C once the command says that it waits for its sinks."""
    assert running.stderr is not None
    assert any(" to ledger" in line for line in running.stderr)
    running.send_signal(signal.SIGINT)


@pytest.mark.slow
def test_ctrl_c_while_sinks_catch_up_leaves_the_rest_to_sync(koderz: Shell, env: Mapping[str, str]) -> None:
    hang = trouble(koderz, "ledger.hang")
    running = koderz.start("benchmark", 0, 1, *LEDGER, env=env)
    interrupt_waiting(koderz, running)
    _, told = running.communicate(timeout=PATIENCE)

    assert running.returncode == 0
    assert f"koderz sync {run_of(koderz).name}" in told
    hang.unlink()
    koderz("sync", env=env)
    assert_whole(koderz)


@pytest.mark.slow
def test_killed_with_its_sinks_beside_it_a_run_resumes_into_them(koderz: Shell, env: Mapping[str, str]) -> None:
    trouble(koderz, "ledger.slow")
    running = koderz.start("benchmark", 0, 12, *LEDGER, "--simulated-latency", 0.1, env=env)
    wait_for(lambda: list(koderz.results.glob("ledger.db")))
    kill_after(1, koderz.journal, running)

    koderz("benchmark", "resume", "latest", "--wait", env=env)

    assert_whole(koderz)


@pytest.mark.slow
def test_feeder_death_is_told_once(koderz: Shell, env: Mapping[str, str]) -> None:
    trouble(koderz, "ledger.die-after")
    running = koderz.start("benchmark", 0, 164, *LEDGER, "--simulated-latency", 1, "--grace", 0, env=env)
    assert running.stderr is not None
    for line in running.stderr:
        if "the process that feeds the sinks ended (signal 9)" in line:
            break
    so_far = len(koderz.journal())
    wait_for(lambda: len(koderz.journal()) > so_far)  # the run goes on
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGINT)
    _, rest = running.communicate(timeout=PATIENCE)
    assert "ended (signal 9)" not in rest

    koderz("sync", "--quiet", env=env)

    assert_whole(koderz)


@pytest.mark.slow
def test_later_sessions_reach_the_sinks_and_choose_them_anew(koderz: Shell, env: Mapping[str, str]) -> None:
    koderz("benchmark", 0, 4, *LEDGER, "--simulated-fault-rate", 1, "--max-retries", 0, env=env, code=3)
    assert_whole(koderz)
    koderz("benchmark", "retry", "latest", "--wait", env=env, code=3)
    assert_whole(koderz)
    koderz("benchmark", "rescore", "latest", *LEDGER, "--sink", "other", env=env, code=3)
    assert_whole(koderz)
    assert_whole(koderz, "other")
    koderz("benchmark", "rescore", "latest", "--no-sink", "ledger", env=env, code=3)

    assert states(koderz)["ledger"] == "off"


def test_resuming_a_finished_run_brings_its_sinks_up_to_date(koderz: Shell, env: Mapping[str, str]) -> None:
    koderz("benchmark", 0, 1, "--quiet")
    before = koderz.journal()

    done = koderz("benchmark", "resume", "latest", *LEDGER, env=env)

    assert "nothing to do" in done.err
    assert koderz.journal() == before
    assert_whole(koderz)


def test_summary_file_waits_for_sync_without_the_json_sink(koderz: Shell) -> None:
    done = koderz("benchmark", 0, 1, "--no-sink", "json")
    assert "BENCHMARK COMPLETE" in done.out
    assert "SUMMARY SAVED" not in done.out
    assert not list(koderz.results.glob("*.json"))
    assert states(koderz)["json"] == "off"

    koderz("sync", "--sink", "json", "--quiet")

    assert koderz.summary()["status"] == "complete"


@pytest.mark.slow  # in moments: tests/tracker/sinks
def test_store_is_rebuilt_from_all_runs(koderz: Shell, env: Mapping[str, str]) -> None:
    for _ in range(2):
        koderz("benchmark", 0, 1, *LEDGER, "--quiet", env=env)
    (koderz.results / "ledger.db").write_bytes(b"no database at all, but something else")
    assert "file is not a database" in koderz("sync", "--sink", "ledger", "--rebuild", "latest", env=env, code=3).out

    done = koderz("sync", "--sink", "ledger", "--rebuild", env=env)

    assert done.out.count("up to date") == 2
    for journal in koderz.results.glob("bench_*/journal.jsonl"):
        assert len(rows_of(koderz.results, journal.parent.name)) == len(journal.read_bytes().splitlines())


@pytest.mark.slow
def test_rebuild_passes_over_an_unreadable_run(koderz: Shell) -> None:
    for _ in range(2):
        koderz("benchmark", 0, 20, "--mode", "zero-shot", "--sink", "json", "--quiet")
    damaged, sound = sorted(koderz.results.glob("bench_*/journal.jsonl"))
    lines = damaged.read_bytes().splitlines(keepends=True)
    assert len(lines[0]) > 4096  # by whose first bytes the sinks know the journal
    damaged.write_bytes(lines[0][:-3] + b"\0" + lines[0][-2:] + b"".join(lines[1:]))
    damaged.with_suffix(".index").unlink()

    done = koderz("sync", "--sink", "json", "--rebuild", code=3)

    assert {damaged.parent.name: "behind:", sound.parent.name: "up"} == {
        run: state for run, _, state, *_ in map(str.split, done.out.splitlines())
    }


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (("benchmark", 0, 1, "--sink", "mlfow"), {}),
        (("benchmark", 0, 1, "--no-sink", "mlfow"), {}),
        (("benchmark", 0, 1), {"KODERZ_SINKS": "json,mlfow"}),
        (("sync", "--sink", "mlfow"), {}),
    ],
)
def test_unknown_sink_is_answered_with_the_known_ones(
    koderz: Shell, env: Mapping[str, str], arguments: tuple[object, ...], variables: Mapping[str, str]
) -> None:
    done = koderz(*arguments, env={**env, **variables}, code=2)

    assert "there is no sink 'mlfow'; choose from json, mlflow, memory, absent, checkpoint, ledger, other" in done.err
    assert not koderz.results.exists()


def test_sinks_are_chosen_in_the_file_of_the_folder_too(koderz: Shell, env: Mapping[str, str]) -> None:
    (koderz.folder / "koderz.toml").write_text('sinks = ["ledger"]\n')
    environ = koderz.environment(env)
    del environ["KODERZ_SINKS"]
    koderz("benchmark", 0, 1, "--quiet", "--sink", "json", "--trust-config", env=env)
    assert states(koderz)["json"] == "up to date"

    koderz("sync", env={**environ, "KODERZ_SINKS": "ledger"})

    assert states(koderz)["memory"] == "off"


@pytest.fixture(scope="module")
def made_elsewhere(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Path:
    """A folder with the runs and the samples that tests copy."""
    shell = Shell(tmp_path_factory.mktemp("elsewhere"))
    shutil.copytree(speed, shell.folder / "cache")
    for _ in range(2):
        shell("benchmark", 0, 2, "--mode", "zero-shot", "--results", "theirs", "--quiet")
    shell("benchmark", "export", "latest", "--results", "theirs", "--output", "samples.jsonl")
    return shell.folder


@pytest.fixture
def theirs(koderz: Shell, made_elsewhere: Path) -> Path:
    """Two runs of another machine, and samples of the later one."""
    shutil.copy(made_elsewhere / "samples.jsonl", koderz.folder)
    return shutil.copytree(made_elsewhere / "theirs", koderz.folder / "theirs")


def assert_imported(koderz: Shell, runs: int) -> None:
    """Each run is whole in the ledger and has its summary."""
    journals = list(koderz.results.glob("bench_*/journal.jsonl"))
    assert len(journals) == len(list(koderz.results.glob("bench_*.json"))) == runs
    for journal in journals:
        assert len(rows_of(koderz.results, journal.parent.name)) == len(journal.read_bytes().splitlines())


@pytest.mark.slow
def test_import_is_in_every_chosen_sink_at_its_end(koderz: Shell, env: Mapping[str, str], theirs: Path) -> None:
    done = koderz("benchmark", "import", theirs, "samples.jsonl", *LEDGER, "--json", env=env)

    assert [entry["what"] for entry in json.loads(done.out)] == ["added", "added", "judged"]
    assert "warning" not in done.err
    assert_imported(koderz, 3)
    assert "nothing to do" in koderz("sync", env=env).err  # nor for the sinks that were not chosen


@pytest.mark.slow  # in moments: tests/tracker/sinks
def test_merge_from_elsewhere_reaches_the_sinks(koderz: Shell, env: Mapping[str, str], theirs: Path) -> None:
    env = {**env, "KODERZ_SINKS": "json,ledger"}
    koderz("benchmark", "import", theirs, "--wait", env=env)
    for run in theirs.glob("bench_*/"):
        koderz("benchmark", "rescore", run.name, "--results", theirs)

    done = koderz("benchmark", "import", theirs, "--wait", env=env)

    assert done.out.count("extended") == 2
    assert_imported(koderz, 2)
    assert koderz("benchmark", "import", theirs, "--sink", "other", env=env).out.count("there already") == 2
    assert not (koderz.results / "other.db").exists()


@pytest.mark.slow
def test_sink_that_is_down_is_one_warning_for_all_imports(koderz: Shell, env: Mapping[str, str], theirs: Path) -> None:
    down = trouble(koderz, "ledger.down")
    patience = ("--sink-patience", 4)
    done = koderz("benchmark", "import", theirs, *LEDGER, "--sink", "other", *patience, "--quiet", env=env)

    (warning,) = done.err.splitlines()
    assert warning.startswith("warning: the sink ledger lacks some of 2 runs (the ledger is closed today)")
    assert warning.endswith("koderz sync")
    down.unlink()
    koderz("sync", "--quiet", env=env)
    assert_imported(koderz, 2)


def test_import_before_a_bad_file_is_in_the_sinks(koderz: Shell, env: Mapping[str, str], theirs: Path) -> None:
    (koderz.folder / "empty.jsonl").touch()

    done = koderz("benchmark", "import", theirs, "empty.jsonl", "samples.jsonl", *LEDGER, env=env, code=2)

    assert done.out.count("added") == 2
    assert "empty.jsonl holds no sample" in done.err.splitlines()[-1]
    assert_imported(koderz, 2)


@pytest.mark.slow
def test_ctrl_c_during_an_imports_catch_up_leaves_the_rest_to_sync(
    koderz: Shell, env: Mapping[str, str], theirs: Path
) -> None:
    hang = trouble(koderz, "ledger.hang")
    running = koderz.start("benchmark", "import", theirs, *LEDGER, env=env)
    interrupt_waiting(koderz, running)
    _, told = running.communicate(timeout=PATIENCE)

    assert running.returncode == 0
    assert told.endswith("bring them up to date with: koderz sync\n")
    hang.unlink()
    koderz("sync", "--quiet", env=env)
    assert_imported(koderz, 2)


def test_import_without_the_json_sink_writes_no_summary(koderz: Shell, theirs: Path) -> None:
    koderz("benchmark", "import", theirs, "samples.jsonl", "--no-sink", "json")

    assert not list(koderz.results.glob("*.json"))
    assert len(list(koderz.results.glob("bench_*/journal.jsonl"))) == 3
    assert "there is no sink 'mlfow'" in koderz("benchmark", "import", theirs, "--sink", "mlfow", code=2).err


def test_single_experiment_is_fed_to_no_sink(koderz: Shell, env: Mapping[str, str]) -> None:
    koderz("run", "HumanEval/0", "-q", env={**env, "KODERZ_SINKS": "json,ledger"})

    assert not list(koderz.results.glob("*/sinks.json"))


@pytest.mark.slow
def test_doctor_says_how_many_runs_a_sink_lacks(koderz: Shell, env: Mapping[str, str]) -> None:
    trouble(koderz, "ledger.down")
    koderz("benchmark", 0, 1, *LEDGER, "--sink-patience", 0.5, "--quiet", env=env)

    found = {
        row["what"]: row
        for row in json.loads(koderz("doctor", "--json", env={**env, "KODERZ_SINKS": "json,ledger,absent"}, code=1).out)
    }

    assert found["sink json"]["state"] == "ok"
    assert found["sink ledger"]["remedy"] == "koderz sync"
    assert "1 of 1 runs" in found["sink ledger"]["detail"]
    assert found["sink absent"]["state"] == "broken"


def test_python_api_feeds_the_sinks_and_logs_what_stays_behind(
    koderz: Shell,
    env: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in koderz.environment(env).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(koderz.folder)
    monkeypatch.syspath_prepend(str(koderz.folder / "site"))
    asyncio.run(api.benchmark(range(1), model="simulated", sinks=("json", "ledger"), mode="zero-shot"))
    assert_whole(koderz)

    with caplog.at_level(logging.WARNING, "koderz"):
        asyncio.run(api.resume(sinks=("json", "absent")))

    assert "the sink absent lacks some of this run (sink 'absent'" in caplog.text


def in_terminal(koderz: Shell, *arguments: object, env: Mapping[str, str]) -> str:
    """What the command prints on a terminal, which is closed when it ends."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "koderz", *map(str, arguments)]
    environ = {**koderz.environment(env), "TERM": "dumb"}
    process = subprocess.Popen(
        command, cwd=koderz.folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    told = b""
    with suppress(OSError):  # the end
        while some := os.read(ours, 4096):
            told += some
    os.close(ours)
    assert process.wait(PATIENCE) == 0, told
    return told.decode().replace("\r\n", "\n")


@pytest.mark.slow
def test_terminal_prompt_comes_back_and_the_sinks_go_on(koderz: Shell, env: Mapping[str, str]) -> None:
    env = {**env, "KODERZ_SINKS": "json,ledger"}
    wait = trouble(koderz, "ledger.wait")
    told = in_terminal(koderz, "benchmark", 0, 2, env=env)

    run = run_of(koderz).name
    assert f"File: benchmark_results/{run}.json\n" in told
    background = "the sinks catch up in the background; see how far they are with: koderz benchmark show"
    assert told.endswith(f"{background} {run}\n")
    wait_for(lambda: at_work(koderz.results))
    assert "ledger behind, 0% there, in progress" in koderz("benchmark", "show", run, env=env).out
    assert "1 run is being sent to ledger" in " ".join(koderz("benchmark", "list", env=env).out.split())
    found = {row["what"]: row for row in json.loads(koderz("doctor", "--json", env=env).out)}
    assert "behind on 1 of 1 runs; 1 being brought up to date now" in found["sink ledger"]["detail"]
    assert found["sink ledger"]["remedy"] == ""

    second = in_terminal(koderz, "benchmark", 0, 1, "--quiet", env=env)
    assert "the sinks catch up" not in second
    wait_for(lambda: len(feeders(koderz)) == 1)
    wait.unlink()
    wait_for(lambda: all(state_of(folder) == "up to date" for folder in koderz.results.glob("bench_*/")))
    for folder in koderz.results.glob("bench_*/"):
        assert len(rows_of(koderz.results, folder.name)) == len((folder / "journal.jsonl").read_bytes().splitlines())


def test_wait_option_returns_once_the_sinks_are_level(koderz: Shell, env: Mapping[str, str]) -> None:
    told = in_terminal(koderz, "benchmark", 0, 2, *LEDGER, env=env)

    assert_whole(koderz)
    assert "background" not in told


@pytest.mark.slow
def test_backlog_of_a_dead_process_is_caught_up_by_the_next_command(koderz: Shell, env: Mapping[str, str]) -> None:
    env = {**env, "KODERZ_SINKS": "json,ledger"}
    wait = trouble(koderz, "ledger.wait")
    in_terminal(koderz, "benchmark", 0, 2, env=env)
    (pid,) = feeders(koderz)
    os.kill(pid, signal.SIGKILL)
    wait.unlink()
    wait_for(lambda: not feeders(koderz))
    assert states(koderz)["ledger"] == "behind"

    koderz("benchmark", "list", env=env)

    wait_for(lambda: states(koderz)["ledger"] == "up to date")  # the process that feeds it may not be there yet
    assert_whole(koderz)


def feeders(koderz: Shell) -> set[int]:
    """The processes that feed the sinks of this folder."""
    return processes(koderz.results)


def test_pipe_gets_a_change_as_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("koderz.cli.sync._SAID_AFTER", 0.0)
    going = [Status("behind", "", count, 84) for count in range(80)]
    stuck, done = Status("behind", "its database is in use", 80, 84), Status("done", "", 84, 84)
    with showing(quiet=False) as watch:
        for status in [*going, stuck, stuck, done, done]:
            watch({"mlflow": status, "memory": done})

    assert re.sub(r"\d+ s", "N s", capsys.readouterr().err).splitlines() == [
        "Sending results to MLflow (starting, N s)",
        "Sending results to MLflow: its database is in use",
        "Sending results to MLflow: done",
    ]


@contextmanager
def holding() -> Iterator[tuple[str, list[socket.socket]]]:
    """The address of a server that takes requests and never answers, and those that it holds."""
    held: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):  # it is closed
            while True:
                held.append(listening.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", held
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()
    for each in held:
        each.close()


@pytest.mark.slow
def test_unresponsive_server_leaves_the_prompt_free(koderz: Shell) -> None:
    with holding() as (address, held):
        env = {
            "KODERZ_SINKS": "json,mlflow,memory",
            "MLFLOW_TRACKING_URI": address,
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(PATIENCE),
        }
        patience = ("--sink-patience", PATIENCE)
        done = koderz("benchmark", 0, 2, "--mode", "zero-shot", *patience, env=env)  # which ends while it holds

        assert states(koderz) == {"json": "up to date", "mlflow": "behind", "memory": "up to date"}
        assert done.err.endswith(f"see how far they are with: koderz benchmark show {run_of(koderz).name}\n")
        wait_for(lambda: held)
        assert states(koderz)["mlflow"] == "behind"
        assert "mlflow behind, 0% there, in progress" in koderz("benchmark", "show", "latest", env=env).out


@pytest.mark.slow
def test_server_that_starts_late_gets_all_runs(koderz: Shell, tmp_path: Path) -> None:
    server = MlflowServer(tmp_path)
    env = {
        "KODERZ_SINKS": "json,mlflow",
        "MLFLOW_TRACKING_URI": server.uri,
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(PATIENCE),
    }
    run = ("benchmark", 0, 1, "--mode", "zero-shot", "--wait", "--sink-patience")
    koderz(*run, 6, env=env)
    earlier = run_of(koderz)
    assert standing_of(earlier)["mlflow"].state == "down"

    running = koderz.start(*run, PATIENCE, env=env)
    wait_for(lambda: any("doesn't answer" in str(standing_of(each).get("mlflow")) for each in others(koderz, earlier)))
    try:
        server.start()
        _, told = running.communicate(timeout=PATIENCE)
        assert running.returncode == 0
        assert told.endswith("sinks: json, mlflow up to date\n")
        wait_for(lambda: standing_of(earlier)["mlflow"].state == "up to date")
    finally:
        server.kill()


def others(koderz: Shell, run: Path) -> list[Path]:
    """The folders of the other runs."""
    return [journal.parent for journal in koderz.results.glob("bench_*/journal.jsonl") if journal.parent != run]


@pytest.mark.slow
def test_files_are_final_though_every_feeder_is_killed(koderz: Shell) -> None:
    chosen = {"KODERZ_SINKS": "json,memory"}
    items = ("--train-items", 5, "--validation-items", 5, "--test-items", 5, "--budget-calls", 20)
    search = (
        "optimize",
        "run",
        "--demo-datasets",
        "labels",
        "--models",
        "simulated",
        "--optimizers",
        "few_shot",
        *items,
    )
    koderz(*search, "--seeds", 1, "--quiet", env={**killing(koderz.folder), **chosen})

    folder = run_of(koderz)
    assert json.loads((folder / "checkpoint.json").read_bytes())["status"] == "complete"
    assert koderz.summary()["status"] == "complete"
    assert len(list(folder.glob("optimization_*.log"))) == 2
    assert {name: state for name, state in states(koderz).items() if state != "off"} == {
        "json": "up to date",
        "checkpoint": "up to date",
        "memory": "behind",
    }

    koderz("benchmark", 0, 1, "--quiet", env=chosen)

    wait_for(lambda: standing_of(folder)["memory"].state == "up to date")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rollouts", "rlm"])
def test_system_files_are_final_though_every_feeder_is_killed(koderz: Shell, name: str) -> None:
    env = {**killing(koderz.folder), "KODERZ_SINKS": "json,memory"}
    if name == "rollouts":
        koderz("rollouts", "sample", "tasks")
        (koderz.folder / "own.toml").write_text('[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "nop"\n')
        koderz("rollouts", "run", "own.toml", "--quiet", env=env)
        (manifest,) = koderz.folder.glob("data/rollouts/own/*/manifest.json")
        (results,) = koderz.folder.glob("data/runs/*/results.json")
        assert [each["status"] for each in json.loads(manifest.read_bytes())["results"]] == ["launched"]
        assert json.loads(results.read_bytes())["exit_code"] == 0
    else:
        koderz("rlm", "run", "--simulated", "--benchmark", "ruler", "--max-tasks", 1, "--max-turns", 2, env=env)
        (results,) = koderz.folder.glob("**/ruler_results.json")
        assert json.loads(results.read_bytes())["status"] == "complete"
    assert koderz.summary()["status"] == "complete"
    assert states(koderz)["memory"] == "behind"
