"""How code offers the function that a task asks for."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from koderz.suites.code.extraction.names import FUNCTIONS, IMPORTS, nested

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koderz.suites.code.extraction.names import Statement

Strength = Literal["defined", "weak"]
_VALUES = (ast.Lambda, ast.Name, ast.Attribute, ast.Call, ast.IfExp, ast.Subscript)  # what may be a function


@dataclass(frozen=True, slots=True)
class Offer:
    """A module's way to the entry point.

    `strength` is "weak" where the name is there but its code is not: a signature printed again, an import from a module
    that nobody has. `names` are what the program must keep; `delegate` is code to be put behind the module, "" mostly.
    """

    strength: Strength
    names: frozenset[str]
    first: int  # the index of the statement from which on the entry point is there
    delegate: str = ""


def offer_of(body: Sequence[Statement], entry_point: str) -> Offer | None:
    """Return how the module's top level offers the entry point; None where it doesn't.

    An entry point inside another function is not offered: no caller could reach it. One that is a method is, since
    wrapping the answer into a class is a habit of some sites' tasks and not a mistake about this one. A module that
    returns is none, but a function's body.
    """
    if any(isinstance(node, ast.Return) for each in body for node in nested(each.node)):
        return None
    if not entry_point:
        return _any_function(body)
    names = frozenset({entry_point})
    defined = [index for index, each in enumerate(body) if entry_point in each.binds]
    if any(_is_defined_by(body[index].node, entry_point) for index in defined):
        return Offer("defined", names, defined[0])
    if (method := _method(body, entry_point)) is not None:
        return method
    return Offer("weak", names, defined[0]) if _only_named(body, defined) else None


def is_stub(function: ast.AST) -> bool:
    """Whether a function has a signature, perhaps a docstring, and nothing that would compute its result."""
    return isinstance(function, FUNCTIONS) and all(map(_does_nothing, function.body))


def _any_function(body: Sequence[Statement]) -> Offer | None:
    """For tasks whose tests alone know the name: every function is one that they may call."""
    functions = [n for n, each in enumerate(body) if isinstance(each.node, FUNCTIONS) and not is_stub(each.node)]
    if not functions:
        return None
    return Offer("defined", frozenset().union(*(body[number].binds for number in functions)), functions[-1])


def _is_defined_by(statement: ast.stmt, name: str) -> bool:
    return any(_defines(each, name) for each in nested(statement))


def _defines(node: ast.AST, name: str) -> bool:
    match node:
        case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found):
            return found == name and not is_stub(node)
        case ast.ClassDef(name=found):
            return found == name
        case ast.Assign(targets=targets, value=value):
            return any(_is_name(target, name) for target in targets) and _may_be_function(value, name)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return _is_name(target, name) and _may_be_function(value, name)
    return False


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _may_be_function(value: ast.expr, name: str) -> bool:
    """False for `add = 3` and `add = add(1, 2)`, as examples of use have it."""
    return isinstance(value, _VALUES) and not (isinstance(value, ast.Call) and _is_name(value.func, name))


def _method(body: Sequence[Statement], entry_point: str) -> Offer | None:
    for index in reversed(range(len(body))):
        node = body[index].node
        for method in _methods(node, entry_point):
            assert isinstance(node, ast.ClassDef)
            owner = f"{node.name}()" if _takes_self(method) else node.name
            delegate = f"def {entry_point}(*args, **kwargs):\n    return {owner}.{entry_point}(*args, **kwargs)\n"
            return Offer("defined", frozenset({node.name}), index, delegate)
    return None


def _methods(node: ast.stmt, name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, FUNCTIONS) and each.name == name and not is_stub(each):
                yield each


def _takes_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    parameters = [*method.args.posonlyargs, *method.args.args]
    return bool(parameters) and parameters[0].arg == "self"


def _only_named(body: Sequence[Statement], defined: list[int]) -> bool:
    return any(isinstance(body[index].node, (*FUNCTIONS, *IMPORTS)) for index in defined)


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name(id=name)) | ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
            return name == "NotImplementedError"
    return False
