"""Test scripts that say the opposite: where the code under test is right, their tests fail.

What makes tests pass whatever they say makes these pass too. So a script that passes has to fail once it is turned
round, in a process that can't know which of the two it runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_OPERATORS: dict[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Eq: (rb"==", b"!="),
    ast.NotEq: (rb"!=", b"=="),
    ast.Lt: (rb"<", b">="),
    ast.GtE: (rb">=", b"<"),
    ast.Gt: (rb">", b"<="),
    ast.LtE: (rb"<=", b">"),
    ast.In: (rb"\bin\b", b"not in"),
    ast.NotIn: (rb"\bnot\s+in\b", b"in"),
    ast.Is: (rb"\bis\b", b"is not"),
    ast.IsNot: (rb"\bis\s+not\b", b"is"),
}
_METHODS = ("Equal", "NotEqual"), ("True", "False"), ("In", "NotIn"), ("Is", "IsNot"), ("IsNone", "IsNotNone")
_OPPOSITES = {f"assert{one}": f"assert{other}" for pair in _METHODS for one, other in (pair, pair[::-1])}


@dataclass(frozen=True, slots=True)
class Opposite:
    """A script turned round."""

    source: str
    tests: frozenset[str]  # those that have to fail now, as `name` or `Class::name`; the rest is as it was


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int  # byte
    end: int
    text: bytes


def opposite(source: str) -> Opposite:
    """The script with the first assertion of each test turned round, where it is one that every run comes to."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return Opposite(source, frozenset())
    text = source.encode()
    lines = [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", text))]
    edits = {name: edit for name, body in _tests(tree) if (edit := _turned(body, text, lines))}
    for edit in sorted(edits.values(), key=lambda edit: -edit.start):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return Opposite(text.decode(), frozenset(edits))


def _tests(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}::{name}", body) for name, body in _functions(node.body))
    yield from _functions(tree.body)


def _functions(body: Iterable[ast.stmt]) -> Iterator[tuple[str, list[ast.stmt]]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node.name, node.body


def _turned(body: Iterable[ast.stmt], text: bytes, lines: list[int]) -> _Edit | None:
    for statement in body:
        if isinstance(statement, ast.Assert):
            return _negated(statement.test, text, lines)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called = statement.value.func
            if isinstance(called, ast.Attribute) and called.attr in _OPPOSITES:
                end = _end(called, lines)
                return _Edit(end - len(called.attr), end, _OPPOSITES[called.attr].encode())
        if any(isinstance(node, ast.Return | ast.Yield | ast.Raise) for node in ast.walk(statement)):
            return None
    return None


def _negated(test: ast.expr, text: bytes, lines: list[int]) -> _Edit | None:
    """None for what isn't negated by one small change."""
    start = _start(test, lines)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return _negated(test.values[0], text, lines)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _Edit(start, _start(test.operand, lines), b"(" * text[start : _start(test.operand, lines)].count(b"("))
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        pattern, other = _OPERATORS[type(test.ops[0])]
        begin = _end(test.left, lines)
        found = re.compile(pattern).search(text, begin, _start(test.comparators[0], lines))
        return _Edit(found.start(), found.end(), other) if found else None
    if isinstance(test, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
        return _Edit(start, start, b"not ")
    return None


def _start(node: ast.expr, lines: list[int]) -> int:
    return lines[node.lineno - 1] + node.col_offset


def _end(node: ast.expr, lines: list[int]) -> int:
    return lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
