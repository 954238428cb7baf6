"""The trusted tests of a task, compiled once: `check(candidate)`, a list of asserts, or unittest cases.

Those that count each for itself are parted: the top-level asserts of `check(candidate)`, and the inputs of a test in
EvalPlus' form. All of it happens on the judge's side: a candidate is called as by any test, one call after the other,
and never learns how many there are.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

TALLY = "__tally__"
_CHECK_LINE = re.compile(r"^def check\(", re.MULTILINE)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Parts(NamedTuple):
    """A test in two pieces, of which the second defines a `check` that is counted by a `PartTally`."""

    head: CodeType
    check: CodeType
    number: int | None  # None: as many as there are inputs


class PartTally:
    """The parts of a test: how many there are, and how many were passed. A failure ends the test, as it is written."""

    def __init__(self, number: int | None) -> None:
        self.number, self.passed = number, 0

    def over(self, inputs: Iterable[Any]) -> list[Any]:
        """The inputs, each of which is a part."""
        found = [*inputs]
        self.number = len(found)
        return found

    def met(self) -> None:
        """Count a part that was passed."""
        self.passed += 1

    def missed(self, error: BaseException) -> bool:
        """Whether the failure of a part ends the test."""
        del error
        return True


class WholeTally(PartTally):
    """The count of a test that goes on after a failure. `goes_on` says whether a candidate is there for the rest."""

    def __init__(self, number: int | None, goes_on: Callable[[BaseException], bool]) -> None:
        super().__init__(number)
        self._goes_on = goes_on

    def missed(self, error: BaseException) -> bool:
        """Whether the failure of a part ends the test."""
        return not self._goes_on(error)


def parted(test: str, file: str) -> Parts | None:
    """The test in parts; None if it can't be parted. Raises SyntaxError as `compile` does."""
    found = _CHECK_LINE.search(test)
    if found is None:
        return None
    try:  # apart from the rest, which may be megabytes of inputs
        tree = ast.parse(test[found.start() :])
    except SyntaxError:
        return None
    check = tree.body[0]
    if not isinstance(check, ast.FunctionDef):
        return None
    asserts = sum(map(_is_assert, check.body))
    loops = [statement for statement in check.body if _is_loop_over_inputs(statement)]
    if asserts:
        parts = [_holds_assert(statement) for statement in check.body]
        check.body = [
            _counted(each) if part else each for each, part in zip(check.body, parts, strict=True)
        ]
        number: int | None = sum(parts)
    elif len(loops) == 1 and isinstance(loop := loops[0], ast.For):
        loop.iter = _call("over", loop.iter)
        loop.body = [_counted(*loop.body)]
        number = None
    else:
        return None
    ast.increment_lineno(tree, test.count("\n", 0, found.start()))
    return Parts(
        compile(test[: found.start()], file, "exec"),
        compile(ast.fix_missing_locations(tree), file, "exec"),
        number,
    )


def _is_assert(statement: ast.stmt) -> bool:
    """Whether it asserts something that a candidate may have a part in."""
    return isinstance(statement, ast.Assert) and not isinstance(statement.test, ast.Constant)


def _holds_assert(statement: ast.stmt) -> bool:
    """Whether it is an assert, or a loop or condition around some, which counts as one part."""
    if isinstance(statement, ast.Assert):
        return _is_assert(statement)
    return not isinstance(statement, _SCOPES) and any(
        isinstance(node, ast.Assert) for node in ast.walk(statement)
    )


def _is_loop_over_inputs(statement: ast.stmt) -> bool:
    """Whether it is the loop of a test in EvalPlus' form: over `zip(inputs, …)`, with an assert at its end."""
    match statement:
        case ast.For(
            iter=ast.Call(func=ast.Name("zip"), args=[ast.Name("inputs"), *_]),
            body=[*_, ast.Assert()],
        ):
            return True
    return False


def _counted(*statements: ast.stmt) -> ast.Try:
    """`try: …; except BaseException as error: if missed(error): raise; else: met()`, at the lines of the statements."""
    name = "__error__"
    ends = ast.If(_call("missed", ast.Name(name, ast.Load())), [ast.Raise()], [])
    handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), name, [ends])
    return ast.copy_location(
        ast.Try([*statements], [handler], [ast.Expr(_call("met"))], []), statements[0]
    )


