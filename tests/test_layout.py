"""The limits of modules and functions, and the floors of packages, which pyproject.toml has as contracts."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType
from typing import Any

import grimp

from tests.conftest import script_module

ROOT = Path(__file__).parents[1]
MOST_LINES = 600  # of a module
MOST_FUNCTION_LINES = 75  # below its signature
MOST_MODULES = 13  # directly in koderz/
MOST_LED = 0.01  # of the tests' names, by an article or another function word


@cache
def house() -> ModuleType:
    return script_module("bench_house")


def modules() -> list[Any]:
    return [house().read(path) for path in house().all_modules()]


def test_modules_are_at_most_600_lines() -> None:
    long = {each.name: each.lines for each in modules() if each.lines > MOST_LINES}
    assert not long


def test_functions_are_at_most_75_lines() -> None:
    long = {
        f"{each.name}:{function}": lines
        for each in modules()
        for function, lines in each.functions.items()
        if lines > MOST_FUNCTION_LINES
    }
    assert not long


def test_conditional_expressions_hold_no_other() -> None:
    nested = {each.name: each.nested for each in modules() if each.nested}
    assert not nested


def test_modules_directly_in_koderz_are_few() -> None:
    found = [path.name for path in (ROOT / "koderz").glob("*.py")]
    assert 0 < len(found) <= MOST_MODULES


def test_functions_and_values_of_packages_are_named_like_none_of_their_modules() -> None:
    """Such a module takes the function's place in the package as soon as anything imports it."""
    hidden = []
    for path in house().all_modules():
        if path.name == "__init__.py":
            made = {name for each in ast.parse(path.read_text()).body for name in _made_by(each)}
            beside = {module.name for module in pkgutil.iter_modules([str(path.parent)])}
            hidden += [f"{path.parent}: {name}" for name in sorted(made & beside)]
    assert hidden == []


def _made_by(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for each in targets if isinstance(each, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def test_files_that_the_architecture_names_are_there() -> None:
    named = re.findall(r"`((?:koderz|tracker)/[^`]+\.py)`", (ROOT / "docs/explanation/architecture.md").read_text())
    assert len(named) >= 10
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_imports_run_down_the_floors_and_in_no_circle() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_names_begin_with_their_feature() -> None:
    led = house().led_by_function_words()

    assert len(led) <= MOST_LED * len(house().test_names()), led


def test_docstrings_begin_with_a_thing_or_an_act() -> None:
    assert house().riddles() == []


def test_modules_import_each_other_in_no_circle_not_even_for_types() -> None:
    """import-linter looks at packages beside each other; here it is single modules."""
    graph = grimp.build_graph("koderz", "koderz_tracker", cache_dir=None)
    after = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        [*TopologicalSorter(after).static_order()]
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from None
