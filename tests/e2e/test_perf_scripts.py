"""The scripts of ISO-Bench and GSO, by their own command lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Shell
from tests.loopback_modal import ModalServer

SCRIPTS = Path(__file__).parents[2] / "scripts"
COMMIT = "c3c1dff"  # of the embedded koderz-mini__dedupe


def ran(koderz: Shell, script: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *options]
    return subprocess.run(
        command, cwd=koderz.folder, env=koderz.environment(env), capture_output=True, text=True, check=False
    )


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
    done = ran(koderz, script, "--commit", COMMIT, *options.split(), "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)["config"]
    assert (config["problems"], config["sandbox"]) == (["koderz-mini__dedupe"], sandbox)
    assert json.loads(done.stdout)["planned"] == experiments


def test_defaults_yield_to_variables(koderz: Shell) -> None:
    script, asked = "runners/local_docker_benchmark.py", ("--commit", COMMIT, "--baseline", "--dry-run", "--json")
    done = ran(koderz, script, *asked, KODERZ_SANDBOX="contained")
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
