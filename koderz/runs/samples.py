"""Samples files: answers written elsewhere, in the format of HumanEval, EvalPlus or koderz."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from koderz.errors import KoderzError
from koderz.plans.arms import MODES
from koderz.suites.dataset import Row, read_rows
from koderz.types import Task


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer in a file."""

    task: Task
    program: str  # whole: what follows a prompt has the prompt before it; of a reply, its text
    solver: str
    number: int  # from 0, among those of its task and solver
    is_reply: bool = False  # to be judged as a model's reply is, in which a program may have to be found


@dataclass(frozen=True, slots=True)
class Samples:
    """The content of a samples file."""

    path: Path
    samples: Sequence[Sample]
    malformed: Sequence[str]  # what is wrong with the lines that were left out
    models: frozenset[object]  # who wrote them, as far as the file says

    @property
    def solvers(self) -> tuple[str, ...]:
        found = {sample.solver for sample in self.samples}
        return tuple(name for name in MODES["comparative"] if name in found)

    @property
    def model(self) -> str:
        """The model that wrote all samples. Raises KoderzError if the file doesn't say."""
        match [*self.models]:
            case [str(model)] if model:
                return model
        raise KoderzError(f"{self.path} doesn't say who wrote its programs; name the model with --model")


def read_samples(path: Path, tasks: Sequence[Task]) -> Samples:
    """The samples of a file for these tasks.

    A row has `task_id` and either `completion`, which goes after the task's prompt, `solution`, which is whole, or
    `reply`, which is what a model answered. Of an experiment with several attempts, as `export --attempts` writes them,
    the last counts. Raises KoderzError where the file holds none that could be judged.
    """
    malformed: list[str] = []
    known = {task.id: task for task in tasks}
    last: dict[object, tuple[Row, Task]] = {}
    for number, row in enumerate(read_rows(path, skip=lambda error: malformed.append(str(error)))):
        try:
            last[row.fields.get("experiment_id") or number] = row, _task_of(row, known)
        except KoderzError as error:
            malformed.append(str(error))
    if not last:
        reason = f"; the first that is wrong: {malformed[0]}" if malformed else ""
        raise KoderzError(f"{path} holds no sample that could be judged{reason}")
    models = frozenset(model if isinstance(model := row.fields.get("model"), str) else None for row, _ in last.values())
    nth: Counter[tuple[str, str]] = Counter()
    return Samples(path, [_sample(row, task, nth) for row, task in last.values()], malformed, models)


def _task_of(row: Row, tasks: Mapping[str, Task]) -> Task:
    task = tasks.get(row.text("task_id"))
    if task is None:
        raise row.error(f"there is no task {row.text('task_id')!r} in this suite; name another with --suite")
    row.text(_answer_in(row))
    return task


def _answer_in(row: Row) -> str:
    return next((name for name in ("solution", "reply") if name in row.fields), "completion")


def _sample(row: Row, task: Task, nth: Counter[tuple[str, str]]) -> Sample:
    solver = row.fields.get("solver")
    solver = solver if isinstance(solver, str) and solver in MODES["comparative"] else "zero-shot"
    number = nth[task.id, solver]
    nth[task.id, solver] += 1
    field = _answer_in(row)
    before = task.prompt if field == "completion" else ""
    return Sample(task, before + row.text(field), solver, number, is_reply=field == "reply")
