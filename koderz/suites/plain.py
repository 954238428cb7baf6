"""Suites that don't subclass `Suite`: a plain object with its members, or a function that returns one.

Their methods take single values in place of a context: `judge(task, answer, sandbox, how)`, with `ask` if it asks a
model, `open_session(task, handles)`, `open_workspace(task, folder, handles)`, `open_evaluator(task, handles, settings)`
and `open_long_context(task, handles)`, each with `shared` or `settings` if it names them, and
`open_run(settings, environ)`. Everywhere else in koderz a suite is a `Suite`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.suite import (
    ExperimentContext,
    JudgeContext,
    ProgramSuite,
    RunContext,
    Suite,
    SuiteSource,
    WorkspaceContext,
)
from koderz.types import Judging, Reply, Task, Verdict

_OPENERS = ("open_session", "open_long_context", "open_evaluator", "open_workspace")


def suite_class_of(found: Any, what: str) -> type[Suite]:
    """The class of a suite: itself, or one that loads a suite from a plain function, class or object.

    Its `load` raises KoderzError beginning with `what` if that has no suite's members.
    """
    if isinstance(found, type) and issubclass(found, Suite):
        return found

    class Plain(Suite):
        options = getattr(found, "options", None) if callable(found) else None
        modes = getattr(found, "modes", None)
        named_datasets = getattr(found, "parts", ()) if callable(found) else ()
        listed = not getattr(found, "unlisted", False)

        @classmethod
        def load(cls, source: SuiteSource) -> Suite:
            return _as_suite(_called(found, source) if callable(found) else found, what)

    Plain.__doc__ = inspect.getdoc(found)
    return Plain


def _called(function: Callable[..., Any], source: SuiteSource) -> Any:
    parameters = inspect.signature(function).parameters
    named = {name: value for name, value in (("seed", source.seed), ("part", source.part)) if name in parameters}
    return function(source.dataset, *([] if source.options is None else [source.options]), **named)


def _as_suite(plain: Any, what: str) -> Suite:
    """The suite that a plain object stands for."""
    if isinstance(plain, Suite):
        return plain
    if missing := [name for name in ("name", "source", "tasks", "messages", "judge") if not hasattr(plain, name)]:
        raise KoderzError(f"{what} is no suite, nor a function that returns one: it has no {missing[0]}")
    base = _PlainProgramSuite if hasattr(plain, "judge_program") else _PlainSuite
    members: dict[str, Any] = {name: _member(name) for name in _attributes() if hasattr(plain, name)}
    members |= {name: _opener(name) for name in _OPENERS if hasattr(plain, name)}
    made: Suite = type(type(plain).__name__, (base,), members)(plain)
    return made


def _attributes() -> set[str]:
    """The members that a plain suite has under the same names, with the same parameters."""
    own = {"load", "options", "configuration", "modes", "named_datasets", "listed", "overrides", "asks_judge", "judge"}
    return {name for name in dir(ProgramSuite) if not name.startswith(("_", "open_"))}.union(
        ("name", "source", "tasks")
    ) - {*own, "judge_program", "judge_written"}


def _member(name: str) -> property:
    return property(lambda suite: getattr(suite.plain, name))


def _opener(name: str) -> Callable[..., AbstractAsyncContextManager[Any]]:
    def opening(suite: _PlainSuite, context: ExperimentContext) -> AbstractAsyncContextManager[Any]:
        method: Callable[..., AbstractAsyncContextManager[Any]] = getattr(suite.plain, name)
        known = inspect.signature(method).parameters
        more: Mapping[str, Any] = {"settings": context.settings, "shared": context.shared}
        folder = [context.folder] if isinstance(context, WorkspaceContext) else []
        given = {key: value for key, value in more.items() if key in known}
        return method(context.task, *folder, context.handles, **given)

    return opening


@dataclass(frozen=True, slots=True)
class _How(Judging):
    """How a plain suite's answers are judged: its limits, and the core that is kept free."""

    core: int | None = None


def _how(context: JudgeContext) -> _How:
    limits = context.limits
    return _How(limits.timeout, limits.memory_mb, limits.feedback, limits.call_timeout, context.core)


class _PlainSuite(Suite):
    """A suite whose members are those of a plain object."""

    def __init__(self, plain: Any) -> None:
        self.plain, self.configuration = plain, getattr(plain, "options", None)
        self._asks = "ask" in inspect.signature(plain.judge).parameters
        self.asks_judge = self._asks or bool(getattr(plain, "asks_judge", False))

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        asking = {"ask": context.ask} if self._asks else {}
        verdict: Verdict = await self.plain.judge(task, answer, context.sandbox, _how(context), **asking)
        return verdict

    def open_run(self, context: RunContext) -> AbstractAsyncContextManager[Any]:
        if not hasattr(self.plain, "open_run"):
            return super().open_run(context)
        opened: AbstractAsyncContextManager[Any] = self.plain.open_run(context.settings, context.environ)
        return opened


class _PlainProgramSuite(_PlainSuite, ProgramSuite):
    """A plain suite whose answers are programs."""

    async def judge_program(self, task: Task, program: str, context: JudgeContext, *, line_offset: int = 0) -> Verdict:
        verdict: Verdict = await self.plain.judge_program(
            task, program, context.sandbox, _how(context), line_offset=line_offset
        )
        return verdict
