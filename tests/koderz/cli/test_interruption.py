"""Ctrl-C at any moment is exit code 130 and no traceback."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Shell

HOOK = '''
import importlib.abc, os, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    """Sends Ctrl-C to this process as it begins to import one module."""

    def find_spec(self, name, path, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

if "INTERRUPT_AT" in os.environ:
    sys.meta_path.insert(0, Interrupting())
'''


@pytest.fixture
def hooked(tmp_path: Path) -> dict[str, str]:
    """An environment in which Ctrl-C comes with an import."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "hook"), str(Path(__file__).parents[3])])}


_FAST = [
    ("--help", "koderz.cli"),
    ("benchmark 0 1 -m simulated", "koderz.runs.prepare"),
    ("memory serve --http 127.0.0.1:0", "uvicorn"),
]
_SLOW = [
    ("--help", "typer"),
    ("benchmark 0 1 -m simulated", "koderz.cli.benchmark"),
    ("benchmark 0 1 -m simulated", "koderz.settings.schema"),
    ("benchmark 0 1 -m simulated", "asyncio"),
    ("benchmark 0 1 -m simulated", "koderz.runs.session"),
    ("benchmark compare", "koderz.analysis.compare"),
    ("memory serve", "koderz.systems.memory.commands"),
    ("mcp serve", "koderz.systems.memory.mcp"),
    ("memory serve", "mcp.server.stdio"),
    ("memory serve --http 127.0.0.1:0", "uvicorn.server"),
]


@pytest.mark.parametrize(
    ("words", "module"), [*_FAST, *(pytest.param(*each, marks=pytest.mark.slow) for each in _SLOW)]
)
def test_ctrl_c_while_modules_are_loaded_is_one_line(
    koderz: Shell, hooked: dict[str, str], words: str, module: str
) -> None:
    done = koderz(*words.split(), code=130, env=hooked | {"INTERRUPT_AT": module}, fresh=True)

    assert done.err == "koderz: interrupted\n"
    assert not koderz.results.exists() or "serve" in words


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.mark.slow
def test_ctrl_c_ends_a_memory_server_that_waits_for_its_client(koderz: Shell) -> None:
    terminal, inner = pty.openpty()
    served = subprocess.Popen(
        [sys.executable, "-m", "koderz", "memory", "serve"],
        cwd=koderz.folder,
        env=koderz.environment(),
        stdin=inner,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(inner)
    try:
        os.write(terminal, json.dumps(HELLO).encode() + b"\n")
        assert served.stdout is not None
        assert "koderz-memory" in served.stdout.readline()  # so it reads the terminal now

        served.send_signal(signal.SIGINT)
        _, err = served.communicate(timeout=PATIENCE)
    finally:
        served.kill()
        os.close(terminal)

    assert (served.returncode, err) == (130, "koderz: interrupted\n")
