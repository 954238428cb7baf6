"""The choice of tasks from a suite, their clusters, and warnings about what tasks and samples have in common."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz.solvers.definition import OPENED
from koderz.suites import task_digest
from koderz.suites.suite import linked
from koderz_tracker.files import MB, read_all

if TYPE_CHECKING:
    from koderz.plans.arms import Arm
    from koderz.settings.schema import Settings
    from koderz.types import Task


def select_tasks(settings: Settings, span: range | None, tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks in the half-open range that are also among `settings.problems`; either may be missing.

    `shuffle` mixes them by `seed`, `limit` then takes the first of them. Raises KoderzError where a name or
    the range is beyond the suite, or nothing is left.
    """
    if not tasks:
        raise KoderzError(f"the suite {settings.suite} has no tasks")
    chosen = list(tasks)
    if span is not None:
        low, high = span.start, span.stop
        if low < 0 or high < 0:
            raise KoderzError(f"a range begins at 0, not {min(low, high)}")
        if high <= low:
            raise KoderzError(
                f"END has to be above START, since the range is half-open: {low} {low + 1} is one task"
            )
        if high > len(tasks):
            raise KoderzError(
                f"the suite has {len(tasks)} tasks, so END is at most {len(tasks)}, not {high}"
            )
        chosen = chosen[low:high]
    if settings.problems:
        ids = tuple(task.id for task in tasks)
        found = {name: find_id(name, ids) for name in settings.problems}
        unknown = [name for name, task in found.items() if task is None]
        if unknown:
            shown = ", ".join(repr(name[:100]) for name in unknown[:5])
            raise KoderzError(f"the suite has no task {shown}; they are named like {ids[0]}")
        wanted = {task for task in found.values() if task is not None}
        chosen = [task for task in chosen if task.id in wanted]
        if span is not None and not chosen:
            raise KoderzError(
                f"none of the tasks named lies in the range {span.start} to {span.stop}"
            )
    if settings.shuffle:
        random.Random(settings.seed).shuffle(chosen)  # noqa: S311 repeatable on purpose
    return tuple(chosen[: settings.limit])


def find_id(name: str, ids: Sequence[str]) -> str | None:
    """The id that is named in full, by the part after its slash, or by its index; None if none or several match."""
    if name in ids:
        return name
    found = [each for each in ids if each.rpartition("/")[2] == name]
    if (
        not found
        and name.isascii()
        and name.isdecimal()
        and len(name) < 10
        and int(name) < len(ids)
    ):
        found = [ids[int(name)]]
    return found[0] if len(found) == 1 else None


def read_problems(path: Path) -> tuple[str, ...]:
    """The problem ids in a file: one a line, or separated by commas; `#` begins a comment."""
    try:
        text = read_all(path, 16 * MB).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KoderzError(f"--problems-file {path} can't be read: {error}") from None
    return tuple(
        name for line in text.splitlines() for name in split_problems(line.partition("#")[0])
    )


def split_problems(text: str) -> tuple[str, ...]:
    """The ids in a text such as `HumanEval/3, HumanEval/7`."""
    return tuple(text.replace(",", " ").split())


def clusters_of(tasks: Sequence[Task], alike: Mapping[str, str]) -> Sequence[str]:
    """The cluster of each task, of which equal prompts have one; empty if no two tasks share one.

    `alike` are the `equal_prompts` of the tasks.
    """
    found = [task.cluster for task in tasks]
    if alike:
        shares = {
            task.id: [*filter(None, [task.cluster]), *filter(None, [alike.get(task.id)])]
            for task in tasks
        }
        joined = linked(shares)
        found = [joined.get(task.id, task.cluster) for task in tasks]
    shared = [cluster for cluster in found if cluster]
    return found if len({*shared}) < len(shared) else ()


def equal_prompts(tasks: Sequence[Task]) -> dict[str, str]:
    """The name of the prompt of each task that is sent the same as another one, and nothing else.

    A prompt is not all that is asked where the suite opens a workspace, a session or a text beside it.
    """
    found: dict[str, list[str]] = {}
    for task in tasks:
        if not task.needs & OPENED and any(message.get("content") for message in task.messages):
            found.setdefault(task_digest(*map(repr, task.messages)), []).append(task.id)
    return {
        name: f"prompt of {same[0]}" for same in found.values() if len(same) > 1 for name in same
    }


def notes_on(
    settings: Settings, tasks: int, alike: Mapping[str, str], arms: Sequence[Arm], samples: int
) -> list[str]:
    """Warnings about the tasks and samples of a run, for wherever its figures are shown.

    `tasks` is the number of tasks, and `alike` are the `equal_prompts` among them.
    """
    notes = []
    if alike:
        notes.append(
            f"{len(alike)} of {tasks} tasks have a prompt that others have, too: equal prompts are one cluster, "
            f"so these count as {len({*alike.values()})}"
        )
    if (
        samples > 1
        and settings.sampling_temperature == 0
        and not settings.seed
        and any(arm.solver.asks for arm in arms)
    ):
        notes.append(
            f"{samples} samples a task at temperature 0 without a --seed may be copies of each other, which tell no "
            "more than one: raise --temperature"
        )
    return notes
