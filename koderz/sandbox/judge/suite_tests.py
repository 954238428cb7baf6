"""The trusted tests of a task, compiled once: `check(candidate)`, a list of asserts, or unittest cases."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from koderz.sandbox.judge.shares import Parts, parted

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
