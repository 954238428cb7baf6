"""Task files and verdicts for the tests of the suites."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from koderz.errors import KoderzError
from koderz.sandbox import Job, JobResult, Sandbox, open_sandbox
from koderz.systems.code.programs import CodeSuite
from koderz.types import Task

Row = Mapping[str, Any]
Done = TypeVar("Done")


class Judges:
    """A sandbox that is opened when the first test of a module judges, and closed with the module."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._sandbox: Sandbox

    def run(self, work: Callable[[Sandbox], Coroutine[Any, Any, Done]]) -> Done:
        if self._runner is None:
            self._runner = asyncio.Runner()
            opened = open_sandbox("contained", judges=2, own_programs=True)
            self._sandbox = self._runner.run(self._stack.enter_async_context(opened))
        return self._runner.run(work(self._sandbox))

    def judged(self, jobs: Iterable[Job]) -> list[JobResult]:
        async def all_of_them(sandbox: Sandbox) -> list[JobResult]:
            return await asyncio.gather(*map(sandbox.judge, jobs))

        return self.run(all_of_them)

    def close(self) -> None:
        if self._runner:
            self._runner.run(self._stack.aclose())
            self._runner.close()
            self._runner = None


JUDGES = Judges()

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

    test, entry_point = task.payload.test, task.payload.entry_point
    return JUDGES.judged([Job(program, test, entry_point, context=task.prompt) for program in programs])


def verdicts(task: Task, *programs: str) -> list[str]:
    return [outcome.verdict for outcome in outcomes(task, programs)]


def only_task(suite: CodeSuite) -> Task:
    (task,) = suite.tasks
    return task
