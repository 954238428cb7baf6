"""The arms of a comparison of optimizers, and the parameters that a file gives them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from koderz.errors import KoderzError
from koderz.solvers import SOLVERS, load_solver
from koderz.suites.matrix import Matrix, MatrixArm, MatrixCells
from koderz.systems.optimizers.datasets import BASELINE, OPTIMIZERS
from koderz.systems.optimizers.datasets.options import DatasetOptions

_GIVING_WAY = dict.fromkeys(("n_threads", "max_parallel_batches"), "--item-concurrency")
_OPTIONS = {
    "seed": "--seed",
    "temperature": "--temperature",
    "n_samples": "half of --validation-items, at most 100",
}
"""Parameters of the original's optimizers, and their counterparts here: unused ones, and others."""


def arms_of(options: DatasetOptions) -> tuple[Matrix, list[str]]:
    """An arm for each optimizer, in all samples, and one of the initial prompt, in one; and notes on parameters.

    Raises KoderzError for an unknown optimizer or parameter.
    """
    named = [name for text in options.optimizers for name in text.replace(",", " ").split()]
    optimizers = named or OPTIMIZERS
    if unknown := [name for name in optimizers if ":" not in name and not SOLVERS.has(name)]:
        known = ", ".join((BASELINE, *OPTIMIZERS, "gepa"))
        raise KoderzError(
            f"there is no optimizer {unknown[0]!r}; there are {known}, and your own as FILE:NAME"
        )
    names = {
        name: name.rpartition(":")[2] for name in dict.fromkeys(optimizers) if name != BASELINE
    }
    shown = [BASELINE, *names.values()]
    if twice := next((name for name in shown if shown.count(name) > 1), ""):
        raise KoderzError(f"two optimizers are called {twice!r}; rename one of them")
    path = options.optimizer_params
    own, notes = _parameters(path, names) if path else ({}, [])
    arms = [
        MatrixArm(shown, name, parameters=own.get(shown, {}), baseline=BASELINE)
        for name, shown in names.items()
    ]
    cells = [MatrixCells((BASELINE,), samples=1), *(MatrixCells((arm.name,)) for arm in arms)]
    return Matrix(
        (MatrixArm(BASELINE, BASELINE), *arms), tuple(cells), str(path or "--optimizers")
    ), notes


def _parameters(
    path: Path, names: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The file's parameters of each optimizer, and notes. Raises KoderzError for an unknown or invalid one."""
    try:
        table = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise KoderzError(f"--optimizer-params {path} can't be read: {error}") from None
    if not isinstance(table, dict) or not all(isinstance(own, dict) for own in table.values()):
        raise KoderzError(
            f'{path}: write parameters by optimizer: {{"few_shot": {{"max_examples": 4}}}}'
        )
    solvers = {shown: name for name, shown in names.items()}
    notes = []
    for shown, own in table.items():
        if shown not in solvers:
            raise KoderzError(
                f"{path}: there is no optimizer {shown!r} in this run; there are {', '.join(solvers)}"
            )
        notes += given_way(str(path), shown, own, solvers[shown])
    return table, notes


def given_way(path: str, shown: str, own: dict[str, Any], name: str = "") -> list[str]:
    """Takes those out of an optimizer's parameters that give way, and says so of each.

    Raises KoderzError for unknown or invalid ones.
    """
    found = []
    solver = load_solver(name or shown, own, {})
    known, choices = solver.signature, solver.choices
    for key, value in [*own.items()]:
        if key in _GIVING_WAY:
            found.append(f"{path}: {shown}'s {key} gives way to {_GIVING_WAY[key]}")
            del own[key]
            continue
        default = (
            known[key].default
            if key in known and known[key].kind is inspect.Parameter.KEYWORD_ONLY
            else None
        )
        if default is None:
            choose = [
                name for name, each in known.items() if each.kind is inspect.Parameter.KEYWORD_ONLY
            ]
            instead = f"; that is {_OPTIONS[key]}" if key in _OPTIONS else ""
            raise KoderzError(
                f"{path}: {shown} has no parameter {key!r}{instead}; it has {', '.join(choose) or 'none'}"
            )
        _require_like(f"{path}, {shown}, {key}", value, default)
        if value not in choices.get(key, (value,)):
            raise KoderzError(
                f"{path}, {shown}, {key}: {value!r} is not one of {', '.join(choices[key])}"
            )
    return found


def _require_like(where: str, value: Any, default: Any) -> None:
    """Raises KoderzError for a value of another type than the default, below 0, or 0 for a count."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    least = int(type(default) is int and default > 0)
    wanted = {
        bool: "true or false",
        int: f"a whole number from {least}",
        float: "a number from 0",
    }.get(type(default), "a text")
    fine = {
        bool: isinstance(value, bool),
        int: number and isinstance(value, int) and value >= least,
        float: number and 0 <= value < math.inf,
    }.get(type(default), isinstance(value, str))
    if not fine:
        raise KoderzError(f"{where}: {value!r} is not {wanted}")
