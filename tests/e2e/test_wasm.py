"""`koderz wasm`: the manager as a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

from koderz.settings.installation import extra_command
from tests.conftest import PATIENCE, Shell, are_gone, wait_for
from tests.forks import Fork


def first_line(process: Fork | subprocess.Popen[str]) -> str:
    assert process.stdout
    line = process.stdout.readline().strip()
    assert line.startswith("WASM manager on http://127.0.0.1:"), line + (
        process.stderr.read() if process.stderr else ""
    )
    return line.removeprefix("WASM manager on ")


def got(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_serve_status_and_stop(koderz: Shell) -> None:
    process = subprocess.Popen(  # which is recognized by its words
        [sys.executable, "-m", "koderz", "wasm", "serve", "--port", "0", "--workers", "1"],
        cwd=koderz.folder,
        env=koderz.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    url = first_line(process)
    with urllib.request.urlopen(urllib.request.Request(f"{url}/session", method="POST")) as answer:
        name = json.load(answer)["session_id"]
    assert got(f"{url}/sessions") == {"sessions": [name]}
    assert name in koderz("wasm", "status", "--wasm-url", url).out
    assert json.loads(koderz("wasm", "status", "--wasm-url", url, "--json").out)["wasm"] is True
    assert koderz("wasm", "stop").out == f"stopped the WASM manager on {url}\n"
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "Failed to create WASM session" in koderz("wasm", "status", "--wasm-url", url, code=4).err
    assert "koderz wasm serve" in koderz("wasm", "stop", code=4).err


def test_manager_that_is_killed_takes_its_workers_along(koderz: Shell) -> None:
    process = koderz.start("wasm", "serve", "--port", 0, "--workers", 1)
    url = first_line(process)
    got(f"{url}/health")
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout
    workers = [int(one) for one in listed.split()]
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    wait_for(lambda: are_gone(workers))


def test_manager_off_loopback_needs_a_token(koderz: Shell) -> None:
    assert "--token" in koderz("wasm", "serve", "--host", "0.0.0.0", "--port", 0, code=2).err
    process = koderz.start("wasm", "serve", "--host", "0.0.0.0", "--port", 0, "--open", "--workers", 1)
    assert process.stdout
    assert process.stdout.readline().startswith("WASM manager on http://0.0.0.0:")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert "WARNING" in said
    assert process.returncode == 0


@pytest.mark.slow
def test_missing_extra_is_named_by_the_command(koderz: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(koderz.folder)
    (koderz.folder / "sitecustomize.py").write_text(
        "import sys, importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'wasmtime' else found(name, *more)\n"
    )
    path = os.pathsep.join([str(koderz.folder), os.environ.get("PYTHONPATH", "")])
    for command in ("serve", "build"):
        said = koderz("wasm", command, code=4, env={"PYTHONPATH": path}, fresh=True).err
        assert said == f"koderz: sessions in WASM need wasmtime; run: {extra_command('wasm')}\n"
