"""The real command against a loopback Modal: whatever ends in between, nothing is lost and nothing is made twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Shell, wait_for
from tests.e2e.conftest import MODEL, Remote, once_each, one_line, paid_once
from tests.loopback_modal import ModalServer


@pytest.mark.slow
def test_modal_run_looks_like_any_other(on_modal: Remote) -> None:
    done = on_modal("benchmark", 0, 3, *MODEL)

    assert "your machine may disconnect" in done.err
    assert "https://modal.com/id/fc-" in done.err
    once_each(on_modal, 3)
    paid_once(on_modal)
    summary = on_modal.summary()
    assert summary["status"] == "complete"
    assert summary["environment"]["modal"]["app"] == "koderz"
    kinds = Counter(line["kind"] for line in on_modal.journal())
    assert kinds["submitted"] == kinds["compute"] == kinds["experiment"] == 3
    computed = [line for line in on_modal.journal() if line["kind"] == "compute"]
    calls = [line for line in on_modal.journal() if line["kind"] == "call"]
    spent = sum(line["cost"] for line in computed) + sum(line["cost"] for line in calls)
    assert all(line["seconds"] > 0 for line in computed)
    assert summary["summary"]["total_cost"] == pytest.approx(spent)
    assert summary["summary"]["cost_by_tier"]["compute"] == pytest.approx(sum(line["cost"] for line in computed))


@pytest.mark.slow
def test_detached_run_is_picked_up_by_its_id(on_modal: Remote) -> None:
    done = on_modal("benchmark", 0, 4, *MODEL, "--detach")
    assert not [line for line in on_modal.journal() if line["kind"] == "experiment"]
    assert "koderz benchmark resume" in done.err

    on_modal("benchmark", "resume", "latest")

    once_each(on_modal, 4)
    paid_once(on_modal)


@pytest.mark.slow
def test_detached_run_is_picked_up_on_another_machine(on_modal: Remote, tmp_path: Path) -> None:
    on_modal("benchmark", 0, 3, *MODEL, "--detach")
    (run,) = (path.name for path in on_modal.results.iterdir() if path.is_dir())
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    other = replace(on_modal, folder=folder)

    other("benchmark", "resume", run)

    once_each(other, 3)
    paid_once(other)


@pytest.mark.slow
def test_killed_driver_loses_nothing_and_pays_nothing_twice(on_modal: Remote) -> None:
    process = on_modal.start("benchmark", 0, 6, *MODEL)
    wait_for(lambda: on_modal.asked() >= 3)
    process.kill()
    process.communicate()

    on_modal("benchmark", "resume", "latest")

    once_each(on_modal, 6)
    paid_once(on_modal)


@pytest.mark.slow
def test_submissions_before_ctrl_c_are_known_and_picked_up(on_modal: Remote) -> None:
    process = on_modal.start("benchmark", 0, 6, *MODEL, "--grace", "0")
    wait_for(lambda: list(on_modal.results.glob("[!.]*/journal.jsonl")) and "submitted" in _text(on_modal))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode in (0, 130), err
    assert "Traceback" not in err

    on_modal("benchmark", "resume", "latest")

    once_each(on_modal, 6)
    paid_once(on_modal)


@pytest.mark.slow
def test_preempted_containers_records_are_replayed(on_modal: Remote) -> None:
    process = on_modal.start("benchmark", 0, 4, *MODEL, "--mode", "iterative", "--history", "9")
    wait_for(lambda: on_modal.asked() >= 4)
    for container in on_modal.modal.containers("run_experiment"):
        on_modal.modal.preempt(container)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err

    once_each(on_modal, 4)
    calls = [line for line in on_modal.journal() if line["kind"] == "call"]
    assert len(calls) <= on_modal.asked() <= len(calls) + 4  # only calls in flight are made again


def _text(shell: Shell) -> str:
    (path,) = shell.results.glob("[!.]*/journal.jsonl")
    return path.read_text()


@pytest.mark.slow
def test_results_that_modal_has_forgotten_come_from_the_volume(on_modal: Remote) -> None:
    on_modal("benchmark", 0, 2, *MODEL, "--detach")
    calls = [line["call_id"] for line in on_modal.journal() if line["kind"] == "submitted"]
    (run,) = (path.name for path in on_modal.results.iterdir() if path.is_dir())
    folder = on_modal.modal.volume("koderz-results") / "runs" / run
    wait_for(lambda: sum('"kind":"experiment"' in path.read_text() for path in folder.glob("*.jsonl")) == 2)
    for call in calls:
        on_modal.modal.expire(call)

    on_modal("benchmark", "resume", "latest")

    once_each(on_modal, 2)
    paid_once(on_modal)


# What can be wrong


@pytest.fixture(scope="module")
def empty() -> Iterator[ModalServer]:
    """A loopback Modal on which nothing was deployed."""
    with ModalServer() as server:
        yield server


def test_missing_app_names_the_command_that_deploys_it(koderz: Shell, empty: ModalServer) -> None:
    done = koderz("benchmark", 0, 1, "--model", "simulated", "--engine", "modal", code=4, env=empty.environment)

    assert "koderz modal deploy" in one_line(done.err)
    assert not koderz.results.exists()


def test_missing_secret_names_the_command_that_makes_it(koderz: Shell, empty: ModalServer) -> None:
    done = koderz("modal", "deploy", code=4, env=empty.environment)

    assert "modal secret create llm-api-keys" in one_line(done.err)


def test_missing_token_names_the_command_that_gets_one(koderz: Shell) -> None:
    done = koderz("modal", "deploy", code=4, env={"MODAL_CONFIG_PATH": str(koderz.folder / "absent.toml")})

    assert done.err.splitlines() == [one_line(done.err)]
    assert "modal token new" in done.err
    assert "MODAL_TOKEN_ID" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("script", ["benchmark_worker.py", "eval/modal_benchmark.py"])
def test_missing_token_stops_the_deploy_in_one_line(koderz: Shell, script: str) -> None:
    program, path = Path(sys.executable).with_name("modal"), Path(__file__).parents[2] / "scripts" / script
    environ = koderz.environment({"MODAL_CONFIG_PATH": str(koderz.folder / "absent.toml")})
    done = subprocess.run(
        [program, "deploy", path], cwd=koderz.folder, env=environ, capture_output=True, text=True, check=False
    )

    assert done.returncode == 4
    assert (done.stdout + done.stderr).splitlines() == [one_line(done.stderr)]
    assert "modal token new" in done.stderr


def test_servers_of_a_list_are_alternatives(koderz: Shell, empty: ModalServer) -> None:
    several = f"http://127.0.0.1:9,{empty.url}"
    done = koderz("modal", "status", code=4, env={**empty.environment, "MODAL_SERVER_URL": several})

    assert "run: koderz modal deploy" in one_line(done.err)


def test_missing_network_is_told(koderz: Shell, empty: ModalServer) -> None:
    environment = {**empty.environment, "MODAL_SERVER_URL": "http://127.0.0.1:9"}
    done = koderz("modal", "status", code=4, env=environment)

    assert "can't be reached" in one_line(done.err)


def test_gpu_that_does_not_exist_is_named_with_those_that_do(on_modal: Remote) -> None:
    done = on_modal("benchmark", 0, 1, *MODEL, "--gpu", "H9000", code=2)

    assert "H9000" in one_line(done.err)
    assert "H100" in one_line(done.err)
    assert not on_modal.results.exists()


def test_app_of_another_version_is_not_run_on(on_modal: Remote) -> None:
    path = on_modal.modal.volume("koderz-results") / "koderz.json"
    about = path.read_text()
    path.write_text(json.dumps({**json.loads(about), "digest": "0" * 16, "koderz": "0.0.1"}))
    try:
        done = on_modal("benchmark", 0, 1, *MODEL, code=4)
    finally:
        path.write_text(about)

    assert "0.0.1" in one_line(done.err)
    assert "koderz modal deploy" in one_line(done.err)


def test_foreign_volume_is_left_alone(on_modal: Remote) -> None:
    path = on_modal.modal.volume("koderz-results") / "koderz.json"
    about = path.read_text()
    path.write_text('{"app": "theirs"}')
    try:
        done = on_modal("benchmark", 0, 1, *MODEL, code=4)
    finally:
        path.write_text(about)

    assert "belongs to the app theirs" in one_line(done.err)


def test_unknown_run_is_named(on_modal: Remote) -> None:
    done = on_modal("benchmark", "resume", "bench_00000000_20260101_000000", code=2)

    assert "bench_00000000_20260101_000000" in one_line(done.err)
