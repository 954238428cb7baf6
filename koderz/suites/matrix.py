"""Arms and cells that no mode can express, as a matrix file in TOML, a command or a suite states them.

[[arms]]
name = "three tries"
solver = "iterative"              # or FILE:NAME
model = "qwen2.5-coder:7b"        # default: the run's
roles = {spec = "openai/gpt-6.1-sol"}
baseline = "one try"              # the arm that it is compared with; default: the first
max-iterations = 3                # whatever else there is: the solver's parameters

[[cells]]                         # default: every problem in every arm
arms = ["three tries"]            # default: all
problems = ["HumanEval/3"]        # default: all that the run is about
samples = 5                       # default: the run's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from koderz.errors import KoderzError
from koderz.suites.dataset import misspelt, require_keys
from koderz_tracker.records import Cell


@dataclass(frozen=True, slots=True)
class MatrixArm:
    """An arm: a solver, the models in its roles, and its parameters."""

    name: str
    solver: str
    model: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the solver, by its own names
    baseline: str = ""  # the name of another arm
    # of the suite, for this arm alone; no file states them
    settings: Mapping[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class MatrixCells:
    """Some cells: the samples of each of these problems in each of these arms; None stands for all."""

    arms: tuple[str, ...] | None = None
    problems: tuple[str, ...] | None = None
    samples: int | None = None
    names: tuple[str, ...] = ()  # of the samples


class Matrix(NamedTuple):
    """The arms of a run, and the cells in which they are compared."""

    arms: tuple[MatrixArm, ...]
    cells: tuple[MatrixCells, ...] = ()  # none: every problem in every arm
    source: str = ""  # what states them, for errors; empty: the suite

    def checked(self) -> Matrix:
        """The matrix, if it can be planned.

        Raises KoderzError if something in it has another type, it has no arm, two of one name, or names one that it
        hasn't got, and for names and numbers of samples beyond their limits.
        """
        try:  # as plain values, since convert takes an object of the type as it is
            msgspec.convert(msgspec.to_builtins(self, enc_hook=_plain), Matrix)
        except (msgspec.ValidationError, TypeError) as error:
            raise KoderzError(f"{self.source}: {error}") from None
        names = [arm.name for arm in self.arms]
        if not names:
            raise KoderzError(f"{self.source} states no arms")
        for number, cells in enumerate(self.cells, 1):
            if cells.samples is not None and not 1 <= cells.samples <= 100_000:
                raise KoderzError(
                    f"{self.source}: [[cells]] number {number}: samples go from 1 to 100,000"
                )
        for name in names:
            if not name.isprintable() or not 0 < len(name) <= 100:
                raise KoderzError(
                    f"{self.source}: an arm's name has 1 to 100 printable characters, not {name[:100]!r}"
                )
            if names.count(name) > 1:
                raise KoderzError(f"{self.source}: two arms are called {name!r}")
        meant = [
            *(name for cells in self.cells for name in cells.arms or ()),
            *(arm.baseline for arm in self.arms if arm.baseline),
        ]
        for name in (name for name in meant if name not in names):
            raise KoderzError(
                f"{self.source}: there is no arm {name!r}; there are {', '.join(names)}"
            )
        for arm in (arm for arm in self.arms if arm.baseline == arm.name):
            raise KoderzError(f"{self.source}: the arm {arm.name!r} can't be its own baseline")
        return self

    def cells_of(
        self,
        tasks: Sequence[str],
        samples: int,
        made: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> list[Cell] | None:
        """The cells of a run about these tasks; None if they are all tasks in all arms.

        `made`: the names of the arms that were made of each, where these are others: one for each model.
        Raises KoderzError where a task is none of the run's.
        """
        if not self.cells:
            return None
        found: dict[tuple[str, str], Cell] = {}
        for cells in self.cells:
            for task in cells.problems if cells.problems is not None else tasks:
                if task not in tasks:
                    raise KoderzError(f"{self.source}: the run has no task {task!r}")
                stated = cells.arms if cells.arms is not None else [arm.name for arm in self.arms]
                for arm in (name for one in stated for name in made.get(one, [one])):
                    before = found.get((task, arm), Cell(task, arm, 0))
                    names = (*before.names, *cells.names)
                    found[task, arm] = Cell(
                        task, arm, before.samples + (cells.samples or samples), names
                    )
        order = {task: number for number, task in enumerate(tasks)}
        return sorted(found.values(), key=lambda cell: order[cell.task])


def _plain(value: Any) -> Any:
    """A stand-in for what isn't plain, such as a parameter's value: a mapping, or a text, which no list may be."""
    return dict(value) if isinstance(value, Mapping) else type(value).__name__


T = TypeVar("T")

_OWN = ("name", "solver", "model", "roles", "baseline")


def read_matrix(path: Path) -> Matrix:
    """Reads a matrix file, once while it is unchanged, since some files, such as pipes, can be read only once.

    Raises KoderzError naming what is wrong with the file.
    """
    try:
        stat = path.stat()
        changing = (stat.st_mtime_ns, stat.st_size) if S_ISREG(stat.st_mode) else ()
        return _read_matrix(path, stat.st_dev, stat.st_ino, *changing)
    except OSError as error:
        raise KoderzError(f"--matrix {path} can't be read ({error.strerror})") from None


@lru_cache(maxsize=8)
def _read_matrix(path: Path, *_stamp: int) -> Matrix:
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise KoderzError(f"{path}: {error}") from None
    if unknown := table.keys() - {"arms", "cells"}:
        raise KoderzError(f"{path}: {min(unknown)} is neither [[arms]] nor [[cells]]")
    arms = tuple(
        _arm(path, number, row) for number, row in enumerate(_rows(path, table, "arms"), 1)
    )
    cells = tuple(
        _cells(path, number, row) for number, row in enumerate(_rows(path, table, "cells"), 1)
    )
    if not arms:
        raise KoderzError(f"{path} has no [[arms]]")
    return Matrix(arms, cells, str(path)).checked()


def _rows(path: Path, table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = table.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise KoderzError(f"{path}: write [[{name}]]")
    return rows


def _arm(path: Path, number: int, row: Mapping[str, Any]) -> MatrixArm:
    parameters = {key.replace("-", "_"): value for key, value in row.items() if key not in _OWN}
    options = {
        "name": row.get("solver", ""),
        "solver": "",
        **{key: row[key] for key in _OWN if key in row},
        "parameters": parameters,
    }
    arm = _converted(path, f"[[arms]] number {number}", options, MatrixArm)
    if arm.name and not arm.solver:
        raise KoderzError(
            f"{path}: [[arms]] number {number}: it has no solver{misspelt('solver', row.keys())}"
        )
    if not arm.name.isprintable() or not 0 < len(arm.name) <= 100:
        raise KoderzError(
            f"{path}: [[arms]] number {number}: give a solver, and a name of at most 100 characters"
        )
    return arm


def _cells(path: Path, number: int, row: Mapping[str, Any]) -> MatrixCells:
    where = f"[[cells]] number {number}"
    require_keys(row, ("arms", "problems", "samples"), f"{path}: {where}")
    return _converted(path, where, row, MatrixCells)


def _converted(path: Path, where: str, row: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise KoderzError(f"{path}: {where}: {error}") from None
