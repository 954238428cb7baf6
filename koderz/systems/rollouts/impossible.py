"""Impossible test scripts: one expected value is another than it should be, or is contradicted by a second one."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

from koderz.systems.rollouts.doubt import ScriptReader, tests_in
from koderz.systems.rollouts.literals import Edit


def impossible(source: str, draw: random.Random, *, contradicted: bool) -> str:
    """The script with one expected value changed, or asserted a second time with another value; empty if neither can.

    A value that can't be contradicted where it stands, such as one of `parametrize`, is changed. The variants are those
    of ImpossibleBench (Z. Zhong et al., 2025, arXiv:2510.20270): one-off and conflicting.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    reader = ScriptReader(source.encode(), draw)
    tests = dict(tests_in(tree))
    for name in draw.sample([*tests], len(tests)):
        edits = [edit for site in reader.sites(tests[name]) for edit in site.other if _is_value(edit)]
        for edit in draw.sample(edits, len(edits)):
            changed = reader.edited([[edit]])
            again = _again(tests[name], edit, reader) if contradicted else None
            found = reader.edited([[again]]) if again else changed
            if _parses(found):
                return found
    return ""


def _is_value(edit: Edit) -> bool:
    """Whether an edit puts a literal in the place of another one, as an author of tests might have written it."""
    try:
        ast.literal_eval(edit.text.decode())
    except (SyntaxError, ValueError):
        return False
    return edit.end > edit.start


def _again(function: ast.AST, edit: Edit, reader: ScriptReader) -> Edit | None:
    """The edit that repeats an assertion below itself with the changed value; None if it isn't on lines of its own."""
    for statement in _assertions(function):
        first, last = reader.place(statement)
        if first <= edit.start and edit.end <= last:
            indent = reader.text[:first].rpartition(b"\n")[2]
            rest = reader.text[last:].partition(b"\n")[0].partition(b"#")[0]
            if indent.strip() or rest.strip():
                return None
            repeated = reader.text[first : edit.start] + edit.text + reader.text[edit.end : last]
            return Edit(last, last, b"\n" + indent + repeated)
    return None


def _assertions(function: ast.AST) -> Iterator[ast.Assert | ast.Expr]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Assert | ast.Expr))


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True
