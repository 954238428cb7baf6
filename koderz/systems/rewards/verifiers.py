"""A suite as a package for verifiers (`verifiers.v1`), whose rewards a judge's service gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import orjson

from koderz.errors import KoderzError
from koderz.prompts import load_prompts
from koderz_tracker.files import write_whole

if TYPE_CHECKING:
    from koderz.suites.suite import Suite
    from koderz.types import Message

_PROJECT = Template("""\
[project]
name = "$name"
version = "0.1.0"
description = "The suite $suite, rewarded by koderz judge serve."
requires-python = ">=3.11"
dependencies = ["koderz", "verifiers>=0.4"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
""")

_TASKSET = '''\
"""Tasks whose replies `koderz judge serve` scores, at KODERZ_JUDGE_URL. A fault ends its rollout with an error."""

import json
from pathlib import Path

import verifiers.v1 as vf
from koderz.rewards import AsyncClient

__all__ = ["KoderzTaskset"]


class KoderzData(vf.TaskData):
    pass


class KoderzTask(vf.Task[KoderzData]):
    @vf.reward
    async def koderz(self, task: KoderzData, trace: vf.Trace) -> float:
        score = await AsyncClient().score(task.id, trace.last_reply or "")
        if score.fault:
            raise RuntimeError(f"no reward for {task.id}: {score.fault.cause}: {score.fault.reason}")
        return score.reward


class KoderzTaskset(vf.Taskset[KoderzTask]):
    def load(self):
        for line in Path(__file__).with_name("tasks.jsonl").read_text(encoding="utf-8").splitlines():
            yield KoderzTask(KoderzData(**json.loads(line)), self.config.task)
'''


def export_taskset(suite: Suite, folder: Path) -> Iterator[tuple[Path, int]]:
    """Writes the package, and yields each file with the number of its tasks. Raises KoderzError if it can't."""
    name = "koderz_" + re.sub(r"\W", "_", suite.name.replace("+", "_plus"))
    prompts = load_prompts()
    rows = [_row(task.id, suite.messages(task, prompts)) for task in suite.tasks]
    files = {
        folder / "pyproject.toml": [
            _PROJECT.substitute(name=name.replace("_", "-"), suite=suite.name).encode()
        ],
        folder / name / "__init__.py": [_TASKSET.encode()],
        folder / name / "tasks.jsonl": [
            orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows
        ],
    }
    try:
        for path, pieces in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, pieces)
            if path.suffix == ".jsonl":
                yield path, len(rows)
    except OSError as error:
        raise KoderzError(f"{folder} can't be written ({error.strerror})") from None


def _row(task: str, messages: Sequence[Message]) -> dict[str, Any]:
    if any(
        message["role"] not in ("system", "user") or not isinstance(message["content"], str)
        for message in messages
    ):
        raise KoderzError(
            f"{task}: its messages aren't texts of a system and a user, as a taskset's have to be"
        )
    texts = {
        role: "\n\n".join(message["content"] for message in messages if message["role"] == role)
        for role in ("system", "user")
    }
    return {
        "id": task,
        "name": task,
        "prompt": texts["user"],
        "system_prompt": texts["system"] or None,
    }
