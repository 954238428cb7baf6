"""Sources of tasks: the embedded repositories, or a user's file, recognised by its content."""

from __future__ import annotations

from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites.dataset import read_rows
from koderz.systems.patches.mini import mini_tasks
from koderz.systems.patches.published import read_published
from koderz.systems.patches.released import released_tasks
from koderz.systems.patches.tasks import PerfTask, read_tasks

MINI = "koderz-perf-mini"

_OWN = {MINI: mini_tasks, "koderz-perf-pypi": released_tasks}


def ids_of(dataset: Path | None) -> list[str]:
    """The ids of a dataset's tasks; of GSO's and ISO-Bench's JSON even if it lacks other fields.

    Raises KoderzError for a file that has none.
    """
    if dataset is None or _is_toml(dataset):
        return [task.id for task in tasks_of(dataset)]
    ids = [row.text("instance_id") for row in read_rows(dataset)]
    if not ids:
        raise KoderzError(f"{dataset} has no instance")
    return [*dict.fromkeys(ids)]


def tasks_of(dataset: Path | None, suite: str = MINI) -> tuple[PerfTask, ...]:
    """The tasks of a tasks.toml, or of GSO's or ISO-Bench's JSON; without a file, those of the suite.

    Raises KoderzError for a file that holds no tasks, and where the suite has none.
    """
    if dataset is None:
        if suite not in _OWN:
            raise KoderzError(f"the suite {suite} has no tasks here: give its file with --dataset FILE")
        return _OWN[suite]()
    return read_tasks(dataset) if _is_toml(dataset) else read_published(dataset)


def _is_toml(dataset: Path) -> bool:
    """Whether the first meaningful line isn't JSON."""
    if dataset.suffix == ".toml":
        return True
    try:
        with dataset.open(encoding="utf-8") as lines:
            words = (line.strip() for line in lines)
            return next((word for word in words if word and not word.startswith("#")), "") == "[[tasks]]"
    except (OSError, ValueError):  # which is told when it is read
        return False
