"""Rows of task files made into tasks; what would spoil every verdict is found before anything is spent."""

from __future__ import annotations

import ast
import keyword
import warnings
from collections.abc import Callable
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites import task_digest
from koderz.suites.dataset import Row, read_rows
from koderz.types import Task


def read_tasks(path: Path, as_task: Callable[[Row], Task]) -> tuple[Task, ...]:
    """The tasks of a file, in its order. Raises KoderzError naming the line that is off."""
    tasks: dict[str, Task] = {}
    for row in read_rows(path):
        task = as_task(row)
        if task.id in tasks:
            raise row.error(f"the task {task.id} is there twice")
        tasks[task.id] = task
    if not tasks:
        raise KoderzError(f"{path} holds no task")
    return tuple(tasks.values())


def program_task(row: Row, *, task_id: str, prompt: str, entry_point: str, test: str, reference: str) -> Task:
    """A task that asks for one function. KoderzError for an id or a name that can't be one."""
    if not task_id.isprintable() or not task_id or len(task_id) > 200:
        raise row.error("the field 'task_id' has to be 1 to 200 printable characters")
    if not entry_point.isidentifier() or keyword.iskeyword(entry_point):
        raise row.error(f"the field 'entry_point' is no Python name: {entry_point[:80]!r}")
    return Task(
        id=task_id,
        prompt=prompt,
        entry_point=entry_point,
        test=test,
        reference=reference,
        digest=task_digest(task_id, prompt, entry_point, test, reference),
    )


def as_python(row: Row, name: str, source: str) -> ast.Module:
    """The syntax tree of what the field `name` holds. KoderzError where that isn't Python."""
    try:
        return parse(source)
    except SyntaxError as error:
        raise row.error(f"the field {name!r} isn't Python: {error}") from None


def parse(source: str) -> ast.Module:
    """Like `ast.parse`, with SyntaxError for whatever can't be parsed, and silent about doubtful escapes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (ValueError, MemoryError, RecursionError) as error:
        raise SyntaxError(str(error) or type(error).__name__) from None
