"""The trusted tests of a task, compiled once: `check(candidate)`, a list of asserts, or unittest cases."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

FILE = "<test>"
WORTH_FORESEEING = 8192  # characters of tests: below, it costs more than it saves
_REACHES_IN = frozenset({"unittest", "mock"})


class BrokenTestsError(Exception):
    """The suite's own tests can't be run: nobody's verdict."""


@dataclass(frozen=True, slots=True)
class SuiteTests:
    """Tests ready to run."""

    code: CodeType
    context: CodeType | None
    lines: tuple[str, ...]  # of the tests' source
    in_process: bool  # they reach into what they test, so no proxy will do

    def namespace(self, entry_point: str, candidate: Any) -> dict[str, Any]:
        """What the tests run in: the task's helpers, and the candidate under its name."""
        namespace: dict[str, Any] = {"__name__": "__tests__"}
        if self.context:
            exec(self.context, namespace)  # noqa: S102 - the task's own prompt
        if entry_point:
            namespace[entry_point] = candidate
        return namespace

    def run(self, namespace: dict[str, Any], candidate: Any) -> None:
        """Returns if the tests are content; a list of asserts is content when it has run."""
        exec(self.code, namespace)  # noqa: S102 - the suite's own tests
        if "check" in namespace:
            namespace["check"](candidate)


@functools.lru_cache(maxsize=64)
def prepared(test: str, context: str, entry_point: str) -> SuiteTests:
    """BrokenTestsError for tests or a context that aren't Python."""
    try:
        in_process = any(name in test for name in _REACHES_IN) and _imports(ast.parse(test), _REACHES_IN)
        code = compile(test if len(test) < WORTH_FORESEEING else _foreseen(test, entry_point), FILE, "exec")
    except (SyntaxError, ValueError) as error:
        raise BrokenTestsError(f"the tests can't be compiled: {error}") from error
    return SuiteTests(code, _context(context), tuple(test.splitlines()), in_process)


def _context(source: str) -> CodeType | None:
    """A prompt ends inside the function it asks for, which may still need a body."""
    for text in (source, f"{source.rstrip()}\n    pass\n"):
        try:
            return compile(text, "<context>", "exec") if source else None
        except SyntaxError:
            continue
    raise BrokenTestsError("the task's context can't be compiled")


def _imports(tree: ast.Module, names: Collection[str]) -> bool:
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
    return any(module.partition(".")[0] in names for module in modules)


def _foreseen(test: str, entry_point: str) -> ast.Module:
    """The same tests, which announce their calls before they make them, where these are plain to see.

    That is a list named `inputs`, as EvalPlus writes its tests, and a run of asserts on literals.
    """
    tree = ast.parse(test, FILE)
    _announce(tree.body, entry_point)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args:
            _announce(node.body, node.args.args[0].arg)
    return ast.fix_missing_locations(tree)


def _announce(body: list[ast.stmt], candidate: str) -> None:
    if not candidate:
        return
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Assign) and _names(statement.targets) == ["inputs"]:
            body.insert(index + 1, _announcement(candidate, ast.Name("inputs", ast.Load()), statement))
            return
    calls = [*_literal_calls(body, candidate)]
    if len(calls) > 1:
        inputs = ast.List([ast.Tuple(call.args, ast.Load()) for call in calls], ast.Load())
        position = body.index(next(statement for statement in body if isinstance(statement, ast.Assert)))
        body.insert(position, _announcement(candidate, inputs, body[position]))


def _announcement(candidate: str, inputs: ast.expr, near: ast.stmt) -> ast.stmt:
    ahead = ast.Attribute(ast.Name(candidate, ast.Load()), "ahead", ast.Load())
    return ast.copy_location(ast.Expr(ast.Call(ahead, [inputs], [])), near)


def _names(targets: Iterable[ast.expr]) -> list[str]:
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _literal_calls(body: Iterable[ast.stmt], candidate: str) -> Iterator[ast.Call]:
    """The calls of the asserts that run one after the other, up to the first that isn't all literals."""
    for statement in body:
        if isinstance(statement, ast.Assert):
            for node in ast.walk(statement):
                if _calls(node, candidate):
                    if not _is_literal(node):
                        return
                    yield node  # type: ignore[misc]
        elif not isinstance(statement, (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)):
            return


def _calls(node: ast.AST, candidate: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == candidate


def _is_literal(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or node.keywords:
        return False
    try:
        for argument in node.args:
            ast.literal_eval(argument)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
