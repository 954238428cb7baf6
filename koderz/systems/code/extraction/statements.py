"""The names that statements of a module bind, read and change, enough to tell what a function needs.

Names are followed without regard to control flow, and within a function a name is local if it is bound anywhere in it.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
EVERYTHING = "*"  # what `from module import *` binds

BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__builtins__"}
_LEAVES = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


@dataclass(frozen=True, slots=True)
class Uses:
    """The uses of names by some nodes."""

    reads: set[str] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)  # whose attributes or items are set
    methods: set[str] = field(default_factory=set)  # of which a method is called
    calls: set[str] = field(default_factory=set)


class Statement:
    """A statement at a module's top level. Its uses of names are computed on demand."""

    def __init__(self, node: ast.stmt) -> None:
        self.node = node

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """The nodes that run at the top level; of a function or class only the part before its body."""
        return [*executed(self.node, classes=False)]

    @cached_property
    def binds(self) -> set[str]:
        """Names that it binds at the top level."""
        return {name for each in self.nodes for name in _bound_by(each)}

    @cached_property
    def runs(self) -> Uses:
        """The uses of names when the statement itself runs."""
        return uses(executed(self.node))

    @cached_property
    def reads(self) -> set[str]:
        """Names that it reads from the module, now or when what it defines is called."""
        return _reads(self.node)

    @property
    def first_line(self) -> int:
        """From 1, decorators included."""
        decorators = self.node.decorator_list if isinstance(self.node, DEFINITIONS) else []
        return min([self.node.lineno, *(each.lineno for each in decorators)])

    @property
    def last_line(self) -> int:
        return self.node.end_lineno or self.node.lineno


def parse(source: str) -> ast.Module:
    """Like `ast.parse`, with SyntaxError for whatever can't be parsed, and silent about doubtful escapes."""
    try:
        with warnings.catch_warnings():  # which are errors under -W error
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (ValueError, MemoryError, RecursionError) as error:
        raise SyntaxError(str(error) or type(error).__name__) from None


def statements(module: ast.Module) -> list[Statement]:
    return [Statement(node) for node in module.body]


def bound(body: Iterable[Statement]) -> frozenset[str]:
    """The names that statements bind at the top level."""
    return frozenset(name for each in body for name in each.binds)


def free_names(body: Sequence[Statement]) -> set[str]:
    """The names that statements read and none of them binds anywhere, without the built-in ones."""
    somewhere = {
        name for each in body for node in descendants(each.node) for name in _bound_by(node)
    }
    return {name for each in body for name in each.reads} - somewhere - BUILTINS


def line_groups(body: Iterable[Statement]) -> list[list[Statement]]:
    """Return the statements in groups that share a line (`import sys; print(1)`)."""
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
    return _reached(
        seeds, lambda name: (read for each in binders.pop(name, ()) for read in each.reads)
    )


def setters(
    body: Sequence[Statement], needed: set[str], objects: set[str], barred: Iterable[str]
) -> set[str]:
    """Return the functions in `body`, except `barred`, that set up a needed name when called, even indirectly.

    To call a method sets something up only where it is one of `objects`.
    """
    functions = {
        name: each for each in body if isinstance(each.node, FUNCTIONS) for name in each.binds
    }
    effects = {name: _effects(each.node) for name, each in functions.items() if name not in barred}
    callers: dict[str, list[str]] = defaultdict(list)
    for name, each in effects.items():
        for callee in each.calls:
            callers[callee].append(name)
    setting = (
        name for name, each in effects.items() if each.stores & needed or each.methods & objects
    )
    return _reached(setting, callers.__getitem__)


