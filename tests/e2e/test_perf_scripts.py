"""The scripts of ISO-Bench and GSO, by their own command lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Shell
from tests.loopback_modal import ModalServer

SCRIPTS = Path(__file__).parents[2] / "scripts"
COMMIT = "c3c1dff"  # of the embedded koderz-mini__dedupe


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options", "experiments", "sandbox"),
    [
        ("runners/local_docker_benchmark.py", "--mode human", 1, "docker"),
        ("runners/local_docker_benchmark.py", "--baseline --sandbox contained", 1, "contained"),
        ("runners/hero_3way_benchmark.py", "--engine local", 3, "contained"),
        ("runners/hero_3way_benchmark.py", "--parallel 2", 3, "modal"),
        (
            "eval/modal_benchmark.py",
            "--engine local --benchmark-type workload",
            3,
            "contained",
        ),
        ("eval/modal_benchmark.py", "--engine modal --detach --benchmark-type workload", 3, "modal"),
        ("eval/sglang_modal_benchmark.py", "--engine local", 3, "contained"),
    ],
)
def test_options_are_handed_on_and_defaults_yield_to_them(
    koderz: Shell, script: str, options: str, experiments: int, sandbox: str
) -> None:
    path = SCRIPTS / script
    command = [path.stem, "--commit", COMMIT, *options.split(), "--dry-run", "--json"]
    started = koderz.forks().start(command, koderz.folder, koderz.environment({"PYTHONPATH": str(path.parent)}))
    out, err = started.communicate(PATIENCE)
    assert started.returncode == 0, err
    config = json.loads(out)["config"]
    assert (config["problems"], config["sandbox"]) == (["koderz-mini__dedupe"], sandbox)
    assert json.loads(out)["planned"] == experiments


def test_defaults_yield_to_variables(koderz: Shell) -> None:
    script = str(SCRIPTS / "runners/local_docker_benchmark.py")
    command = [sys.executable, script, "--commit", COMMIT, "--baseline", "--dry-run", "--json"]
    env = koderz.environment({"KODERZ_SANDBOX": "contained"})
    done = subprocess.run(command, cwd=koderz.folder, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["config"]["sandbox"] == "contained"


@pytest.mark.slow
def test_modal_deploys_the_files_and_runs_their_entrypoint(koderz: Shell) -> None:
    with ModalServer(secrets={"llm-api-keys": {}}, max_containers=1) as server:
        environ = koderz.environment({**server.environment, "KODERZ_ENGINE": "local"})
        program = str(Path(sys.executable).with_name("modal"))
        for name in ("modal_benchmark", "sglang_modal_benchmark"):
            command = [program, "run", f"{SCRIPTS / 'eval' / name}.py::run_benchmark", "--commit", COMMIT, "--dry-run"]
            done = subprocess.run(command, cwd=koderz.folder, env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert f"{COMMIT}  koderz-mini__dedupe: baseline, human, agent" in done.stdout
            command = [program, "deploy", f"{SCRIPTS / 'eval' / name}.py"]
            done = subprocess.run(command, cwd=koderz.folder, env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        assert "the same as here" in koderz("modal", "status", env=server.environment).out
