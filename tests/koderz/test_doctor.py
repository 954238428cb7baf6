from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from koderz.doctor import diagnose

LOOK = """
import asyncio, json, os, sys
from koderz.doctor import diagnose

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
