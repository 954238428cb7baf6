"""Literal values in a test script, and other values of the same kind to replace them."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_ARITHMETIC = ast.Add | ast.Sub
_CONSTRUCTORS = {
    *(
        "approx",
        "Decimal",
        "Fraction",
        "set",
        "frozenset",
        "list",
        "tuple",
        "dict",
        "bytes",
        "bytearray",
        "array",
    ),
    *(
        "Path",
        "PurePath",
        "PosixPath",
        "PurePosixPath",
        "date",
        "datetime",
        "time",
        "timedelta",
        "OrderedDict",
    ),
}


class Edit(NamedTuple):
    """A change to a script."""

    start: int  # byte
    end: int
    text: bytes


def start(node: ast.expr | ast.stmt, lines: Sequence[int]) -> int:
    """The byte at which a node begins; `lines` are the offsets of lines."""
    return lines[node.lineno - 1] + node.col_offset


def end(node: ast.expr | ast.stmt, lines: Sequence[int]) -> int:
    """The byte after a node's end."""
    return lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


class Literals:
    """The literals with which a test function compares."""

    def __init__(
        self,
        function: ast.FunctionDef | ast.AsyncFunctionDef,
        text: bytes,
        lines: Sequence[int],
        draw: random.Random,
    ) -> None:
        self._function, self._text, self._lines, self._draw = function, text, lines, draw

    def altered(self, node: ast.expr, *, far: bool = False) -> list[Edit]:
        """The edits that give an expression another value of its kind, far from it or not; empty if unsure.

        A name stands for the literal that is assigned to it once, or that each row of `parametrize` has for it, where
        nothing else in the function uses it.
        """
        if isinstance(node, ast.Name):
            found = [self._of_literal(each, far=far) for each in self._values(node.id)]
            return [edit for edits in found for edit in edits] if all(found) else []
        return self._of_literal(node, far=far)

    def _of_literal(self, node: ast.expr, *, far: bool) -> list[Edit]:
        if not _is_literal(node):
            return []
        far = far or any(
            isinstance(each, ast.Call) and callee(each) == "approx" for each in ast.walk(node)
        )
        leaves = [*_leaves(node)]
        if not leaves:
            return [self._edit(node, _FILLED[type(node)])] if type(node) in _FILLED else []
        leaf = self._draw.choice(leaves)
        return [self._edit(leaf, lambda draw: repr(_other(leaf.value, draw, far=far)))]

    def _edit(self, node: ast.expr, text: Callable[[random.Random], str]) -> Edit:
        return Edit(start(node, self._lines), end(node, self._lines), text(self._draw).encode())

    def _values(self, name: str) -> list[ast.expr]:
        """The literals that a name stands for."""
        uses = [
            node
            for node in ast.walk(self._function)
            if isinstance(node, ast.Name) and node.id == name
        ]
        if sum(isinstance(use.ctx, ast.Load) for use in uses) != 1:
            return []
        if len(uses) == 1:
            return [*self._parameters(name)]
        assigned = [
            node.value
            for node in self._function.body
            if isinstance(node, ast.Assign)
            and [*map(ast.dump, node.targets)] == [ast.dump(ast.Name(name, ast.Store()))]
        ]
        return assigned if len(assigned) == len(uses) - 1 == 1 else []

    def _parameters(self, name: str) -> Iterator[ast.expr]:
        """The values of a name in each row of `parametrize`; empty if they aren't literal."""
        for call in self._function.decorator_list:
            if not (
                isinstance(call, ast.Call) and callee(call) == "parametrize" and len(call.args) > 1
            ):
                continue
            names, rows = _names(call.args[0]), call.args[1]
            if name in names and isinstance(rows, ast.List | ast.Tuple):
                for row in rows.elts:
                    values = (
                        row.args if isinstance(row, ast.Call) and callee(row) == "param" else [row]
                    )
                    if (
                        len(names) > 1
                        and len(values) == 1
                        and isinstance(values[0], ast.List | ast.Tuple)
                    ):
                        values = values[0].elts
                    yield values[names.index(name)] if len(values) == len(names) else ast.Name(name)


def _names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [each.strip() for each in str(node.value).split(",") if each.strip()]
    return [str(each.value) for each in getattr(node, "elts", []) if isinstance(each, ast.Constant)]


def callee(call: ast.Call) -> str:
    """The last part of the name of what is called; empty if that has no name."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float | complex | str | bytes | None)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return all(map(_is_literal, node.elts))
    if isinstance(node, ast.Dict):
        return all(key is not None and _is_literal(key) for key in node.keys) and all(
            map(_is_literal, node.values)
        )
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_literal(node.operand)
    if isinstance(node, ast.BinOp):
        return (
            isinstance(node.op, _ARITHMETIC) and _is_literal(node.left) and _is_literal(node.right)
        )
    if isinstance(node, ast.Call) and callee(node) in _CONSTRUCTORS:
        is_near = callee(node) == "approx" and all(
            _is_literal(word.value) for word in node.keywords
        )
        return bool(node.args) and _is_literal(node.args[0]) and (not node.keywords or is_near)
    return False


def _leaves(node: ast.expr) -> Iterator[ast.Constant]:
    """The constants that determine a literal's value."""
    if isinstance(node, ast.Constant):
        yield node
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for each in node.elts:
            yield from _leaves(each)
    elif isinstance(node, ast.Dict):
        for each in node.values:
            yield from _leaves(each)
    elif isinstance(node, ast.UnaryOp):
        yield from _leaves(node.operand)
    elif isinstance(node, ast.BinOp):
        yield from _leaves(node.left)
    elif isinstance(node, ast.Call):
        yield from _leaves(node.args[0])


def _number(draw: random.Random) -> str:
    return str(draw.randrange(1000, 100_000))


_FILLED: dict[type[ast.expr], Callable[[random.Random], str]] = {
    ast.List: lambda draw: f"[{_number(draw)}]",
    ast.Tuple: lambda draw: f"({_number(draw)},)",
    ast.Dict: lambda draw: f"{{{_number(draw)}: {_number(draw)}}}",
}


def _other(value: object, draw: random.Random, *, far: bool) -> object:
    """Another value of the same kind. For a text searched for in another, `far` makes one of rare letters."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw.randrange(1, 10) * (
            (abs(value) + 100) * draw.randrange(2, 9) if far else 1
        )
    if isinstance(value, float | complex):
        size = abs(value)
        return round(
            17 + 3 * draw.random() + (size * draw.randrange(3, 90) if size < 1e300 else 0), 3
        )
    if isinstance(value, str):
        return _other_text(value, draw, far=far)
    if isinstance(value, bytes):
        return _other_text(value.decode("latin-1"), draw, far=far).encode("latin-1")
    return draw.randrange(1000, 100_000)


def _other_text(text: str, draw: random.Random, *, far: bool) -> str:
    places = [place for place, letter in enumerate(text) if letter.isascii() and letter.isalnum()]
    if far or not places:
        return text + "".join(draw.choices("jkqvwxz", k=5))
    place = draw.choice(places)
    letters = "0123456789" if text[place].isdigit() else "abcdefghijklmnopqrstuvwxyz"
    letter = draw.choice([each for each in letters if each != text[place].lower()])
    return text[:place] + letter + text[place + 1 :]
