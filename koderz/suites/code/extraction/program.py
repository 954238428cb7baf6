"""The program that is judged: what the prompt gives, then what the reply says."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koderz.suites.code.extraction.names import DEFINITIONS, FUNCTIONS, IMPORTS, descendants, statements
from koderz.suites.code.extraction.parsing import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koderz.suites.code.extraction.names import Statement
    from koderz.suites.code.extraction.parsing import Parser

_GIVEN = (*DEFINITIONS, *IMPORTS, ast.Assign, ast.AnnAssign, ast.If, ast.Try)
_FUTURE_IMPORT = re.compile(r"from[ \t]+__future__[ \t]+import[ \t]+[\w \t,]+")


@dataclass(frozen=True, slots=True)
class Context:
    """What a prompt gives to every program that answers it."""

    text: str = ""  # its imports and helpers, without the function that is asked for
    names: frozenset[str] = frozenset()
    head: str = ""  # all of it, where it ends in the head of the function that is asked for, open for a body
    indent: str = "    "  # of that body


def read_context(prompt: str, entry_point: str, parser: Parser) -> Context:
    """Return the context that a prompt gives; an empty one where the prompt is prose, as MBPP's is."""
    text = prompt.strip("\n").rstrip()
    found = parser.parse(text)
    if not isinstance(found, Code):
        found = parser.parse(f"{text}\n    pass")  # a signature alone
    if not isinstance(found, Code):
        return Context()
    body = statements(found.tree)
    other = [each for each in body if not isinstance(each.node, _GIVEN) or _is_asked_for(each, entry_point)]
    names = _bound(body) - _bound(other)
    given = blanked(found.text, other).strip("\n") if names else ""
    if body and _is_asked_for(body[-1], entry_point):
        return Context(given, names, text, _indent_of(found.text, body[-1].node))
    return Context(given, names)


def joined(given: Sequence[str], code: str, delegate: str, parser: Parser) -> tuple[str, int]:
    """Return the program of what is given and the code behind it, and how many lines stand before the code's first one.

    What the code defines wins over what is given, because it comes later. Imports from `__future__` move to the top,
    where alone they are allowed; their lines stay behind as blank ones, so that line numbers hold.
    """
    parts = [part.strip("\n") for part in given if part.strip()]
    futures: list[str] = []
    if parts:
        moved = [_without_futures(part, parser) for part in (*parts, code)]
        *parts, code = [text for text, _ in moved]
        futures = list(dict.fromkeys(line for _, lines in moved for line in lines))
    before = "".join(f"{line}\n" for line in futures) + "".join(f"{part}\n\n\n" for part in parts)
    after = f"\n\n\n{delegate}" if delegate else "\n"
    return before + code + after, before.count("\n")


def blanked(text: str, gone: Iterable[Statement]) -> str:
    """The text with the lines of some statements left empty, and its end without what continues into nothing."""
    lines = text.split("\n")
    for each in gone:
        first = each.first_line - 1
        while first > 0 and lines[first - 1].strip() == "\\":  # a line that only continues is part of the next
            first -= 1
        lines[first : each.last_line] = [""] * (each.last_line - first)
    return "\n".join(lines).rstrip(" \t\n\\")


def as_body(code: Code, indent: str) -> str:
    """The code indented as a function's body; lines within a string of several lines stay as they are."""
    inside: set[int] = set()
    for node in descendants(code.tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno:
            inside.update(range(node.lineno, node.end_lineno or 0))
    lines = code.text.split("\n")
    return "\n".join(
        line if number in inside or not line.strip() else indent + line for number, line in enumerate(lines)
    )


def _is_asked_for(statement: Statement, entry_point: str) -> bool:
    return isinstance(statement.node, FUNCTIONS) and entry_point in statement.binds


def _bound(body: Iterable[Statement]) -> frozenset[str]:
    return frozenset(name for each in body for name in each.binds)


def _indent_of(text: str, function: ast.stmt) -> str:
    assert isinstance(function, FUNCTIONS)
    line = text.split("\n")[function.body[0].lineno - 1]
    margin = line[: len(line) - len(line.lstrip(" \t"))]
    return margin or "    "


def _without_futures(text: str, parser: Parser) -> tuple[str, list[str]]:
    """The text with blank lines in place of its imports from `__future__`, and those imports."""
    found = parser.parse(text) if "__future__" in text else 0
    if not isinstance(found, Code):
        return text, []
    lines = text.split("\n")
    futures: list[str] = []
    for node in found.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            futures += [f"from __future__ import {alias.name}" for alias in node.names]
            _blank(lines, node)
    return "\n".join(lines), futures


def _blank(lines: list[str], node: ast.stmt) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno)
    if first + 1 == last and ";" in lines[first]:
        lines[first] = _FUTURE_IMPORT.sub("pass", lines[first])
    else:
        lines[first:last] = [""] * (last - first)
