"""What a run on Modal is asked for, costs and shows, and who may pick it up: the real command, a loopback Modal."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koderz.systems.modal.names import gpu_cost
from tests.conftest import PATIENCE, Shell, wait_for
from tests.e2e.conftest import MODEL, Remote, once_each, one_line, paid_once
from tests.loopback_modal import ModalServer


def elsewhere(machine: Remote, folder: Path) -> Remote:
    """Another machine, which has nothing of the first one's."""
    folder.mkdir()
    return Remote(folder, machine.modal, machine.server, machine.before)


def run_of(machine: Remote) -> str:
    (name,) = (path.name for path in machine.results.iterdir() if path.is_dir())
    return name


def stored_ends(machine: Remote, run: str) -> int:
    """How many experiments have ended by what is on Modal's volume."""
    files = (machine.modal.volume("koderz-results") / "runs" / run).glob("*.jsonl")
    return sum('"kind":"experiment"' in path.read_text() for path in files)


def _unjudged(machine: Remote) -> str:
    """A solver whose experiments take little but a call."""
    solver = "async def ask_only(task, ask):\n    await ask(task.messages)\n    return Verdict('passed')\n"
    (machine.folder / "mine.py").write_text(f"from koderz import Verdict\n\n\n{solver}")
    return "mine.py:ask_only"


# What is asked for, and what it costs


@pytest.mark.slow
def test_gpu_and_container_limit_are_applied_and_the_gpu_is_paid(on_modal: Remote) -> None:
    on_modal("benchmark", 0, 2, *MODEL, "--gpu", "L4:2", "--max-containers", 3)

    variant = on_modal.modal.variants("run_experiment")[-1]
    assert (variant.gpu, variant.max_containers) == ("L4:2", 3)
    computed = [line for line in on_modal.journal() if line["kind"] == "compute"]
    assert [line["gpu"] for line in computed] == ["L4:2", "L4:2"]
    rate = on_modal.summary()["environment"]["modal"]["cost_per_second"]
    assert rate > gpu_cost("L4:2")
    for line in computed:
        assert line["cost_per_second"] == rate
        assert line["cost"] == pytest.approx(line["seconds"] * line["cost_per_second"], rel=1e-3)
    spent = sum(line["cost"] for line in on_modal.journal() if line["kind"] in ("call", "compute"))
    assert on_modal.summary()["summary"]["total_cost"] == pytest.approx(spent)


@pytest.mark.slow
def test_seconds_on_modal_count_against_the_cost_cap(on_modal: Remote) -> None:
    asked = ("benchmark", 0, 12, *MODEL, "--mode", "iterative", "--max-iterations", 5, "--gpu", "B200")
    done = on_modal(*asked, "--max-containers", 1, "--max-cost", "0.004", code=3)

    assert "cost cap" in done.err + done.out
    summary = on_modal.summary()
    assert summary["status"] == "stopped"
    on_modal("benchmark", "resume", "latest", "--max-cost", "1")
    once_each(on_modal, 12)


# Whoever has the id


@pytest.mark.slow
def test_volume_alone_suffices_for_a_pickup_elsewhere(on_modal: Remote, tmp_path: Path) -> None:
    on_modal("benchmark", 0, 2, *MODEL, "--detach")
    run = run_of(on_modal)
    wait_for(lambda: stored_ends(on_modal, run) == 2)
    delete = [sys.executable, "-m", "modal", "dict", "delete", "--yes", f"koderz-{run}"]
    subprocess.run(delete, env=on_modal.environment(), check=True, capture_output=True)
    other = elsewhere(on_modal, tmp_path / "elsewhere")

    other("benchmark", "resume", run)

    once_each(other, 2)
    paid_once(other)


