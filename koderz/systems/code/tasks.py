"""Tasks made from rows of task files; errors that would spoil every verdict are found before anything is spent."""

from __future__ import annotations

import ast
import contextlib
import keyword
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites import task_digest
from koderz.suites.dataset import Row
from koderz.suites.options import CodeOptions
from koderz.suites.tables import rows_in
from koderz.systems.code.extraction.statements import bound, parse, statements
from koderz.types import Task


@dataclass(frozen=True, slots=True)
class Function:
    """The function that a task asks for."""

    entry_point: str  # its name
    test: str = ""  # trusted source that defines `check(candidate)`
    reference: str = ""  # a solution: whole, or the body that follows the prompt


CodeTask = Task[Function]

_FIELDS = {"task_id", "entry_point", "test", "test_list"}  # of which a task of any suite has one
_SHOWN = 20  # names of columns


def read_tasks(
    path: Path, as_task: Callable[[Row], CodeTask], options: CodeOptions | None = None
) -> tuple[CodeTask, ...]:
    """The tasks of a file, in its order. Raises KoderzError, which names the bad line."""
    column = options.cluster_column if options else None
    tasks: dict[str, CodeTask] = {}
    for row in rows_in(path):
        if not row.fields.keys() & _FIELDS:
            raise row.error(
                f"no task of code, but {', '.join([*row.fields][:_SHOWN]) or 'nothing'}; rows of your own questions "
                "are those of --suite qa"
            )
        task = replace(as_task(row), cluster=row.cluster_by(column))
        if task.id in tasks:
            raise row.error(f"the task {task.id} is there twice")
        tasks[task.id] = task
    if not tasks:
        raise KoderzError(f"{path} holds no task")
    return tuple(tasks.values())


def program_task(
    row: Row, *, task_id: str, prompt: str, entry_point: str, test: str, reference: str
) -> CodeTask:
    """A task that asks for one function. Raises KoderzError for an invalid id or name."""
    if not task_id.isprintable() or not task_id or len(task_id) > 200:
        raise row.error("the field 'task_id' has to be 1 to 200 printable characters")
    if not entry_point.isidentifier() or keyword.iskeyword(entry_point):
        raise row.error(f"the field 'entry_point' is no Python name: {entry_point[:80]!r}")
    return Task(
        id=task_id,
        prompt=prompt,
        payload=Function(entry_point, test, reference),
        values={"prompt": prompt.rstrip(), "entry_point": entry_point},
        digest=task_digest(task_id, prompt, entry_point, test, reference),
    )


def reference_program(task: CodeTask) -> str:
    """The reference as a program: HumanEval's is the body that follows the prompt, others' are whole.

    Empty without one.
    """
    if task.payload.reference.strip():
        for source in (task.payload.reference, task.prompt + task.payload.reference):
            with contextlib.suppress(SyntaxError):
                if task.payload.entry_point in bound(statements(parse(source))):
                    return source
        return task.prompt + task.payload.reference  # which the judge will say what is wrong with
    return ""


def as_python(row: Row, name: str, source: str) -> ast.Module:
    """The syntax tree of the code in the field `name`. Raises KoderzError if it isn't Python."""
    try:
        return parse(source)
    except SyntaxError as error:
        raise row.error(f"the field {name!r} isn't Python: {error}") from None
