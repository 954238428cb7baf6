"""Explanations of verdicts for people and models: the call, its outcome, and the expected value."""

from __future__ import annotations

import ast
import itertools
import reprlib
import textwrap
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Protocol

from koderz.sandbox.judge import suite_tests
from koderz.sandbox.judge.proxy import Raised

MESSAGE_LIMIT = 2000  # characters


class Asked(Protocol):
    """The callable that stands for the candidate, with its latest call and what that returned."""

    __name__: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    result: Any


_VALUE_LIMIT = 400
_EXPECTED_NAMES = ("expected", "exp", "want", "result")


def assertion(error: BaseException, proxy: Asked, tests: suite_tests.SuiteTests) -> str:
    """Call, result and expectation of the assertion that failed; nothing of the others."""
    lines = [call(proxy), f"  returned  {shown(proxy.result)}"]
    found = _failing_assert(error.__traceback__, tests.lines)
    if found is None:
        return "\n".join([*lines, f"  failed    {str(error)[:_VALUE_LIMIT]}"])
    statement, frame = found
    expected = _expected(statement, frame, proxy)
    if expected is not None:
        return "\n".join([*lines, f"  expected  {expected}"])
    return "\n".join([*lines, f"  failed    assert {_clipped(ast.unparse(statement.test))}"])


def exception(raised: Raised, program: Sequence[str], offset: int, called: str) -> str:
    """An exception of the candidate's, where it came from, and the call that led to it."""
    lines = [f"{raised.name}: {raised.message}" if raised.message else raised.name]
    if called:
        lines.append(f"  in {called}")
    for (line, function), repeated in itertools.groupby(raised.places):
        source = program[line - 1].strip() if 0 < line <= len(program) else ""
        where = f"line {line - offset}" if line > offset else "in the prompt's part"
        again = ", again and again" if len([*repeated]) > 1 else ""
        lines.append(f"  {where}, in {function}: {source}{again}")
    return "\n".join(lines)[:MESSAGE_LIMIT]


def call(proxy: Asked) -> str:
    """The latest call, as it would be written."""
    arguments, keywords = proxy.arguments
    parts = [shown(value) for value in arguments]
    parts += [f"{name}={shown(value)}" for name, value in keywords.items()]
    return _clipped(f"{proxy.__name__}({', '.join(parts)})")


def shown(value: Any) -> str:
    """A value's repr, cut to what a reader can use and a machine can make at once."""
    try:
        return _clipped(_SHORT.repr(value))
    except (ValueError, RecursionError):
        return f"<{type(value).__name__} too large to show>"


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 8
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdict = (
    _SHORT.maxdeque
) = 60
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = _VALUE_LIMIT


def _clipped(text: str) -> str:
    return text if len(text) <= _VALUE_LIMIT else f"{text[: _VALUE_LIMIT - 12]} … {text[-9:]}"


def _failing_assert(
    trace: TracebackType | None, lines: Sequence[str]
) -> tuple[ast.Assert, FrameType] | None:
    """The innermost assert statement of the tests that the exception came through."""
    found = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == suite_tests.FILE:
            first, last, *_ = [*code.co_positions()][trace.tb_lasti // 2]
            statement = _parsed(lines[(first or 1) - 1 : last or first])
            found = (statement, trace.tb_frame) if statement else found
        trace = trace.tb_next
    return found


def _parsed(lines: Sequence[str]) -> ast.Assert | None:
    try:
        (statement,) = ast.parse(textwrap.dedent("\n".join(lines))).body
    except (SyntaxError, ValueError):
        return None
    return statement if isinstance(statement, ast.Assert) else None


def _expected(statement: ast.Assert, frame: FrameType, proxy: Asked) -> str | None:
    """The side of an `==` that the candidate has no part in; or a helper's argument of that name."""
    test = statement.test
    if (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], (ast.Eq, ast.Is))
        and len(test.ops) == 1
    ):
        for side, other in ((test.comparators[0], test.left), (test.left, test.comparators[0])):
            if _mentions(other, frame, proxy) and not _mentions(side, frame, proxy):
                return _evaluated(side, frame)
    for local in _EXPECTED_NAMES:
        if local in frame.f_locals:
            return shown(frame.f_locals[local])
    if _mentions(test, frame, proxy) and isinstance(test, ast.Call):
        return "a true value"
    return None


def _mentions(node: ast.AST, frame: FrameType, proxy: Asked) -> bool:
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return any(frame.f_locals.get(name, frame.f_globals.get(name)) is proxy for name in names)


def _evaluated(node: ast.expr, frame: FrameType) -> str | None:
    """Safe to do again: it is the suite's own expression, and it has just been evaluated."""
    code = compile(ast.Expression(node), suite_tests.FILE, "eval")
    try:
        return shown(eval(code, frame.f_globals, frame.f_locals))  # noqa: S307 - as said
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError):
        return None
