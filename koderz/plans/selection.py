"""The choice of tasks from a suite."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz_tracker.files import MB, read_all

if TYPE_CHECKING:
    from koderz.settings.schema import Settings
    from koderz.types import Task


def select_tasks(settings: Settings, span: range | None, tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks in the half-open range that are also among `settings.problems`; either may be missing.

    `shuffle` mixes them by `seed`, `limit` then takes the first of them. Raises KoderzError where a name or
    the range is beyond the suite, or nothing is left.
    """
    if not tasks:
        raise KoderzError(f"the suite {settings.suite} has no tasks")
    chosen = _in_range(tasks, span) if span is not None else list(tasks)
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
            raise KoderzError(f"none of the tasks named lies in the range {span.start} to {span.stop}")
    if settings.shuffle:
        random.Random(settings.seed).shuffle(chosen)  # noqa: S311 repeatable on purpose
    return tuple(chosen[: settings.limit])


def find_id(name: str, ids: Sequence[str]) -> str | None:
    """The id that is named in full, by the part after its slash, or by its index; None if none or several match."""
    if name in ids:
        return name
    found = [each for each in ids if each.rpartition("/")[2] == name]
    if not found and name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < len(ids):
        found = [ids[int(name)]]
    return found[0] if len(found) == 1 else None


def read_problems(path: Path) -> tuple[str, ...]:
    """The problem ids in a file: one a line, or separated by commas; `#` begins a comment."""
    try:
        text = read_all(path, 16 * MB).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KoderzError(f"--problems-file {path} can't be read: {error}") from None
    return tuple(name for line in text.splitlines() for name in split_problems(line.partition("#")[0]))


def split_problems(text: str) -> tuple[str, ...]:
    """The ids in a text such as `HumanEval/3, HumanEval/7`."""
    return tuple(text.replace(",", " ").split())


def _in_range(tasks: Sequence[Task], span: range) -> list[Task]:
    low, high = span.start, span.stop
    if low < 0 or high < 0:
        raise KoderzError(f"a range begins at 0, not {min(low, high)}")
    if high <= low:
        raise KoderzError(f"END has to be above START, since the range is half-open: {low} {low + 1} is one task")
    if high > len(tasks):
        raise KoderzError(f"the suite has {len(tasks)} tasks, so END is at most {len(tasks)}, not {high}")
    return list(tasks[low:high])
