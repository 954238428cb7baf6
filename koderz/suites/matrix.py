"""Arms and cells that no mode can express, as a file, a command or a suite states them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from koderz.errors import KoderzError
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
        """The matrix. Raises KoderzError if it has no arm, two of one name, or names one that it hasn't got."""
        names = [arm.name for arm in self.arms]
        if not names:
            raise KoderzError(f"{self.source} states no arms")
        for name in names:
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