def _call(method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(
        ast.Attribute(ast.Name(TALLY, ast.Load()), method, ast.Load()), [*arguments], []
    )


FILE = "<test>"
WORTH_FORESEEING = 8192  # characters of tests: below, it costs more than it saves
_CHECK = re.compile(r"^def check\((\w+)", re.MULTILINE)
_INPUTS = re.compile(r"^ *inputs = .*$", re.MULTILINE)
_LEARNT_LIMIT = 256 << 10  # bytes


class BrokenTestsError(Exception):
    """The suite's own tests can't be run: nobody's verdict."""


@dataclass(frozen=True, slots=True)
class SuiteTests:
    """Tests ready to run. `learnt` holds the arguments of each call that they made of the latest that passed:
    they draw no lot that isn't the same each time, so they will most likely ask the next candidate the same.
    """

    code: CodeType
    context: CodeType | None
    lines: tuple[str, ...]  # of the tests' source
    in_process: bool  # they reach into what they test, so no proxy will do
    parts: Parts | None = None  # of tests that are to be counted, and can be parted
    learnt: list[bytes] = field(default_factory=list)

    def namespace(self, entry_point: str, candidate: Any) -> dict[str, Any]:
        """Namespace of the tests: the task's helpers, and the candidate under its name."""
        namespace: dict[str, Any] = {"__name__": "__tests__"}
        if self.context:
            exec(self.context, namespace)  # noqa: S102 - the task's own prompt
        if entry_point:
            namespace[entry_point] = candidate
        return namespace

    def learn(self, calls: list[bytes]) -> None:
        if sum(map(len, calls)) <= _LEARNT_LIMIT:
            self.learnt[:] = calls

    def load(self, namespace: dict[str, Any]) -> None:
        """Runs a list of asserts, or defines `check`. The reference of a task may take its time here."""
        for code in (self.parts.head, self.parts.check) if self.parts else (self.code,):
            exec(code, namespace)  # noqa: S102 - the suite's own tests

    def check(self, namespace: dict[str, Any], candidate: Any) -> None:
        """Returns if the tests are content; a list of asserts is content when it has run."""
        if "check" in namespace:
            namespace["check"](candidate)


def prepared(test: str, context: str, entry_point: str, *, graded: bool = False) -> SuiteTests:
    """BrokenTestsError for tests or a context that aren't Python. The latest are kept, fewer of the large.

    If `graded`, they are parted where they can be.
    """
    return (_kept if len(test) < WORTH_FORESEEING else _few_kept)(
        test, context, entry_point, graded
    )


def _compiled(test: str, context: str, entry_point: str, graded: bool) -> SuiteTests:
    try:
        in_process = _reaches_in(test)
        if graded and not in_process and (parts := parted(test, FILE)):
            return SuiteTests(
                parts.head, _context(context), tuple(test.splitlines()), in_process, parts
            )
        large = len(test) >= WORTH_FORESEEING
        code = _foreseen(test, entry_point) if large else compile(test, FILE, "exec")
    except (SyntaxError, ValueError) as error:
        raise BrokenTestsError(f"the tests can't be compiled: {error}") from error
    return SuiteTests(code, _context(context), tuple(test.splitlines()), in_process)


_kept = functools.lru_cache(maxsize=512)(_compiled)
_few_kept = functools.lru_cache(maxsize=16)(_compiled)


def _context(source: str) -> CodeType | None:
    """A prompt ends inside the function it asks for, which may still need a body."""
    for text in (source, f"{source.rstrip()}\n    pass\n"):
        try:
            return compile(text, "<context>", "exec") if source else None
        except SyntaxError:
            continue
    raise BrokenTestsError("the task's context can't be compiled")


def _reaches_in(test: str) -> bool:
    """Whether tests replace parts of what they test, or are cases that know it by name alone."""
    if "mock" not in test and "unittest" not in test:
        return False
    tree = ast.parse(test, FILE)
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imports for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    checks = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    return bool(names & {"mock", "unittest.mock"}) or ("unittest" in names and not checks)


def _foreseen(test: str, entry_point: str) -> CodeType:
    """The same tests, which announce a list named `inputs`, as EvalPlus writes its tests, before they go through it.

    Added to the line that makes the list, so that lines keep their numbers; left out where that is no statement.
    """
    check = _CHECK.search(test)
    announced = f"; {check[1] if check else entry_point}.ahead(inputs)"
    try:
        return compile(_INPUTS.sub(lambda line: line[0] + announced, test, count=1), FILE, "exec")
    except SyntaxError:
        return compile(test, FILE, "exec")
