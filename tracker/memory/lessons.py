"""Lessons: what an attempt failed with, and what the one that passed did otherwise. No program text is in them."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracker.memory import sql
from tracker.memory.rows import as_memory
from tracker.memory.store import Store
from tracker.records import Attempt, now

_LARGEST = 50_000  # characters of a program that is looked into
_NAMED = 6  # names of one kind in a lesson
_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_"))
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
_TELLING = re.compile(
    r"^(?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|AttributeError|SyntaxError|IndentationError): .+",
    re.MULTILINE,
)
"""Messages that speak of the code alone: those of other errors may quote a hidden test."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one experiment taught."""

    cause: str  # what the attempt before the passing one failed with
    text: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a store held at one moment."""

    last_id: int  # of the memories
    time: str  # local, ISO 8601


def lesson_of(problem_id: str, attempts: Sequence[Attempt]) -> Lesson | None:
    """What the attempts of an experiment teach; None where the first passed, or none did."""
    if len(attempts) < 2 or not attempts[-1].passed:
        return None
    failed, passed = attempts[-2:]
    cause = failed.cause or failed.verdict
    failures = ", then ".join(dict.fromkeys(how_it_failed(attempt) for attempt in attempts[:-1]))
    changes = _changes(str(failed.program or ""), str(passed.program or ""))
    return Lesson(cause, f"{problem_id}: {failures}. What fixed it: {changes}.")


def how_it_failed(attempt: Attempt) -> str:
    """The verdict and its cause, with the error's message where that can't quote a test."""
    told = f"{attempt.verdict} ({attempt.cause})" if attempt.cause else attempt.verdict
    message = _TELLING.search(str(attempt.detail or attempt.feedback))
    return f"{told}: {message[0][:200]}" if message else told


def snapshot(store: Store) -> Snapshot:
    """The store as it is now."""
    return Snapshot(store.last_id(), now())


def recall_lessons(
    store: Store,
    problem_id: str,
    cause: str,
    *,
    same_task: bool,
    simulated: bool = False,
    until: Snapshot | None = None,
    limit: int = 3,
) -> list[str]:
    """The newest lessons of experiments that failed with `cause`, each once: on other tasks, or on the same one.

    `until` leaves out what was stored or changed after it. A simulated model learns only from its like.
    """
    until = until or Snapshot(2**62, "9999")
    which = (cause, until.last_id, until.time, problem_id, int(same_task), int(simulated), 20 * limit)
    texts: dict[str, None] = {}
    for row in store.rows(sql.LESSONS, which):
        texts[str(as_memory(row).metadata.get("lesson"))] = None
    return list(texts)[:limit]


def _changes(before: str, after: str) -> str:
    """In what a program differs from the one before it, in words: no line of either is quoted."""
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
    """What a program uses: modules, built-in functions, methods and structures, but none of its own names."""
    if not program or len(program) > _LARGEST:
        return None
    try:
        nodes: list[Any] = list(ast.walk(ast.parse(program)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            found |= {f"the module {module}" for module in modules}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
            found.add(f"{node.func.id}()")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.func.attr) <= 40:
            found.add(f".{node.func.attr}()")
        elif type(node) in _STRUCTURES:
            found.add(_STRUCTURES[type(node)])
    return found
