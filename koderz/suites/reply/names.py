"""What the statements of a module bind, read and change: enough to tell what a function needs.

Names are followed without regard to control flow, and within a function a name is local if it is bound anywhere in it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
EVERYTHING = "*"  # what `from module import *` binds


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a module's top level."""

    node: ast.stmt
    binds: frozenset[str]  # at the top level
    runs_with: frozenset[str]  # names read when the statement itself runs
    reads: frozenset[str]  # those, and what the functions that it defines read from the module
    stores: frozenset[str]  # names whose attributes or items it sets
    methods: frozenset[str]  # names of which it calls a method
    calls: frozenset[str]

    @property
    def first_line(self) -> int:
        """From 1, decorators included."""
        decorators = self.node.decorator_list if isinstance(self.node, DEFINITIONS) else []
        return min(self.node.lineno, *(each.lineno for each in decorators), self.node.lineno)

    @property
    def last_line(self) -> int:
        return self.node.end_lineno or self.node.lineno


def statements(module: ast.Module) -> list[Statement]:
    return [_statement(node) for node in module.body]


def line_groups(body: Iterable[Statement]) -> list[list[Statement]]:
    """Return the statements, those together that share a line (`import sys; print(1)`)."""
    groups: list[list[Statement]] = []
    for each in body:
        if groups and each.first_line <= groups[-1][-1].last_line:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def needs(body: Iterable[Statement], seeds: Iterable[str]) -> set[str]:
    """Return the names that the seeds need in the end, the seeds among them, whether `body` binds them or not."""
    binders: dict[str, list[Statement]] = defaultdict(list)
    for statement in body:
        for name in statement.binds:
            binders[name].append(statement)
    needed = set(seeds)
    pending = list(needed)
    while pending:
        for statement in binders.pop(pending.pop(), ()):
            fresh = statement.reads - needed
            needed |= fresh
            pending.extend(fresh)
    return needed


def setters(body: Sequence[Statement], needed: set[str], objects: set[str], barred: Iterable[str]) -> set[str]:
    """Return the functions of `body`, `barred` ones aside, that set up a needed name when called, also through others.

    To call a method sets something up only where it is one of `objects`.
    """
    functions = {name: each for each in body if isinstance(each.node, FUNCTIONS) for name in each.binds}
    effects = {name: _effects(each.node) for name, each in functions.items() if name not in barred}
    callers: dict[str, list[str]] = defaultdict(list)
    for name, each in effects.items():
        for callee in each.calls:
            callers[callee].append(name)
    found: set[str] = set()
    pending = [name for name, each in effects.items() if each.stores & needed or each.methods & objects]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(callers[name])
    return found


def executed(node: ast.AST, *, classes: bool = True) -> Iterator[ast.AST]:
    """Yield the nodes that run when the statement does: no function's body, nor without `classes` a class's."""
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        if isinstance(each, FUNCTIONS):
            pending += [*each.decorator_list, each.args, *([each.returns] if each.returns else ())]
        elif isinstance(each, ast.Lambda):
            pending.append(each.args)
        elif isinstance(each, ast.ClassDef) and not classes:
            pending += [*each.decorator_list, *each.bases]
        elif isinstance(each, ast.comprehension):
            pending += [each.iter, *each.ifs]
        else:
            pending += ast.iter_child_nodes(each)


def _statement(node: ast.stmt) -> Statement:
    running = list(executed(node))
    own = executed(node, classes=False)
    return Statement(
        node=node,
        binds=frozenset(name for each in own for name in _bound_by(each)),
        runs_with=frozenset(name for each in running for name in _read_by(each)),
        reads=frozenset(_reads(node)),
        stores=frozenset(name for each in running for name in _stored_into(each)),
        methods=frozenset(name for each in running for name in _called_on(each)),
        calls=frozenset(name for each in running for name in _called_by(each)),
    )


def _reads(node: ast.AST) -> set[str]:
    """The names that the node reads from the module's top level, now or when what it defines is called."""
    if isinstance(node, ast.ClassDef):
        parts = [node, *node.body, *node.decorator_list, *node.bases, *node.keywords]
        return set().union(*map(_reads, parts[1:]))
    everything = list(ast.walk(node))
    read = {name for each in everything for name in _read_by(each)}
    return read - _locals(node, everything)


def _locals(node: ast.AST, everything: list[ast.AST]) -> set[str]:
    if isinstance(node, FUNCTIONS):
        shared = {name for each in everything if isinstance(each, ast.Global) for name in each.names}
        bound = {name for each in everything if each is not node for name in _bound_by(each)}
        return (bound | {each.arg for each in everything if isinstance(each, ast.arg)}) - shared
    targets = [each.target for each in everything if isinstance(each, ast.comprehension)]
    looped = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return looped | {each.arg for each in everything if isinstance(each, ast.arg)}


@dataclass(frozen=True, slots=True)
class _Effects:
    """What a call of a function does to the module's names."""

    stores: set[str]
    methods: set[str]
    calls: set[str]


def _effects(node: ast.AST) -> _Effects:
    everything = list(ast.walk(node))
    own = _locals(node, everything)
    shared = {name for each in everything if isinstance(each, ast.Global) for name in each.names}
    return _Effects(
        stores={name for each in everything for name in _stored_into(each)} - own | shared,
        methods={name for each in everything for name in _called_on(each)} - own,
        calls={name for each in everything for name in _called_by(each)},
    )


def _bound_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.alias(name=name, asname=asname):
            yield asname or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name


def _read_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id


def _stored_into(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield from _root(node)


def _called_on(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _root(node.func)


def _called_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield node.func.id


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