@pytest.mark.slow
def test_faults_are_retried_from_elsewhere(on_modal: Remote, tmp_path: Path) -> None:
    broken = on_modal.folder / "broken.py"
    solver = "async def once_broken(task, ask, judge):\n    reply = await ask(task.messages)\n"
    broken.write_text(f"{solver}    raise ValueError('not today')\n")
    on_modal("benchmark", 0, 2, *MODEL, "--solver", "broken.py:once_broken", code=3)
    other = elsewhere(on_modal, tmp_path / "elsewhere")

    other("benchmark", "retry", run_of(on_modal), "--trust-config", code=3)

    assert len(other.summary()["faults"]) == 2
    ends = [line["kind"] for line in other.journal() if line["kind"] in ("fault", "resumed")]
    assert ends == ["fault", "fault", "resumed", "fault", "fault"]
    paid_once(other)


@pytest.mark.slow
def test_pickup_works_though_another_version_is_deployed(on_modal: Remote) -> None:
    on_modal("benchmark", 0, 2, *MODEL, "--detach")
    path = on_modal.modal.volume("koderz-results") / "koderz.json"
    about = path.read_text()
    path.write_text(json.dumps({**json.loads(about), "digest": "0" * 16, "koderz": "9.9.9"}))
    try:
        done = on_modal("benchmark", "resume", "latest")
    finally:
        path.write_text(about)

    assert "koderz 9.9.9 (0000000000000000)" in done.err
    assert "koderz modal deploy" in done.err
    once_each(on_modal, 2)


@pytest.mark.slow
def test_concurrent_pickups_pay_nothing_twice(on_modal: Remote, tmp_path: Path) -> None:
    on_modal("benchmark", 0, 6, *MODEL, "--detach")
    run = run_of(on_modal)
    other = elsewhere(on_modal, tmp_path / "elsewhere")

    both = [machine.start("benchmark", "resume", run) for machine in (on_modal, other)]
    errors = [process.communicate(timeout=PATIENCE)[1] for process in both]

    assert [process.returncode for process in both] == [0, 0], errors
    for machine in (on_modal, other):
        once_each(machine, 6)
        paid_once(machine)


@pytest.mark.slow
def test_pickup_of_a_run_in_progress_here_is_refused(on_modal: Remote) -> None:
    process = on_modal.start("benchmark", 0, 6, *MODEL, "--mode", "iterative")
    wait_for(lambda: list(on_modal.results.glob("bench_*/journal.jsonl")))
    wait_for(lambda: any(line["kind"] == "submitted" for line in on_modal.journal()))
    process.send_signal(signal.SIGSTOP)  # so that it is under way for as long as that takes

    done = on_modal("benchmark", "resume", "latest", code=2)

    process.send_signal(signal.SIGCONT)
    assert "another koderz process is working on" in one_line(done.err)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    paid_once(on_modal)


@pytest.mark.slow
def test_ctrl_c_while_submitting_knows_all_that_was_submitted(on_modal: Remote) -> None:
    before = on_modal.modal.counts["FunctionMap"]
    process = on_modal.start("benchmark", 0, 40, *MODEL, "--solver", _unjudged(on_modal), "--detach")
    wait_for(lambda: on_modal.modal.counts["FunctionMap"] > before)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)

    assert process.returncode in (0, 130), err
    assert "Traceback" not in err
    submitted = [line for line in on_modal.journal() if line["kind"] == "submitted"]
    assert len(submitted) == on_modal.modal.counts["FunctionMap"] - before
    on_modal("benchmark", "resume", "latest")
    once_each(on_modal, 40)
    paid_once(on_modal)


def test_detach_needs_modal(on_modal: Remote) -> None:
    done = on_modal("benchmark", 0, 1, "--model", "simulated", "--detach", code=2)

    assert "--engine modal" in one_line(done.err)
    assert not on_modal.results.exists()


def test_gpu_option_needs_modal(koderz: Shell) -> None:
    done = koderz("benchmark", 0, 1, "--model", "simulated", "--gpu", "L4", code=2)

    assert "--gpu has no effect here: only the engine modal reads it" in done.err


# What is shown


