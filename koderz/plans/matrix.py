"""A matrix file in TOML: arms and cells that no mode can express.

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

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

import msgspec

from koderz.errors import KoderzError
from koderz.suites.dataset import misspelt, require_keys
from koderz.suites.matrix import Matrix, MatrixArm, MatrixCells

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
    cells = _converted(path, where, row, MatrixCells)
    if cells.samples is not None and not 1 <= cells.samples <= 100_000:
        raise KoderzError(f"{path}: [[cells]] number {number}: samples go from 1 to 100,000")
    return cells


def _converted(path: Path, where: str, row: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise KoderzError(f"{path}: {where}: {error}") from None
