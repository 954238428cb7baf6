"""Suites: sets of tasks and the way their answers are judged.

A suite may also be a plain object with the members of `Suite`, or a function that returns one. Its methods take single
values in place of a context: `judge(task, answer, sandbox, how)`, with `ask` if it asks a model,
`open_session(task, handles)`, `open_workspace(task, folder, handles)`, `open_evaluator(task, handles, settings)` and
`open_long_context(task, handles)`, each with `shared` or `settings` if it names them; and
`open_run(settings, environ)`.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from koderz.errors import KoderzError, raised_at
from koderz.settings.registry import Registry, find_in_file
from koderz.settings.schema import Settings
from koderz.suites.suite import (
    ExperimentContext,
    JudgeContext,
    ProgramSuite,
    RunContext,
    Suite,
    SuiteSource,
    WorkspaceContext,
)
from koderz.types import JUDGE, PRIVACY, Judging, Measure, Reply, Task, Verdict
from koderz_tracker.records import PASSES
from koderz_tracker.scrubber import Scrubber


def _as_class(found: object, name: str) -> type[Suite]:
    return suite_class_of(found, f"the suite {name}")


SUITES: Registry[type[Suite]] = Registry("suite", "suites", _as_class)
"""The suites that there are: each name stands for a subclass of `koderz.suites.suite.Suite`."""


def load_suite(name: str, dataset: Path | None = None, settings: Settings | None = None) -> Suite:
    """A suite with its tasks. Raises KoderzError for an unknown one, or naming the line of a malformed row."""
    if SUITES.is_file(name):
        what = f"--suite {name}"
        found = find_in_file("--suite", name)
        try:
            suite = suite_class_of(found, what).load(SuiteSource(dataset))
        except KoderzError:
            raise
        except Exception as error:  # the user's own code may do anything
            raise KoderzError(
                f"{what}: {type(error).__name__}: {error}{raised_at(error)}"
            ) from error
        return _checked(suite, what)
    seed = settings.seed if settings else 0
    options, sandbox = SUITES.options_in(name, settings), settings.sandbox if settings else ""
    source = SuiteSource(dataset or added_dataset(name), options, seed, sandbox=sandbox)
    return _checked(SUITES.load(name).load(source), f"the suite {name}")


def _checked(suite: Suite, what: str) -> Suite:
    """The suite. Raises KoderzError if it lacks a member that has no default."""
    if missing := sorted({"name", "source", "tasks"}.difference(dir(suite))):
        raise KoderzError(f"{what} has no {missing[0]}")
    return suite


def checked_measures(suite: Suite) -> tuple[Measure, ...]:
    """The suite's measures. Raises KoderzError for one that can't be, or a headline that is none of them."""
    for measure in suite.measures:
        if measure.direction not in ("higher", "lower"):
            raise KoderzError(
                f"the measure {measure.name!r}: its direction has to be higher or lower"
            )
        if measure.bounds and not -math.inf < measure.bounds[0] < measure.bounds[1] < math.inf:
            raise KoderzError(
                f"the measure {measure.name!r}: its bounds have to be two numbers, the lower one first"
            )
    names = [measure.name for measure in suite.measures]
    if len({*names}) < len(names):
        raise KoderzError(f"two measures have one name among {', '.join(names)}")
    if suite.headline and suite.headline.measure not in (PASSES, *names):
        raise KoderzError(
            f"the headline names the measure {suite.headline.measure!r}, which the suite doesn't declare"
        )
    return tuple(suite.measures)


def require_recordable(suite: Suite, tasks: Sequence[Task]) -> None:
    """Raises KoderzError for a task, or a record of the judge, that a summary could hold but no reader takes."""
    for task in tasks:
        texts = (task.id, task.cluster, *task.groups, *task.groups.values())
        if not (task.id and all(isinstance(each, str) for each in texts)):
            raise KoderzError(
                f"the task {task.id!r:.80}: its id has to be a text that isn't empty, and its cluster and the names "
                "and values of its groups have to be texts"
            )
    caveats = suite.judge_record.get("caveats", [])
    if not (isinstance(caveats, list | tuple) and all(isinstance(each, str) for each in caveats)):
        raise KoderzError(
            f"the caveats in the suite's judge_record have to be a list of texts, not {caveats!r:.80}"
        )


def added_dataset(name: str) -> Path | None:
    """The place of the dataset that was added for a suite; None where none was."""
    place = _added(name)
    return place.readlink() if place.is_symlink() else None


def add_dataset(name: str, path: Path) -> Suite:
    """Let a suite, or one of its `named_datasets`, read its tasks from `path` wherever no other place is given.

    Raises KoderzError where it can't.
    """
    whole = next((each for each in map(SUITES.load, SUITES) if name in each.named_datasets), None)
    # it raises nothing for links that lead round in a circle
    path = Path(os.path.realpath(path))
    suite = whole.load(SuiteSource(path, part=name)) if whole else load_suite(name, path)
    place = _added(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(path)
    return suite


def _added(name: str) -> Path:
    from koderz.settings.paths import cache_folder

    return cache_folder() / "suites" / hashlib.sha256(name.encode()).hexdigest()[:16]


def modes_of(name: str) -> Mapping[str, Sequence[str]] | None:
    """The solvers that modes stand for in the suite of that name; None where it has the usual ones.

    Raises KoderzError for an unknown suite.
    """
    # a file isn't run to read the options
    return None if SUITES.is_file(name) else SUITES.load(name).modes


def program_suite(suite: Suite) -> ProgramSuite:
    """The suite as one of programs. Raises KoderzError where it judges replies alone."""
    if not isinstance(suite, ProgramSuite):
        raise KoderzError(f"the suite {suite.name} judges replies, not programs")
    return suite


_QUESTION, _READ = 240, 4000  # characters that are kept of a task's prompt, and of how many
_MOST_QUESTIONS = 5000  # tasks; MLflow has a trace of each experiment up to as many


def questions_of(suite: Suite, tasks: Sequence[Task]) -> dict[str, str]:
    """The beginning of what each task asks, in one line; empty if texts are private, or too many for a plan.

    Credentials are taken out first, since half of one has no longer the form by which sinks know it. Those that only
    this environment's variables tell aren't, as a plan is made anew elsewhere.
    """
    if suite.privacy_key or len(tasks) > _MOST_QUESTIONS:
        return {}
    scrubber = Scrubber(environ={})
    found: dict[str, str] = {}
    for task in tasks:
        text = " ".join(scrubber.text(task.prompt[:_READ]).split())
        kept = (
            text
            if len(text) <= _QUESTION
            else text[: _QUESTION + 1].rpartition(" ")[0] or text[:_QUESTION]
        )
        found |= {task.id: kept} if kept else {}
    return found


def task_digest(*parts: str) -> str:
    """16 hex digits that change with any of the parts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def suite_digest(suite: Suite) -> str:
    """16 hex digits of all its tasks."""
    return task_digest(*(f"{task.id} {task.digest}" for task in suite.tasks))


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
    named = {
        name: value
        for name, value in (("seed", source.seed), ("part", source.part))
        if name in parameters
    }
    return function(source.dataset, *([] if source.options is None else [source.options]), **named)