@pytest.mark.slow
def test_detached_run_can_be_watched_from_anywhere(on_modal: Remote, tmp_path: Path) -> None:
    on_modal("benchmark", 0, 3, *MODEL, "--detach")
    run = run_of(on_modal)

    here = on_modal("benchmark", "watch", run, "--every", "0.2", "--detailed")
    there = elsewhere(on_modal, tmp_path / "elsewhere")("benchmark", "watch", run, "--every", "0.2", "--detailed")

    for watched in (here, there):
        assert "3/3" in watched.out
        steps = [line for line in watched.out.splitlines() if line.startswith("HumanEval/2 ")]
        assert "https://modal.com/id/fc-" in steps[-1]
        assert " ended " in steps[-1]
    assert f"3 results are at Modal; write them down here with: koderz benchmark resume {run}" in here.out
    assert not [line for line in on_modal.journal() if line["kind"] == "experiment"], "watching changes nothing"


@pytest.mark.slow
def test_watch_follows_a_picked_up_run_to_its_end(on_modal: Remote) -> None:
    on_modal("benchmark", 0, 2, *MODEL)

    assert "ended: complete" in on_modal("benchmark", "watch", "latest").out


# Serving and looking


@pytest.mark.slow
def test_served_model_has_its_gpu_key_weights_and_address(on_modal: Remote) -> None:
    on_modal.modal.put_secret("koderz-serve", {"VLLM_API_KEY": "sk-serve"})

    done = on_modal("modal", "serve", "--model", "Qwen/Qwen3-8B", "--gpu", "H100:2", "--idle", 120)

    served = on_modal.modal.functions["serve"]
    assert served.gpu == "H100:2"
    assert list(served.volumes) == ["/root/.cache/huggingface"]
    assert (len(served.secrets), served.max_containers) == (1, 1)
    assert served.asked.autoscaler_settings.min_containers == 0
    assert served.asked.autoscaler_settings.scaledown_window == 120
    assert f"{served.web_url}/v1" in done.out
    assert "--local-model openai/Qwen/Qwen3-8B --base-url" in done.out
    assert any("vllm" in line for line in on_modal.modal.dockerfile("serve"))


def test_serving_without_its_key_says_how_to_make_one(on_modal: Remote, tmp_path: Path) -> None:
    with ModalServer() as bare:
        done = on_modal("modal", "serve", "--model", "Qwen/Qwen3-8B", code=4, env=bare.environment)

    assert "modal secret create koderz-serve VLLM_API_KEY=" in one_line(done.err)


def test_served_model_needs_an_existing_gpu(on_modal: Remote) -> None:
    done = on_modal("modal", "serve", "--model", "m", "--gpu", "H100:9", code=2)

    assert "H100:9" in one_line(done.err)


@pytest.mark.slow
def test_deployments_can_be_listed_and_removed(koderz: Shell) -> None:
    with ModalServer(secrets={"llm-api-keys": {}}) as own:
        koderz("modal", "deploy", env=own.environment)
        seen = koderz("modal", "status", "--json", env=own.environment)
        stopped = koderz("modal", "stop", env=own.environment)
        gone = koderz("modal", "status", code=4, env=own.environment)
        again = koderz("modal", "stop", code=2, env=own.environment)
        kept = own.volume("koderz-results") / "koderz.json"
        assert kept.exists(), "what is on the volume stays"

    found = json.loads(seen.out)
    assert (found["app"], found["matches"], found["running"]) == ("koderz", True, 0)
    assert stopped.out == "stopped koderz\n"
    assert "koderz modal deploy" in one_line(gone.err)
    assert "nothing of koderz runs on Modal" in one_line(again.err)


# What can be wrong, besides


@pytest.fixture(scope="module")
def closed() -> Iterator[ModalServer]:
    """A loopback Modal that knows one other token, and on which the volume is somebody else's."""
    with ModalServer(tokens={"ak-known"}, secrets={"llm-api-keys": {}}, foreign_volumes={"koderz-results"}) as server:
        yield server


ASKED = ("benchmark", 0, 1, "--model", "simulated", "--engine", "modal")


def test_missing_token_begins_nothing(koderz: Shell, closed: ModalServer) -> None:
    environment = {**closed.environment, "MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": ""}

    done = koderz(*ASKED, code=4, env=environment)

    assert "modal setup" in one_line(done.err)
    assert not koderz.results.exists()


