"""A service of a judge in a process of its own, with a task file of its own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from koderz.systems.rewards import Client
from tests.conftest import PATIENCE, Shell

TOKEN = "a token of sixteen and more"
TEST = """
def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(2, 2) == 4
    assert candidate(3, 2) == 5
    assert candidate(-1, 1) == 0
"""
ADD = {
    "task_id": "T/add",
    "prompt": 'def add(x, y):\n    """The sum."""\n',
    "entry_point": "add",
    "test": TEST,
    "canonical_solution": "    return x + y\n",
}
BROKEN = {
    **ADD,
    "task_id": "T/broken",
    "prompt": 'def add(x, y):\n    """Its sum."""\n',
    "canonical_solution": "    return 0\n",
}


def reply(body: str) -> str:
    """A model's reply with a program."""
    return f"Here it is:\n```python\n{body}\n```\n"


RIGHT = reply("def add(x, y):\n    return x + y")
WRONG = reply("def add(x, y):\n    return x + y if x > 1 else 7")  # passes two of four


def write_tasks(folder: Path, *rows: dict[str, str], name: str = "tasks.jsonl") -> Path:
    """A task file."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or (ADD, BROKEN)))
    return path


@pytest.fixture(autouse=True)
def _own_cache(speed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a judge in this process finds out about the machine is kept nowhere else."""
    shutil.copytree(speed, tmp_path / "cache", dirs_exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@dataclass
class Served:
    """A running service."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

    def client(self, token: str = TOKEN, timeout: float = PATIENCE) -> Client:
        return Client(self.url, token, timeout=timeout)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


Serving = Callable[..., Served]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Iterator[Serving]:
    """Starts services; all end with the module."""
    with ExitStack() as stack:

        def serve(*arguments: object, folder: Path | None = None, port: int = 0) -> Served:
            where = folder or tmp_path_factory.mktemp("served")
            write_tasks(where)
            command = [sys.executable, "-m", "koderz", "judge", "serve", "tasks.jsonl", "--token-env", "JUDGE_TOKEN"]
            workers = () if "--workers" in arguments else ("--workers", "2")
            shutil.copytree(speed, where / "cache", dirs_exist_ok=True)
            environ = Shell(where).environment({"JUDGE_TOKEN": TOKEN})
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, "--http", f"127.0.0.1:{port}", *workers, *map(str, arguments)],
                    cwd=where,
                    env=environ,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            assert process.stdout
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), process.stderr and process.stderr.read()
            return Served(process, url, where)

        yield serve


@pytest.fixture(scope="module")
def served(serving: Serving) -> Served:
    """A service that tests share."""
    return serving("--test-timeout", 0.5, "--test-memory", 256)
