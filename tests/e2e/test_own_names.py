"""A user's modules beside a script, named as koderz' packages or parts of them are: neither takes the other's place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Shell

NAMES = ("tracker", "analysis", "settings", "models", "runs", "plans", "engines", "cli", "records", "summary", "memory")
SCRIPT = """
import asyncio
import tracker
import koderz

if __name__ == "__main__":
    summary = asyncio.run(koderz.benchmark(range(0, 2), mode="zero-shot", model="simulated"))
    print(tracker.MINE, len(summary.arms["zero-shot"].results))
"""


@pytest.fixture
def folder(koderz: Shell) -> Shell:
    """A folder with a script and modules of the user's, each of which says when it is loaded by somebody else."""
    for name in NAMES:
        (koderz.folder / f"{name}.py").write_text(
            "import sys\nMINE = 'mine'\nif not sys.argv[0].endswith('my.py'): sys.exit('loaded a file of the user')\n"
        )
    (koderz.folder / "my.py").write_text(SCRIPT)
    return koderz


def run(folder: Shell, *words: str, **env: str) -> str:
    environ = folder.environment(env)
    done = subprocess.run(words, cwd=folder.folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_names_keep_koderz_and_a_users_modules_apart(folder: Shell) -> None:
    assert run(folder, sys.executable, "my.py").splitlines()[-1] == "mine 2"
    assert "Mode" in run(folder, sys.executable, "-m", "koderz", "benchmark", "0", "2", "--model", "simulated")


@pytest.mark.slow
def test_own_names_hold_in_background_processes(folder: Shell) -> None:
    koderz = str(Path(sys.executable).with_name("koderz"))
    chosen = ("memory", "mlflow")
    sinks = [word for name in ("json", *chosen) for word in ("--sink", name)]
    run(folder, koderz, "benchmark", "0", "2", "--model", "simulated", *sinks, "--wait", PYTHONPATH=".")

    (standings,) = folder.results.glob("bench_*/sinks.json")
    found = json.loads(standings.read_text())["sinks"]
    assert {name: found[name]["state"] for name in chosen} == dict.fromkeys(chosen, "up to date")
