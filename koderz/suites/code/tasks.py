"""Rows of task files made into tasks; what would spoil every verdict is found before anything is spent."""

from __future__ import annotations

import ast
import builtins
import contextlib
import keyword
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites import task_digest
from koderz.suites.dataset import Row, read_rows
from koderz.types import Task

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Function:
    """The function that a task asks for."""

    entry_point: str  # its name
    test: str = ""  # trusted source that defines `check(candidate)`
    reference: str = ""  # a solution: whole, or the body that follows the prompt


CodeTask = Task[Function]


def read_tasks(path: Path, as_task: Callable[[Row], CodeTask]) -> tuple[CodeTask, ...]:
    """The tasks of a file, in its order. Raises KoderzError naming the line that is off."""
    tasks: dict[str, CodeTask] = {}
    for row in read_rows(path):
        task = as_task(row)
        if task.id in tasks:
            raise row.error(f"the task {task.id} is there twice")
        tasks[task.id] = task
    if not tasks:
        raise KoderzError(f"{path} holds no task")
    return tuple(tasks.values())


def program_task(row: Row, *, task_id: str, prompt: str, entry_point: str, test: str, reference: str) -> CodeTask:
    """A task that asks for one function. KoderzError for an id or a name that can't be one."""
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
                if task.payload.entry_point in bindings(parse(source)):
                    return source
        return task.prompt + task.payload.reference  # which the judge will say what is wrong with
    return ""


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


def bindings(tree: ast.Module) -> dict[str, ast.stmt]:
    """The names that a module defines, imports or assigns at its top, with the statement that does.

    What `from m import *` brings goes by the name `m.*`.
    """
    return {name: statement for statement in tree.body for name in _bound(statement)}


def free_names(*trees: ast.AST) -> set[str]:
    """The names that the code uses and doesn't define, without the built-in ones."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    defined = {name for node in nodes if isinstance(node, ast.stmt) for name in _bound(node)}
    return names - stored - arguments - defined - vars(builtins).keys()


def _bound(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.ImportFrom(module=module, names=[ast.alias(name="*")]):
            return [f"{module}.*"]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
        case ast.Assign() | ast.AnnAssign():
            stored = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            return [node.id for node in stored if isinstance(node.ctx, ast.Store)]
    return []
