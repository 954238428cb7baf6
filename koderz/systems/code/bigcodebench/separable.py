"""Tests that can run in the judge's process, where the solution has no say in them.

Such tests call the function with plain data, look at plain data, and reach for nothing of its process: no files, no
patches, no random numbers that both sides draw.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

_MODULES = frozenset(
    [
        "base64",
        "bisect",
        "calendar",
        "collections",
        "copy",
        "csv",
        "datetime",
        "decimal",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "numbers",
        "operator",
        "re",
        "statistics",
        "string",
        "textwrap",
        "typing",
        "unittest",
    ]
)
_FORBIDDEN = frozenset(
    [
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "environ",
        "eval",
        "exec",
        "exit",
        "getattr",
        "globals",
        "help",
        "input",
        "locals",
        "open",
        "os",
        "print",
        "quit",
        "setattr",
        "setUpModule",
        "sys",
        "tearDownModule",
        "vars",
    ]
)

CHECK = """

def check(candidate):
    import unittest

    class FirstFailure(unittest.TestResult):
        first = None

        def _keep(self, error):
            self.first = self.first or error[1]
            self.stop()

        def addError(self, case, error):
            self._keep(error)

        def addFailure(self, case, error):
            self._keep(error)

        def addSubTest(self, case, part, error):
            if error is not None:
                self._keep(error)

    globals()[ENTRY_POINT] = candidate
    result = FirstFailure()
    unittest.TestLoader().loadTestsFromTestCase(TestCases).run(result)
    if result.first is not None:
        raise result.first
"""
"""The end of such tests: all cases are run up to the first that doesn't pass."""


def judged_apart(test: str, entry_point: str, libraries: frozenset[str]) -> str:
    """The tests as the judge runs them; empty where they have to run beside the solution."""
    if not libraries <= sys.stdlib_module_names:
        return ""
    tree = ast.parse(test)
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    if "TestCases" not in classes or not {*_imported(tree)} <= _MODULES:
        return ""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    binds = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    if names & _FORBIDDEN or binds & _FORBIDDEN or _mocks(tree) or entry_point not in names:
        return ""
    return f"{test}\nENTRY_POINT = {entry_point!r}\n{CHECK}"


def _imported(tree: ast.Module) -> Iterator[str]:
    """The top-level names of all modules that are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else (node.module or "").split(".")[0]


def _mocks(tree: ast.Module) -> bool:
    """Whether it reaches for `unittest.mock`, by whatever name."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(name)) | ast.alias(name=name) | ast.Attribute(attr=name) if "mock" in name:
                return True
    return False
