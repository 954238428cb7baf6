"""What a task is answered with: its reference in the forms that models write it, and wrong versions of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from koderz.models.simulated.slips import SLIPS, Slip, is_text
from koderz.types import Task


@dataclass(frozen=True, slots=True)
class Versions:
    """The programs for one task. `right` is empty for a task without a usable reference."""

    right: tuple[str, ...]  # whole, as a function alone, as a body alone: all of them pass
    wrong: tuple[str, ...]  # never empty
    endless: str


def versions_of(task: Task, *, seed: int, wrong: int = 4) -> Versions:
    """The right versions of a task, up to `wrong` wrong ones, and one that never ends."""
    source = _whole(task)
    if source is None or not _functions(ast.parse(source), task.entry_point):
        stub = f"def {task.entry_point}(*arguments):\n    raise NotImplementedError"
        return Versions((), (stub,), stub)
    bare = _undocumented(source, task.entry_point)
    return Versions(
        right=_right_versions(task, source, bare),
        wrong=wrong_versions(bare, task.entry_point, seed=seed, count=wrong),
        endless=_endless(bare, task.entry_point),
    )


def wrong_versions(source: str, entry_point: str, *, seed: int, count: int) -> tuple[str, ...]:
    """Up to `count` different programs like `source` whose function `entry_point` is most likely wrong.

    The same arguments give the same programs. A slip that tests often overlook (a bound that is off by
    one) comes with a second slip, so that a version is wrong in more than name.
    """
    places = _places(source, entry_point)
    Random(seed).shuffle(places)  # noqa: S311 - a choice to be made again, not a secret
    versions = dict.fromkeys([ast.unparse(ast.parse(source))])
    for first in range(len(places)):
        if len(versions) > count:
            break
        versions[_with_slips(source, entry_point, places[first:] + places[:first])] = None
    return tuple(versions)[1:]


def _whole(task: Task) -> str | None:
    """The reference as a program: HumanEval's is the body that follows the prompt, others' are whole."""
    for source in (task.reference, task.prompt + task.reference):
        if task.reference.strip() and _parses(source):
            return source
    return None


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _right_versions(task: Task, source: str, bare: str) -> tuple[str, ...]:
    if source == task.reference:
        return source.strip("\n"), bare
    alone = ast.unparse(_functions(ast.parse(bare), task.entry_point)[-1])  # leans on the prompt's imports
    return source.strip("\n"), bare, alone, task.reference.strip("\n")


def _undocumented(source: str, entry_point: str) -> str:
    tree = ast.parse(source)
    for function in _functions(tree, entry_point):
        if is_text(function.body[0]) and len(function.body) > 1:
            del function.body[0]
    return ast.unparse(tree)


def _endless(source: str, entry_point: str) -> str:
    """`source` with a loop in front that forgets to move on."""
    tree = ast.parse(source)
    loop = ast.parse("position = 0\nwhile position < 1:\n    continue").body
    for function in _functions(tree, entry_point):
        function.body[:0] = loop
    return ast.unparse(tree)


@dataclass(frozen=True, slots=True)
class _Place:
    """A slip, and the node to make it at by its rank in the function."""

    node: int
    slip: Slip


def _places(source: str, entry_point: str) -> list[_Place]:
    nodes = enumerate(_nodes(ast.parse(source), entry_point))
    return [_Place(rank, slip) for rank, node in nodes for slip in SLIPS if isinstance(node, slip.kind)]


def _with_slips(source: str, entry_point: str, places: Sequence[_Place]) -> str:
    """The first slip of `places` that fits, and a second one where the first alone is often overlooked."""
    tree = ast.parse(source)
    nodes = list(_nodes(tree, entry_point))
    made = 0
    for place in places:
        if place.slip.make(nodes[place.node]):
            made += 1
            if made == 2 or not place.slip.overlooked:
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
