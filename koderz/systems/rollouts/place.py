"""The names of the files of a new run of rollouts: its stamp, and its rollouts in order."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins

from koderz.errors import KoderzError
from koderz.runs.documents import documented
from koderz.systems.rollouts.files import DOCUMENT, RolloutsDocument, RunEntry, TaskText

if TYPE_CHECKING:
    from koderz.plans.matrix import Matrix
    from koderz.plans.plan import Plan
    from koderz.systems.rollouts.task import Rollout
    from koderz.systems.rollouts.tasks.config import Config


@dataclass(slots=True)
class Place:
    """The place of a new run's files. The folder of its first rollout reserves the stamp."""

    data: Path  # as it was given
    config: Config
    shown: str  # the configuration as it was given
    matrix: Matrix
    _first: Path | None = field(default=None)

    def documented(self, plan: Plan) -> Plan:
        """The plan with the data that its files need. Raises KoderzError if the disk refuses."""
        try:
            stamp = self._taken()
        except OSError as error:
            raise KoderzError(f"--data {self.data} can't be written ({error.strerror})") from None
        about = RolloutsDocument(
            output=str(self.data.absolute()),
            files=[f"rollouts/{self.config.name}/{stamp}/manifest.json"],
            data=str(self.data),
            config=self.shown,
            name=self.config.name,
            stamp=stamp,
            runs=self._runs(plan),
            tasks={task.id: _text_of(task.payload) for task in plan.tasks},
        )
        return documented(plan, DOCUMENT, to_builtins(about))

    def release(self) -> None:
        """Gives up a stamp under which nothing was written."""
        if self._first:
            with suppress(OSError):
                self._first.rmdir()

    def _taken(self) -> str:
        moment = datetime.now(UTC)
        while True:
            stamp = f"{moment:%Y%m%d__%H-%M-%S}"
            self._first = self.data / "runs" / f"{stamp}-0"
            with suppress(FileExistsError):
                self._first.mkdir(parents=True)
                return stamp
            moment += timedelta(seconds=1)

    def _runs(self, plan: Plan) -> dict[str, RunEntry]:
        """The rollouts by experiment, in the order of entries; equal entries share one cell of the plan."""
        known = {(each.task.id, each.arm.name, each.sample): each.experiment_id for each in plan.experiments()}
        canaries = {task.id for task in plan.tasks if task.apart}
        begun: Counter[tuple[str, str]] = Counter()
        found = {}
        for entry, cells in zip(self.config.entries, self.matrix.cells, strict=True):
            ((arm,), (task,)) = cells.arms or (), cells.problems or ()
            for _ in range(cells.samples or 1):
                sample = begun[task, arm]
                begun[task, arm] += 1
                if experiment := known.get((task, arm, sample)):  # a sample of a plan has some of them
                    found[experiment] = RunEntry(task, entry.prepared_dir, task in canaries)
        return found


def _text_of(task: Rollout) -> TaskText:
    notes = task.folder / "overlay_files" / "notes.md"
    text = notes.read_text(encoding="utf-8", errors="replace") if notes.is_file() else ""
    return TaskText(task.title, text, dict(task.details))
