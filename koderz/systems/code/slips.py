"""The slips that models make: small changes of a right answer's syntax tree that make it wrong."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, TypeVar

from koderz.systems.code.extraction.statements import parse
from koderz.systems.code.tasks import CodeTask, reference_program

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slip:
    """One kind of mistake at a node; `make` changes the node in place, or returns False if it doesn't fit."""

    kind: type[ast.AST]
    make: Callable[[Any], bool]
    overlooked: bool = False  # often passes the tests when it comes alone


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a docstring, or a lone constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _swapped(*pairs: tuple[T, T]) -> dict[T, T]:
    return {one: other for pair in pairs for one, other in (pair, pair[::-1])}


_OFF_BY_EQUAL = _swapped((ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
_WRONG_WAY_ROUND = _swapped(
    (ast.Lt, ast.Gt), (ast.LtE, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn)
)
_AND_FOR_OR = _swapped((ast.And, ast.Or))
_WRONG_OPERATOR = {
    **_swapped((ast.Add, ast.Sub), (ast.FloorDiv, ast.Mod)),
    ast.Mult: ast.Add,
    ast.Div: ast.FloorDiv,
}
_WRONG_BUILTIN: Mapping[str, str] = {
    **_swapped(("min", "max"), ("any", "all")),
    "sorted": "list",
    "set": "list",
}


def _operator(table: Mapping[Any, Any]) -> Callable[[Any], bool]:
    """A change to another operator; for a comparison, of its first one."""

    def make(node: Any) -> bool:
        other = table.get(type(node.ops[0] if isinstance(node, ast.Compare) else node.op))
        if other is None:
            return False
        if isinstance(node, ast.Compare):
            node.ops[0] = other()
        else:
            node.op = other()
        return True

    return make


def _wrong_builtin(node: ast.Call) -> bool:
    other = _WRONG_BUILTIN.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if other is not None:
        node.func = ast.Name(other, ast.Load())
    return other is not None


def _ends_early(node: ast.Call) -> bool:
    if not _is_range(node):
        return False
    end = min(1, len(node.args) - 1)
    node.args[end] = _plus(node.args[end], -1)
    return True


def _begins_late(node: ast.Call) -> bool:
    if not _is_range(node):
        return False
    begin = _plus(node.args[0], 1) if len(node.args) > 1 else ast.Constant(1)
    node.args[: max(0, min(1, len(node.args) - 1))] = [begin]
    return True


def _is_range(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "range" and bool(node.args)


def _plus(value: ast.expr, step: int) -> ast.expr:
    return ast.BinOp(value, ast.Add() if step > 0 else ast.Sub(), ast.Constant(abs(step)))


def _off_by_one(node: ast.Constant) -> bool:
    if type(node.value) is not int:
        return False
    node.value += 1
    return True


def _wrong_element(node: ast.Subscript) -> bool:
    if not isinstance(node.slice, ast.Slice):
        node.slice = _plus(node.slice, 1)
    elif node.slice.lower is not None:
        node.slice.lower = None
    elif node.slice.upper is not None:
        node.slice.upper = None
    else:
        return False
    return True


def _forgotten_argument(node: ast.Call) -> bool:
    if not node.keywords:
        return False
    node.keywords.pop()
    return True


def _forgotten_else(node: ast.If) -> bool:
    forgotten = bool(node.orelse)
    node.orelse = []
    return forgotten


def _stops_after_one(node: ast.For) -> bool:
    node.body.append(ast.Break())
    return True


def _misspelt_name(node: ast.Name) -> bool:
    if not isinstance(node.ctx, ast.Load) or len(node.id) < 3:
        return False
    node.id = node.id.removesuffix("s") if node.id.endswith("s") else f"{node.id}s"
    return True


def _forgotten_case(node: ast.FunctionDef) -> bool:
    return _without(
        node, lambda it: isinstance(it, ast.If) and isinstance(it.body[-1], ast.Return | ast.Raise)
    )


def _forgotten_import(node: ast.FunctionDef) -> bool:
    return _without(node, lambda it: isinstance(it, ast.Import | ast.ImportFrom))


def _without(node: ast.FunctionDef, unwanted: Callable[[ast.stmt], bool]) -> bool:
    found = next((it for it in node.body if unwanted(it)), None)
    if found is None or len(node.body) < 2:
        return False
    node.body.remove(found)
    return True


def _returns_from_the_loop(node: ast.FunctionDef) -> bool:
    if len(node.body) < 2:
        return False
    loop, last = node.body[-2:]
    if not (isinstance(loop, ast.For) and isinstance(last, ast.Return)):
        return False
    loop.body.append(node.body.pop())
    return True


def _forgotten_return(node: ast.FunctionDef) -> bool:
    last = node.body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        return False
    node.body[-1] = ast.Assign([ast.Name("result", ast.Store())], last.value, lineno=last.lineno)
    return True


def _one_too_many(node: ast.FunctionDef) -> bool:
    last = node.body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        return False
    last.value = _plus(last.value, 1)
    return True


def _stub(node: ast.FunctionDef) -> bool:
    node.body = [it for it in node.body[:1] if is_text(it)] + ast.parse("pass  # to do").body
    return True


SLIPS: Sequence[Slip] = (
    Slip(ast.Compare, _operator(_WRONG_WAY_ROUND)),
    Slip(ast.Compare, _operator(_OFF_BY_EQUAL), overlooked=True),
    Slip(ast.BinOp, _operator(_WRONG_OPERATOR), overlooked=True),
    Slip(ast.BoolOp, _operator(_AND_FOR_OR)),
    Slip(ast.Call, _wrong_builtin, overlooked=True),
    Slip(ast.Call, _ends_early, overlooked=True),
    Slip(ast.Call, _begins_late, overlooked=True),
    Slip(ast.Call, _forgotten_argument),
    Slip(ast.Constant, _off_by_one, overlooked=True),
    Slip(ast.Subscript, _wrong_element, overlooked=True),
    Slip(ast.If, _forgotten_else),
    Slip(ast.For, _stops_after_one),
    Slip(ast.Name, _misspelt_name, overlooked=True),
    Slip(ast.FunctionDef, _forgotten_case, overlooked=True),
    Slip(ast.FunctionDef, _forgotten_import),
    Slip(ast.FunctionDef, _returns_from_the_loop),
    Slip(ast.FunctionDef, _forgotten_return),
    Slip(ast.FunctionDef, _one_too_many),
    Slip(ast.FunctionDef, _stub),
)


WRONG = 4  # programs for one task


class Versions:
    """The programs for one task, each kind made when first asked for."""

    def __init__(self, task: CodeTask, *, seed: int) -> None:
        self._task, self._seed = task, seed

    @cached_property
    def right(self) -> tuple[str, ...]:
        """The reference whole, as a function alone, as a body alone: all pass. Empty without a usable reference."""
        if not self._source:
            return ()
        whole = self._source.strip("\n")
        if self._source == self._task.payload.reference:
            return whole, self._bare
        function = _functions(ast.parse(self._bare), self._task.payload.entry_point)[-1]
        return whole, self._bare, ast.unparse(function), self._task.payload.reference.strip("\n")

    @cached_property
    def wrong(self) -> tuple[str, ...]:
        """Programs that are most likely wrong: a stub, if no better one can be made."""
        stub = f"def {self._task.payload.entry_point}(*arguments):\n    raise NotImplementedError"
        made = wrong_versions(self._bare, self._task.payload.entry_point, seed=self._seed)
        return made or (stub,)

    @cached_property
    def endless(self) -> str:
        """A program that never returns: the loop in front of it forgets to advance."""
        tree = ast.parse(self._bare)
        loop = ast.parse("position = 0\nwhile position < 1:\n    continue").body
        for function in _functions(tree, self._task.payload.entry_point):
            function.body[:0] = loop
        return ast.unparse(tree)

    @cached_property
    def _source(self) -> str:
        """The reference as a program; empty if it doesn't define the function."""
        source = reference_program(self._task)
        with contextlib.suppress(SyntaxError):
            return source if _functions(parse(source), self._task.payload.entry_point) else ""
        return ""

    @cached_property
    def _bare(self) -> str:
        """The reference without its docstring."""
        tree = ast.parse(self._source)
        for function in _functions(tree, self._task.payload.entry_point):
            if is_text(function.body[0]) and len(function.body) > 1:
                del function.body[0]
        return ast.unparse(tree)


def wrong_versions(source: str, entry_point: str, *, seed: int) -> tuple[str, ...]:
    """Up to `WRONG` different programs like `source` whose function `entry_point` is most likely wrong.

    The same arguments give the same programs. A slip that tests often overlook (a bound that is off by
    one) comes with a second slip, so that a version is wrong in more than name.
    """
    nodes = enumerate(_nodes(ast.parse(source), entry_point))
    places = [(rank, slip) for rank, node in nodes for slip in SLIPS if isinstance(node, slip.kind)]
    Random(seed).shuffle(places)  # noqa: S311 - a choice to be made again, not a secret
    versions = dict.fromkeys([ast.unparse(ast.parse(source))])
    for first in range(len(places)):
        if len(versions) > WRONG:
            break
        versions[_with_slips(source, entry_point, places[first:] + places[:first])] = None
    return tuple(versions)[1:]


def _with_slips(source: str, entry_point: str, places: Sequence[tuple[int, Slip]]) -> str:
    """The first slip of `places` that fits, and a second one where the first alone is often overlooked."""
    tree = ast.parse(source)
    nodes = list(_nodes(tree, entry_point))
    made = 0
    for rank, slip in places:
        if slip.make(nodes[rank]):
            made += 1
            if made == 2 or not slip.overlooked:
                break
    return ast.unparse(tree)


def _functions(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]


def _nodes(tree: ast.Module, entry_point: str) -> Iterator[ast.AST]:
    """The nodes where a slip may happen.

    Not those inside a `while`: most slips there loop for ever, and each of these costs the judge its
    whole time limit.
    """
    for function in _functions(tree, entry_point):
        yield function
        pending: list[ast.AST] = function.body[::-1]  # type: ignore[assignment]
        while pending:
            node = pending.pop()
            if not (isinstance(node, ast.While) or is_text(node)):
                yield node
                pending += reversed([*ast.iter_child_nodes(node)])
