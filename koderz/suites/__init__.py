"""Suites: sets of tasks and the way their answers are judged."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from koderz.errors import KoderzError, raised_at
from koderz.settings.registry import Registry, find_in_file
from koderz.settings.schema import Settings
from koderz.suites.suite import ProgramSuite, Suite, SuiteSource
from koderz.types import Measure, Task
from koderz_tracker.records import PASSES
from koderz_tracker.scrubber import Scrubber


def _as_class(found: object, name: str) -> type[Suite]:
    if isinstance(found, type) and issubclass(found, Suite):
        return found
    from koderz.suites.plain import suite_class_of

    return suite_class_of(found, f"the suite {name}")


SUITES: Registry[type[Suite]] = Registry("suite", "suites", _as_class)
"""The suites that there are: each name stands for a subclass of `koderz.suites.suite.Suite`."""


def load_suite(name: str, dataset: Path | None = None, settings: Settings | None = None) -> Suite:
    """A suite with its tasks. Raises KoderzError for an unknown one, or naming the line of a malformed row."""
    if SUITES.is_file(name):
        from koderz.suites.plain import suite_class_of

        what = f"--suite {name}"
        found = find_in_file("--suite", name)
        try:
            suite = suite_class_of(found, what).load(SuiteSource(dataset))
        except KoderzError:
            raise
        except Exception as error:  # the user's own code may do anything
            raise KoderzError(f"{what}: {type(error).__name__}: {error}{raised_at(error)}") from error
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
            raise KoderzError(f"the measure {measure.name!r}: its direction has to be higher or lower")
        if measure.bounds and not -math.inf < measure.bounds[0] < measure.bounds[1] < math.inf:
            raise KoderzError(f"the measure {measure.name!r}: its bounds have to be two numbers, the lower one first")
    names = [measure.name for measure in suite.measures]
    if len({*names}) < len(names):
        raise KoderzError(f"two measures have one name among {', '.join(names)}")
    if suite.headline and suite.headline.measure not in (PASSES, *names):
        raise KoderzError(f"the headline names the measure {suite.headline.measure!r}, which the suite doesn't declare")
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
        raise KoderzError(f"the caveats in the suite's judge_record have to be a list of texts, not {caveats!r:.80}")


def added_dataset(name: str) -> Path | None:
    """The place of the dataset that was added for a suite; None where none was."""
    place = _added(name)
    return place.readlink() if place.is_symlink() else None


def add_dataset(name: str, path: Path) -> Suite:
    """Let a suite, or one of its `named_datasets`, read its tasks from `path` wherever no other place is given.

    Raises KoderzError where it can't.
    """
    whole = next((each for each in map(SUITES.load, SUITES) if name in each.named_datasets), None)
    path = Path(os.path.realpath(path))  # which raises nothing for links that lead round in a circle
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
    return None if SUITES.is_file(name) else SUITES.load(name).modes  # a file isn't run to read the options


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
        kept = text if len(text) <= _QUESTION else text[: _QUESTION + 1].rpartition(" ")[0] or text[:_QUESTION]
        found |= {task.id: kept} if kept else {}
    return found


def task_digest(*parts: str) -> str:
    """16 hex digits that change with any of the parts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def suite_digest(suite: Suite) -> str:
    """16 hex digits of all its tasks."""
    return task_digest(*(f"{task.id} {task.digest}" for task in suite.tasks))