def _as_suite(plain: Any, what: str) -> Suite:
    """The suite that a plain object stands for."""
    if isinstance(plain, Suite):
        return plain
    if missing := [
        name
        for name in ("name", "source", "tasks", "messages", "judge")
        if not hasattr(plain, name)
    ]:
        raise KoderzError(
            f"{what} is no suite, nor a function that returns one: it has no {missing[0]}"
        )
    base = _PlainProgramSuite if hasattr(plain, "judge_program") else _PlainSuite
    members: dict[str, Any] = {
        name: _member(name) for name in _attributes() if hasattr(plain, name)
    }
    members |= {name: _opener(name) for name in _OPENERS if hasattr(plain, name)}
    made: Suite = type(type(plain).__name__, (base,), members)(plain)
    return made


def _attributes() -> set[str]:
    """The members that a plain suite has under the same names, with the same parameters."""
    own = {
        "load",
        "options",
        "configuration",
        "modes",
        "named_datasets",
        "listed",
        "overrides",
        "asks_judge",
        "judge",
    }
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
    return _How(
        limits.timeout, limits.memory_mb, limits.feedback, limits.call_timeout, context.core
    )


class _PlainSuite(Suite):
    """A suite whose members are those of a plain object."""

    def __init__(self, plain: Any) -> None:
        self.plain, self.configuration = plain, getattr(plain, "options", None)
        self._asks = "ask" in inspect.signature(plain.judge).parameters
        self.asks_judge = self._asks or bool(getattr(plain, "asks_judge", False))

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        asking = {"ask": context.ask} if self._asks else {}
        verdict: Verdict = await self.plain.judge(
            task, answer, context.sandbox, _how(context), **asking
        )
        return verdict

    def open_run(self, context: RunContext) -> AbstractAsyncContextManager[Any]:
        if not hasattr(self.plain, "open_run"):
            return super().open_run(context)
        opened: AbstractAsyncContextManager[Any] = self.plain.open_run(
            context.settings, context.environ
        )
        return opened


class _PlainProgramSuite(_PlainSuite, ProgramSuite):
    """A plain suite whose answers are programs."""

    async def judge_program(
        self, task: Task, program: str, context: JudgeContext, *, line_offset: int = 0
    ) -> Verdict:
        verdict: Verdict = await self.plain.judge_program(
            task, program, context.sandbox, _how(context), line_offset=line_offset
        )
        return verdict


FileState = Literal["published", "other", "unknown", "none"]

_NEEDS = {JUDGE: "a sandbox for programs", PRIVACY: "privacy of its texts"}


def about_suite(settings: Settings) -> dict[str, Any]:
    """The facts about a suite as JSON; `problem` says why its tasks can't be loaded.

    Raises KoderzError for an unknown suite.
    """
    name = settings.suite
    kind = Suite if SUITES.is_file(name) else SUITES.load(name)
    suite, problem = None, ""
    try:
        suite = load_suite(name, settings.dataset, settings)
    except KoderzError as error:
        problem = str(error)
    published = (suite or kind).publication
    dataset = settings.dataset or added_dataset(name)
    source = str(dataset) if dataset else None
    if suite and not dataset:
        source = suite.source
    return {
        "name": name,
        "about": ((type(suite) if suite else kind).__doc__ or "").partition("\n")[0],
        "tasks": len(suite.tasks) if suite else None,
        "dataset": source,
        "file": file_state(suite) if suite else "none",
        "licence": published.licence if published else None,
        "place": published.place if published else None,
        "get": published.command if published else None,
        "needs": _needs_of(suite) if suite else [],
        "rule": suite.rule_text if suite else "",
        "problem": problem,
    }


def file_state(suite: Suite) -> FileState:
    """Whether the tasks are those of a published file, by the digest of its rows."""
    published = suite.publication
    if published is None or not published.digests:
        return "unknown"
    return "published" if suite.rows_digest() in published.digests else "other"


def _needs_of(suite: Suite) -> list[str]:
    needs = sorted({need for task in suite.tasks for need in task.needs})
    return [_NEEDS.get(need, need) for need in needs] + (
        ["a model in the role judge"] if suite.asks_judge else []
    )
