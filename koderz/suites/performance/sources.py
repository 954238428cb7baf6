"""Where tasks come from: the embedded repositories, or a file of the user's, told by its content."""

from __future__ import annotations

from pathlib import Path

from koderz.suites.performance.mini import mini_tasks
from koderz.suites.performance.tasks import PerfTask, read_tasks


def tasks_of(dataset: Path | None) -> tuple[PerfTask, ...]:
    """The tasks of a tasks.toml, else the embedded ones. Raises KoderzError for a file that holds no tasks."""
    return read_tasks(dataset) if dataset else mini_tasks()