def test_refused_token_begins_nothing(koderz: Shell, closed: ModalServer) -> None:
    done = koderz(*ASKED, code=4, env={**closed.environment, "MODAL_TOKEN_ID": "ak-stranger"})

    assert "modal setup" in one_line(done.err)
    assert not koderz.results.exists()


def test_missing_network_begins_nothing(koderz: Shell, closed: ModalServer) -> None:
    done = koderz(*ASKED, code=4, env={**closed.environment, "MODAL_SERVER_URL": "http://127.0.0.1:9"})

    assert "can't be reached" in one_line(done.err)
    assert not koderz.results.exists()


def test_denied_volume_is_named_with_the_way_out(koderz: Shell, closed: ModalServer) -> None:
    done = koderz(*ASKED, code=4, env=closed.environment)

    assert "koderz-results" in one_line(done.err)
    assert "KODERZ_MODAL_" in one_line(done.err)
    assert not koderz.results.exists()


@pytest.mark.parametrize("command", ["resume", "retry", "watch"])
def test_unknown_run_on_modal_is_one_line(on_modal: Remote, command: str) -> None:
    detach = () if command == "watch" else ("--detach",)

    done = on_modal("benchmark", command, "bench_00000000_20260101_000000", *detach, code=2)

    assert "bench_00000000_20260101_000000" in one_line(done.err)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "content"), [("plan.json", "{}"), ("exp_1.jsonl", '{"kind":"call"}\n')])
def test_damaged_store_is_one_line(on_modal: Remote, file: str, content: str, tmp_path: Path) -> None:
    on_modal("benchmark", 0, 1, *MODEL, "--solver", _unjudged(on_modal))
    run = run_of(on_modal)
    damaged = f"bench_{int(run[6] == '0')}{run[7:]}"  # another one, however the first is called
    runs = on_modal.modal.volume("koderz-results") / "runs"
    shutil.copytree(runs / run, runs / damaged)
    (runs / damaged / file).write_text(content)

    done = elsewhere(on_modal, tmp_path / "elsewhere")("benchmark", "resume", damaged, code=2)

    assert one_line(done.err)


@pytest.mark.slow
def test_stopped_app_is_one_line_and_the_run_goes_on_after_a_deploy(koderz: Shell) -> None:
    with ModalServer(secrets={"llm-api-keys": {}}, max_containers=1) as own:
        koderz("modal", "deploy", env=own.environment)
        koderz("benchmark", 0, 2, *ASKED[3:], "--simulated-latency", 900, "--detach", env=own.environment)
        koderz("modal", "stop", env=own.environment)
        stopped = koderz("benchmark", "resume", "latest", code=4, env=own.environment)
        koderz("modal", "deploy", env=own.environment)
        koderz("benchmark", "resume", "latest", "--detach", env=own.environment)

    assert "koderz modal deploy" in one_line(stopped.err)


@pytest.mark.slow
def test_long_texts_are_made_in_the_experiments_container(on_modal: Remote) -> None:
    on_modal("benchmark", "--suite", "ruler", "--context-lengths", "1K", "--limit", 1, "--solver", "direct", *MODEL)

    (result,) = on_modal.summary()["results"]
    assert (result["problem_id"], result["solver"], result["calls"]) == ("niah_single_1/1024/0", "direct", 1)
    assert result["tokens_in"] > 500
    installs = " ".join(on_modal.modal.dockerfile("run_experiment"))
    assert re.findall(r"(componentize-py|wasmtime)[<>=]", installs) == ["componentize-py", "wasmtime"]


@pytest.mark.slow
def test_sessions_on_long_texts_run_in_the_experiments_container(on_modal: Remote) -> None:
    what = ("--suite", "ruler", "--context-lengths", "1K", "--limit", 2, "--solver", "rlm", "--max-turns", 2)
    on_modal("benchmark", *what, *MODEL)

    cells = [line["value"] for line in on_modal.journal() if line.get("name", "").startswith(("cell", "session"))]
    assert {cell["container"] for cell in cells} == {"wasm"}
    once_each(on_modal, 2)
    paid_once(on_modal)
