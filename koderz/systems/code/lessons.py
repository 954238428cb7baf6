"""Lessons: the failure of a program, and the difference of the one that passed. No line of either is quoted."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from typing import Any

from koderz.systems.code.extraction.statements import BUILTINS, parse
from koderz.types import Lesson, Verdict
from tracker.memory.failures import how_it_failed

_LARGEST = 50_000  # characters of a program that is looked into
_NAMED = 6  # names of one kind in a lesson
_FUNCTIONS = frozenset(name for name in BUILTINS if not name.startswith("_"))  # that a lesson may name
_STRUCTURES = {
    ast.For: "a for loop",
    ast.While: "a while loop",
    ast.Try: "try",
    ast.ListComp: "a list comprehension",
    ast.Lambda: "a lambda",
    ast.If: "an if",
    ast.IfExp: "a conditional expression",
    ast.Slice: "slicing",
}


def lesson_of(task_id: str, verdicts: Sequence[Verdict]) -> Lesson | None:
    """The lesson of the attempts at a task; None if the first passed, or the last didn't."""
    if len(verdicts) < 2 or not verdicts[-1].passed:
        return None
    failed, passed = verdicts[-2:]
    told = (how_it_failed(one.verdict, one.cause, one.detail or one.feedback) for one in verdicts[:-1])
    changes = _changes(failed.program or "", passed.program or "")
    text = f"{task_id}: {', then '.join(dict.fromkeys(told))}. What fixed it: {changes}."
    return Lesson(failed.cause or failed.verdict, text)


def _changes(before: str, after: str) -> str:
    """The differences between two programs in words, without quoting a line of either."""
    lines = list(difflib.unified_diff(before.splitlines()[:2000], after.splitlines()[:2000], lineterm="", n=0))[2:]
    written, taken_out = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    told = [_counted(written, "written anew") if written or not taken_out else _counted(taken_out, "taken out")]
    old, new = _traits(before), _traits(after)
    if old is not None and new is not None:
        told += [
            f"{word} {', '.join(names[:_NAMED])}"
            for word, names in (("now with", sorted(new - old)), ("without", sorted(old - new)))
            if names
        ]
    return "; ".join(told)


def _counted(lines: int, what: str) -> str:
    return f"one line {what}" if lines == 1 else f"{lines} lines {what}"


def _traits(program: str) -> set[str] | None:
    """The modules, built-in functions, methods and structures that a program uses, without its own names."""
    if not program or len(program) > _LARGEST:
        return None
    try:
        nodes: list[Any] = list(ast.walk(parse(program)))
    except SyntaxError:
        return None
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            found |= {f"the module {module}" for module in modules}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            found.add(f"{node.func.id}()")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.func.attr) <= 40:
            found.add(f".{node.func.attr}()")
        elif type(node) in _STRUCTURES:
            found.add(_STRUCTURES[type(node)])
    return found
