"""The suites that a judge of rewards serves, named as its user named them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from koderz.errors import KoderzError
from koderz.settings.schema import Settings
from koderz.suites import SUITES, load_suite
from koderz.suites.suite import Suite
from koderz.types import JUDGE, PRIVACY, Task

_BY_REPLY_ALONE = frozenset({JUDGE, PRIVACY, "long_context", "session"})
"""What tasks may need whose replies are judged by their text alone: the last two are the solver's."""

_NAMED = 5  # tasks in a message


class UnknownTaskError(KoderzError):
    """A request names a suite or task that the judge doesn't have, or a task that several have."""


@dataclass(frozen=True)
class ServedSuite:
    """A suite under the argument that names it."""

    argument: str
    suite: Suite

    @cached_property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks by id."""
        return {task.id: task for task in self.suite.tasks}


def load_served(arguments: Iterable[str], settings: Settings) -> list[ServedSuite]:
    """The suites that these arguments name, whose replies can be judged one by one.

    An argument is a suite's name, SUITE=FILE, FILE:NAME of one's own suite, or a file in HumanEval's format. Raises
    KoderzError for one that is none of these, and for a suite that can't be judged so.
    """
    served = [
        ServedSuite(argument, _loaded(argument, settings)) for argument in dict.fromkeys(arguments)
    ]
    if not served:
        raise KoderzError(
            "say which tasks: a suite's name such as humaneval, SUITE=FILE, or a file of tasks"
        )
    for each in served:
        suite = each.suite
        if suite.asks_judge:
            raise KoderzError(
                f"{each.argument}: the verdicts of {suite.name} need a model, so they are no rewards here"
            )
        needs = frozenset[str]().union(*(task.needs for task in suite.tasks)) - _BY_REPLY_ALONE
        if needs:
            raise KoderzError(
                f"{each.argument}: {suite.name} needs {', '.join(sorted(needs))}: it judges no reply alone"
            )
    return served


def find_task(served: Iterable[ServedSuite], task: str, suite: str) -> tuple[ServedSuite, Task]:
    """The task of a request, and its suite. Raises UnknownTaskError, which names what is unknown."""
    known = [*served]
    asked = [each for each in known if each.argument == suite] if suite else known
    if not asked:
        raise UnknownTaskError(
            f"suite: there is no {suite!r} here; there are {', '.join(e.argument for e in known)}"
        )
    found = [(each, each.tasks[task]) for each in asked if task in each.tasks]
    if not found:
        names = ", ".join(each.argument for each in asked)
        raise UnknownTaskError(f"task: there is no {task!r} in {names}")
    if len(found) > 1:
        names = ", ".join(each.argument for each, _ in found)
        raise UnknownTaskError(f"task: {task!r} is in {names}; say which by `suite`")
    return found[0]


def require_apart(
    served: Iterable[ServedSuite], held_out: Iterable[str], settings: Settings
) -> None:
    """Raises KoderzError, which names the tasks, where one is among those that are held out for measuring.

    The same is a task with the same digest, or with the same prompt but for white space and case.
    """
    kept = [_loaded(argument, settings) for argument in dict.fromkeys(held_out)]
    marks = {mark for suite in kept for task in suite.tasks for mark in _marks(task)}
    found = [
        task.id
        for each in served
        for task in each.suite.tasks
        if not marks.isdisjoint(_marks(task))
    ]
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise KoderzError(
            f"held out: {', '.join(found[:_NAMED])}{more}: a model rewarded on these could no longer be measured "
            "on them; serve other tasks, or hold out others"
        )


def _marks(task: Task) -> Iterator[str]:
    """Marks by which the same task is found elsewhere."""
    if task.digest:
        yield task.digest
    if prompt := "".join(task.prompt.split()).casefold():
        yield f"prompt {prompt}"


def _loaded(argument: str, settings: Settings) -> Suite:
    name, equals, file = argument.partition("=")
    if SUITES.has(argument) or SUITES.is_file(argument):
        return load_suite(argument, None, settings)
    if equals and SUITES.has(name):
        return load_suite(name, Path(file), settings)
    if Path(argument).exists():
        return load_suite("humaneval", Path(argument), settings)
    raise KoderzError(
        f"{argument} is neither a suite, nor SUITE=FILE, nor a file; all suites: koderz suites list"
    )
