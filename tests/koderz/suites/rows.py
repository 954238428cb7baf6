"""Task files and verdicts for the tests of the suites."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.sandbox import Job, JobResult, open_sandbox
from koderz.suites.code.programs import CodeSuite
from koderz.types import Task

Row = Mapping[str, Any]

HUMANEVAL: Row = {
    "task_id": "Own/0",
    "prompt": 'def half(n: float) -> float:\n    """Half of n."""\n',
    "entry_point": "half",
    "canonical_solution": "    return n / 2\n",
    "test": "def check(candidate):\n    assert candidate(3) == 1.5\n",
}


def written(path: Path, *rows: Row) -> Path:
    """A file of these rows, one a line."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def complaint(load: Callable[[Path], object], path: Path) -> str:
    """What is said of a file that can't be loaded."""
    with pytest.raises(KoderzError) as raised:
        load(path)
    return str(raised.value)


def whole(task: Task) -> str:
    """The task's reference as a program."""
    reference = str(task.payload.reference)
    return reference if f"def {task.payload.entry_point}" in reference else task.prompt + reference


def outcomes(task: Task, programs: Iterable[str]) -> list[JobResult]:
    """What becomes of programs that answer the task."""

    async def judged() -> list[JobResult]:
        async with open_sandbox("contained", judges=2, own_programs=True) as sandbox:
            jobs = [
                Job(program, task.payload.test, task.payload.entry_point, context=task.prompt) for program in programs
            ]
            return await asyncio.gather(*map(sandbox.judge, jobs))

    return asyncio.run(judged())


def verdicts(task: Task, *programs: str) -> list[str]:
    return [outcome.verdict for outcome in outcomes(task, programs)]


def only_task(suite: CodeSuite) -> Task:
    (task,) = suite.tasks
    return task
