"""Tests parted into those that count each for itself, and the count of those that a candidate passes.

Parted are the top-level asserts of `check(candidate)`, and the inputs of a test in EvalPlus' form. All of it happens on
the judge's side: a candidate is called as by any test, one call after the other, and never learns how many there are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, NamedTuple

TALLY = "__tally__"
_CHECK = re.compile(r"^def check\(", re.MULTILINE)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Parts(NamedTuple):
    """A test in two pieces, of which the second defines a `check` that is counted by a `PartTally`."""

    head: CodeType
    check: CodeType
    number: int | None  # None: as many as there are inputs


class PartTally:
    """The parts of a test: how many there are, and how many were passed. A failure ends the test, as it is written."""

    def __init__(self, number: int | None) -> None:
        self.number, self.passed = number, 0

    def over(self, inputs: Iterable[Any]) -> list[Any]:
        """The inputs, each of which is a part."""
        found = [*inputs]
        self.number = len(found)
        return found

    def met(self) -> None:
        """Count a part that was passed."""
        self.passed += 1

    def missed(self, error: BaseException) -> bool:
        """Whether the failure of a part ends the test."""
        del error
        return True


class WholeTally(PartTally):
    """The count of a test that goes on after a failure. `goes_on` says whether a candidate is there for the rest."""

    def __init__(self, number: int | None, goes_on: Callable[[BaseException], bool]) -> None:
        super().__init__(number)
        self._goes_on = goes_on

    def missed(self, error: BaseException) -> bool:
        """Whether the failure of a part ends the test."""
        return not self._goes_on(error)


def parted(test: str, file: str) -> Parts | None:
    """The test in parts; None if it can't be parted. Raises SyntaxError as `compile` does."""
    found = _CHECK.search(test)
    if found is None:
        return None
    try:  # apart from the rest, which may be megabytes of inputs
        tree = ast.parse(test[found.start() :])
    except SyntaxError:
        return None
    check = tree.body[0]
    if not isinstance(check, ast.FunctionDef):
        return None
    asserts = sum(map(_is_assert, check.body))
    loops = [statement for statement in check.body if _is_loop_over_inputs(statement)]
    if asserts:
        parts = [_holds_assert(statement) for statement in check.body]
        check.body = [
            _counted(each) if part else each for each, part in zip(check.body, parts, strict=True)
        ]
        number: int | None = sum(parts)
    elif len(loops) == 1 and isinstance(loop := loops[0], ast.For):
        loop.iter = _call("over", loop.iter)
        loop.body = [_counted(*loop.body)]
        number = None
    else:
        return None
    ast.increment_lineno(tree, test.count("\n", 0, found.start()))
    return Parts(
        compile(test[: found.start()], file, "exec"),
        compile(ast.fix_missing_locations(tree), file, "exec"),
        number,
    )


def _is_assert(statement: ast.stmt) -> bool:
    """Whether it asserts something that a candidate may have a part in."""
    return isinstance(statement, ast.Assert) and not isinstance(statement.test, ast.Constant)


def _holds_assert(statement: ast.stmt) -> bool:
    """Whether it is an assert, or a loop or condition around some, which counts as one part."""
    if isinstance(statement, ast.Assert):
        return _is_assert(statement)
    return not isinstance(statement, _SCOPES) and any(
        isinstance(node, ast.Assert) for node in ast.walk(statement)
    )


def _is_loop_over_inputs(statement: ast.stmt) -> bool:
    """Whether it is the loop of a test in EvalPlus' form: over `zip(inputs, …)`, with an assert at its end."""
    match statement:
        case ast.For(
            iter=ast.Call(func=ast.Name("zip"), args=[ast.Name("inputs"), *_]),
            body=[*_, ast.Assert()],
        ):
            return True
    return False


def _counted(*statements: ast.stmt) -> ast.Try:
    """`try: …; except BaseException as error: if missed(error): raise; else: met()`, at the lines of the statements."""
    name = "__error__"
    ends = ast.If(_call("missed", ast.Name(name, ast.Load())), [ast.Raise()], [])
    handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), name, [ends])
    return ast.copy_location(
        ast.Try([*statements], [handler], [ast.Expr(_call("met"))], []), statements[0]
    )


def _call(method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(
        ast.Attribute(ast.Name(TALLY, ast.Load()), method, ast.Load()), [*arguments], []
    )
