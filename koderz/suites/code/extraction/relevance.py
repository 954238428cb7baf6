"""What of a reply's module belongs to its answer, and what merely shows the answer off.

Models put examples behind their function: prints, asserts, a loop that asks for `input()`, `unittest.main()`, a demo
with a typing error in it. None of that was asked for, and none of it can make the function right or wrong, yet run as
part of the program it would end it. So statements that set up nothing which the function needs are left out; functions
and classes stay, since defining them runs nothing.
"""

from __future__ import annotations

import ast
import builtins
import sys
from typing import TYPE_CHECKING

from koderz.suites.code.extraction.names import (
    DEFINITIONS,
    EVERYTHING,
    IMPORTS,
    executed,
    line_groups,
    needs,
    setters,
    statements,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koderz.suites.code.extraction.entry import Offer
    from koderz.suites.code.extraction.names import Statement
    from koderz.suites.code.extraction.parsing import Code

_PROCESS_SETTINGS = {"setrecursionlimit", "set_int_max_str_digits", "seed"}  # what a function may rely on unnamed
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__builtins__"}


def demonstrations(body: Sequence[Statement], offer: Offer, given: frozenset[str]) -> list[Statement]:
    """Return the statements that the entry point doesn't need, whole lines of them: a line is kept or left as one.

    `given` are the names that the prompt defines; what the reply makes of those counts as needed.
    """
    needed = needs(body, offer.names | given | {EVERYTHING})
    objects = needed & _assigned(body)
    setting = setters(body, needed, objects, barred=offer.names)
    left: set[str] = set()
    found: list[Statement] = []
    for index, each in enumerate(body):
        idle = _is_idle(each, after=index > offer.first) or (left and each.runs.reads & left)
        if idle and not _sets_up(each, needed, objects, setting):
            left |= each.binds
            found.append(each)
        else:
            left -= each.binds
    return _whole_lines(found, body)


def borrowed(body: Sequence[Statement], offer: Offer, given: frozenset[str], others: Iterable[Code]) -> str:
    """Return top-level statements of other blocks that bind what the entry point needs and nobody else binds.

    A helper in one block and the function in the next belong together. `others` are in order of preference.
    """
    settled = given | _BUILTINS | _bound(body)
    wanted = set() if EVERYTHING in settled else needs(body, offer.names) - settled
    pieces: list[str] = []
    for other in others if wanted else ():
        available = statements(other.tree)
        needed = needs(available, wanted) - settled
        groups = [group for group in line_groups(available) if any(_lends(each, needed) for each in group)]
        lines = other.text.split("\n")
        pieces += ["\n".join(_lines_of(group, lines)) for group in groups[::-1]]
        wanted = (wanted | needed) - _bound(each for group in groups for each in group)
    return "\n".join(reversed(pieces))


def _lends(statement: Statement, needed: set[str]) -> bool:
    lendable = (*DEFINITIONS, *IMPORTS, ast.Assign, ast.AnnAssign)
    return isinstance(statement.node, lendable) and bool(statement.binds & needed)


def _lines_of(group: Sequence[Statement], lines: list[str]) -> list[str]:
    return lines[group[0].first_line - 1 : group[-1].last_line]


def _bound(body: Iterable[Statement]) -> frozenset[str]:
    return frozenset(name for each in body for name in each.binds)


def _sets_up(statement: Statement, needed: set[str], objects: set[str], setting: set[str]) -> bool:
    if _shows_off(statement.node):
        return bool(statement.binds & needed)
    changed = (statement.binds | statement.runs.stores) & needed or statement.runs.methods & objects
    return bool(changed or statement.runs.calls & setting)


def _assigned(body: Sequence[Statement]) -> set[str]:
    """Names of objects with a state: `table.append(1)` may set up something, `math.sqrt(2)` doesn't."""
    stateless = (*DEFINITIONS, *IMPORTS)
    return {name for each in body if not isinstance(each.node, stateless) for name in each.binds}


def _is_idle(statement: Statement, *, after: bool) -> bool:
    """Whether a statement that sets up nothing needed can go. `after`: the entry point is there already.

    Before it, a call is kept unless it plainly shows something off: what it does to the process may matter. An import
    that nothing uses goes where it may fail, so that verdicts don't depend on what is installed.
    """
    node = statement.node
    if isinstance(node, DEFINITIONS):
        return False
    if isinstance(node, IMPORTS):
        return not _is_of_standard_library(node)
    if isinstance(node, ast.Expr) and _is_process_setting(node.value):
        return False
    return after or _shows_off(node) or any(map(_reads_stdin, executed(node)))


def _is_of_standard_library(node: ast.Import | ast.ImportFrom) -> bool:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


def _is_process_setting(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _PROCESS_SETTINGS
    )


def _shows_off(node: ast.stmt) -> bool:
    match node:
        case ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name == "print"
        case ast.Expr(value=value):
            return not isinstance(value, ast.Call)
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


def _reads_stdin(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="input") | ast.Attribute(attr="stdin"):
            return True
    return False


def _whole_lines(found: list[Statement], body: Sequence[Statement]) -> list[Statement]:
    """Those that share no line with a statement that stays (`import sys; print(1)`)."""
    gone = {id(each) for each in found}
    return [each for group in line_groups(body) if all(id(each) in gone for each in group) for each in group]
