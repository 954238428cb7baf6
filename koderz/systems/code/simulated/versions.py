"""The simulated answers to a task: its reference in the forms that models write, and wrong versions of it."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from random import Random

from koderz.systems.code.extraction.statements import parse
from koderz.systems.code.simulated.slips import SLIPS, Slip, is_text
from koderz.systems.code.tasks import CodeTask, reference_program

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
    places = _places(source, entry_point)
    Random(seed).shuffle(places)  # noqa: S311 - a choice to be made again, not a secret
    versions = dict.fromkeys([ast.unparse(ast.parse(source))])
    for first in range(len(places)):
        if len(versions) > WRONG:
            break
        versions[_with_slips(source, entry_point, places[first:] + places[:first])] = None
    return tuple(versions)[1:]


def _places(source: str, entry_point: str) -> list[tuple[int, Slip]]:
    """All slips that may fit, each with the rank of its node in the function."""
    nodes = enumerate(_nodes(ast.parse(source), entry_point))
    return [(rank, slip) for rank, node in nodes for slip in SLIPS if isinstance(node, slip.kind)]


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
