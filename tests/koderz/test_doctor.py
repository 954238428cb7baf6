from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from koderz.cli.doctor import diagnose
from koderz.errors import KoderzError
from koderz.sandbox.workspace import Backend
from koderz.settings.paths import home_folder
from koderz.systems.rollouts import doctor

LOOK = """
import asyncio, json, os, sys
from koderz.cli.doctor import diagnose

found = {finding.what: finding.state for finding in asyncio.run(diagnose(environ=os.environ))}
heavy = {"mlflow", "sqlalchemy", "pandas", "genai_prices", "aiohttp", "httpx"}
print(json.dumps([found, sorted(heavy & {*sys.modules})]))
"""


def test_doctor_looks_at_every_sink_without_loading_what_is_heavy(tmp_path: Path) -> None:
    dropped = ("KODERZ_", "MLFLOW_", "MODAL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    command = [sys.executable, "-c", LOOK]
    env |= {"OLLAMA_HOST": "127.0.0.1:9"}

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)

    found, loaded = json.loads(done.stdout)
    assert [found[f"sink {name}"] for name in ("json", "mlflow", "memory")] == ["ok"] * 3
    assert found["sandbox"] == "ok"
    assert loaded == []


def test_doctor_calls_a_configuration_with_a_misspelt_key_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "koderz.toml").write_text("[solver.iterative]\nmax-iteratons = 3\n")

    (found,) = [
        finding
        for finding in asyncio.run(diagnose(environ={"OLLAMA_HOST": "127.0.0.1:9"}))
        if finding.what == "koderz.toml"
    ]

    assert (found.state, "did you mean max-iterations?" in found.detail) == ("broken", True)


def test_doctor_needs_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a random uid without an entry in passwd, and without HOME."""

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODAL_CONFIG_PATH", raising=False)
    monkeypatch.delenv("HF_HOME", raising=False)

    assert home_folder() == Path("/")
    found = asyncio.run(diagnose(environ={"OLLAMA_HOST": "127.0.0.1:9"}))
    assert {finding.what for finding in found} >= {"modal", "rollouts"}


def test_sandboxes_have_ended_when_the_doctor_has_looked_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else asyncio calls them off, and waits for ever for a program that was just being started."""
    ended: list[str] = []

    async def usual(environ: object) -> str:
        raise KoderzError("no sandbox is here")

    async def entered(backend: Backend) -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append(backend.name)
        return backend.name

    monkeypatch.setattr(doctor, "usual_sandbox", usual)
    monkeypatch.setattr(doctor, "_entered", entered)
    found = asyncio.run(doctor.check({}))

    assert (found[0].state, found[0].detail) == ("broken", "no sandbox is here")
    assert len(ended) == 4
