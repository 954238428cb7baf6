"""The limits of modules and functions, and the floors of packages, which pyproject.toml has as contracts."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import grimp
import pytest

from tests.conftest import script_module

ROOT = Path(__file__).parents[1]
MOST_LINES = 500  # of a module
MOST_FUNCTION_LINES = 60
MOST_MODULES = 13  # directly in koderz/
MOST_LED = 0.01  # of the tests' names, by an article or another function word


def modules() -> list[Path]:
    return [path for package in ("koderz", "tracker") for path in sorted((ROOT / package).rglob("*.py"))]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_modules_are_at_most_500_lines() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in modules() if (lines := _lines(path)) > MOST_LINES}
    assert not long


def test_functions_are_at_most_60_lines() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{each.lineno} {each.name}": length
        for path in modules()
        for each in functions(path)
        if (length := (each.end_lineno or 0) - each.lineno + 1) > MOST_FUNCTION_LINES
    }
    assert not long


def test_conditional_expressions_hold_no_other() -> None:
    nested = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.IfExp) and sum(isinstance(each, ast.IfExp) for each in ast.walk(node)) > 1
    ]
    assert not nested


def test_modules_directly_in_koderz_are_few() -> None:
    found = [path.name for path in (ROOT / "koderz").glob("*.py")]
    assert 0 < len(found) <= MOST_MODULES


def test_imports_run_down_the_floors_and_in_no_circle() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def house() -> ModuleType:
    return script_module("bench_house")


def test_names_begin_with_their_feature(house: ModuleType) -> None:
    led = house.led_by_function_words()

    assert len(led) <= MOST_LED * len(house.test_names()), led


def test_docstrings_begin_with_a_thing_or_an_act(house: ModuleType) -> None:
    assert house.riddles() == []


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_modules_import_each_other_in_no_circle_not_even_for_types() -> None:
    """import-linter looks at packages beside each other; here it is single modules."""
    graph = grimp.build_graph("koderz", "koderz_tracker", cache_dir=None)
    after = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        [*TopologicalSorter(after).static_order()]
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from None