def _reached(seeds: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """The seeds, and everything reachable from them."""
    found = set(seeds)
    pending = list(found)
    while pending:
        fresh = set(following(pending.pop())) - found
        found |= fresh
        pending += fresh
    return found


def executed(node: ast.AST, *, classes: bool = True) -> Iterator[ast.AST]:
    """Yield the nodes that run with the statement: no function's body, nor without `classes` a class's."""
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
            pending += _children(each)


def descendants(node: ast.AST) -> list[ast.AST]:
    """Return the node and all nodes in it."""
    found = [node]
    for each in found:
        found += _children(each)
    return found


def _children(node: ast.AST) -> list[ast.AST]:
    """The child nodes except operators and the like, in half the time of `ast.iter_child_nodes`."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [
                each
                for each in value
                if isinstance(each, ast.AST) and not isinstance(each, _LEAVES)
            ]
        elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
            found.append(value)
    return found


def _reads(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ClassDef):
        parts = [*node.body, *node.decorator_list, *node.bases, *node.keywords]
        return set().union(*map(_reads, parts))
    everything = descendants(node)
    return uses(everything).reads - _locals(node, everything)


def _locals(node: ast.AST, everything: list[ast.AST]) -> set[str]:
    """The names local to a node: all that a function binds; elsewhere those of a lambda or a comprehension."""
    found = {each.arg for each in everything if isinstance(each, ast.arg)}
    if isinstance(node, FUNCTIONS):
        bound = {name for each in everything if each is not node for name in _bound_by(each)}
        return (found | bound) - _shared(everything)
    targets = [each.target for each in everything if isinstance(each, ast.comprehension)]
    return found | {
        each.id for target in targets for each in descendants(target) if isinstance(each, ast.Name)
    }


def _shared(everything: list[ast.AST]) -> set[str]:
    return {name for each in everything if isinstance(each, ast.Global) for name in each.names}


def _effects(function: ast.AST) -> Uses:
    """The uses of the module's names by a call of the function; names declared global count as stored into."""
    everything = descendants(function)
    own = _locals(function, everything)
    does = uses(everything)
    return Uses(
        does.reads - own, does.stores - own | _shared(everything), does.methods - own, does.calls
    )


def uses(nodes: Iterable[ast.AST]) -> Uses:
    """The uses of names by the nodes."""
    found = Uses()
    for node in nodes:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                found.reads.add(node.id)
        elif isinstance(node, ast.Attribute | ast.Subscript):
            if not isinstance(node.ctx, ast.Load):
                found.stores.update(_root(node))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                found.calls.add(node.func.id)
            elif isinstance(node.func, ast.Attribute):
                found.methods.update(_root(node.func))
    return found


def _bound_by(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.alias(name=name, asname=asname):
            return (asname or name.partition(".")[0],)
        case (
            ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
        ):
            return (name,)
        case ast.MatchMapping(rest=str(name)):
            return (name,)
    return ()


def _root(node: ast.expr) -> tuple[str, ...]:
    """The name that a chain of attributes and items starts from, if it is one."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return (node.id,) if isinstance(node, ast.Name) else ()


Strength = Literal["defined", "weak"]
# what may be a function
_VALUES = (ast.Lambda, ast.Name, ast.Attribute, ast.Call, ast.IfExp, ast.Subscript)


@dataclass(frozen=True, slots=True)
class Offer:
    """The way in which a module offers the entry point.

    `strength` is "weak" where the name is there but its code is not: a signature printed again, an import from a module
    that nobody has. `names` are what the program must keep; `delegate` is code to be put behind the module, "" mostly.
    """

    strength: Strength
    names: frozenset[str]
    first: int  # the index of the statement from which on the entry point is there
    delegate: str = ""


def offer_of(body: Sequence[Statement], entry_point: str) -> Offer | None:
    """Return the way in which the module's top level offers the entry point; None if it doesn't.

    An entry point inside another function is not offered: no caller could reach it. One that is a method is, since
    wrapping the answer into a class is a habit of some sites' tasks and not a mistake about this one. A module that
    returns is none, but a function's body.
    """
    if any(isinstance(node, ast.Return) for each in body for node in each.nodes):
        return None
    if not entry_point:
        # Tests alone know the name, so that every function may be the entry point.
        functions = [
            n
            for n, each in enumerate(body)
            if isinstance(each.node, FUNCTIONS) and not is_stub(each.node)
        ]
        if not functions:
            return None
        return Offer(
            "defined",
            frozenset().union(*(body[number].binds for number in functions)),
            functions[-1],
        )
    names = frozenset({entry_point})
    defined = [index for index, each in enumerate(body) if entry_point in each.binds]
    if any(_defines(node, entry_point) for index in defined for node in body[index].nodes):
        return Offer("defined", names, defined[0])
    if (method := _method(body, entry_point)) is not None:
        return method
    is_named = any(isinstance(body[index].node, (*FUNCTIONS, *IMPORTS)) for index in defined)
    return Offer("weak", names, defined[0]) if is_named else None


def is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has a signature, perhaps a docstring, and no code that computes a result."""
    return all(map(_does_nothing, function.body))


def _defines(node: ast.AST, name: str) -> bool:
    match node:
        case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found):
            return found == name and not is_stub(node)
        case ast.ClassDef(name=found):
            return found == name
        case ast.Assign(targets=targets, value=value):
            return any(_is_name(target, name) for target in targets) and _may_be_function(
                value, name
            )
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return _is_name(target, name) and _may_be_function(value, name)
    return False


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _may_be_function(value: ast.expr, name: str) -> bool:
    """Whether a value may be a function; false in `add = 3` and `add = add(1, 2)`, as in examples of use."""
    return isinstance(value, _VALUES) and not (
        isinstance(value, ast.Call) and _is_name(value.func, name)
    )


def _method(body: Sequence[Statement], entry_point: str) -> Offer | None:
    for index in reversed(range(len(body))):
        node = body[index].node
        if not isinstance(node, ast.ClassDef):
            continue
        for method in node.body:
            if isinstance(method, FUNCTIONS) and _defines(method, entry_point):
                parameters = [*method.args.posonlyargs, *method.args.args]
                takes_self = bool(parameters) and parameters[0].arg == "self"
                owner = f"{node.name}()" if takes_self else node.name
                delegate = f"def {entry_point}(*args, **kwargs):\n    return {owner}.{entry_point}(*args, **kwargs)\n"
                return Offer("defined", frozenset({node.name}), index, delegate)
    return None


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name(id=name)) | ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
    return False
