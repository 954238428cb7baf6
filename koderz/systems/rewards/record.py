"""The journal of a judge of rewards, and which tasks were measured or rewarded before."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from koderz.errors import KoderzError, StorageError
from koderz.systems.rewards.scores import Item, Score
from koderz_tracker.records import Plan, Reward
from koderz_tracker.rewards import RewardedTasks
from koderz_tracker.runs import read_plan, run_folders

if TYPE_CHECKING:
    from koderz.settings.schema import Settings
    from koderz.systems.rewards.subjects import ServedSuite
    from koderz_tracker.tracker import Tracker


class Recorder:
    """Writes scores to a journal before they are answered. Without settings it records nothing."""

    def __init__(self, settings: Settings | None, served: Sequence[ServedSuite]) -> None:
        self._settings, self._served = settings, served
        self.folder: Path | None = None
        self._tracker: Tracker | None = None
        self._tasks: RewardedTasks | None = None

    def __enter__(self) -> Self:
        """Begins the journal with its plan. Raises KoderzError if the results folder can't be written."""
        if self._settings:
            from koderz_tracker.tracker import Tracker

            name = f"rewards_{secrets.token_hex(4)}_{datetime.now():%Y%m%d_%H%M%S}"
            self.folder = self._settings.results / name
            self._tracker = Tracker.create(self._settings.results, name, _plan(name, self._settings, self._served))
            self._tasks = RewardedTasks(self.folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tracker:
            self._tracker.__exit__(kind, error, trace)

    async def record(self, item: Item, score: Score, program: str | None) -> None:
        """Writes a score, and returns once it is on disk. Raises StorageError if the disk refuses.

        After that the journal is opened anew, so that scores count again once there is room.
        """
        if self.folder is None:
            return
        tracker = self._tracker or self._reopened()
        assert self._tasks
        try:
            if score.reward is not None:
                self._tasks.add(score.task_digest)
            fields = asdict(score) | {"tampering": list(score.tampering)}
            await tracker.record(
                Reward(**fields, reply=item.reply, program=program, step=item.step, graded=item.graded)
            )
        except StorageError:
            if self._tracker is tracker:
                self._tracker = None
                tracker.__exit__(None, None, None)
            raise

    def _reopened(self) -> Tracker:
        from koderz_tracker.tracker import Tracker

        assert self.folder
        try:
            self._tracker = Tracker.reopen(self.folder)
        except StorageError:
            raise
        except KoderzError as error:
            raise StorageError(str(error)) from None
        return self._tracker


def _plan(name: str, settings: Settings, served: Iterable[ServedSuite]) -> Plan:
    from koderz.plans.plan import describe_environment
    from koderz.suites import suite_digest

    suites = {each.argument: each.suite for each in served}
    digests = {argument: suite_digest(suite) for argument, suite in suites.items()}
    limits = {argument: asdict(suite.limits) for argument, suite in suites.items()}
    tasks = {argument: {task.id: task.digest for task in suite.tasks} for argument, suite in suites.items()}
    return Plan(
        run_id=name,
        mode="rewards",
        arms=(),
        tasks=[task for each in tasks.values() for task in each],
        samples=0,
        config={"suites": [*suites], "sandbox": settings.sandbox, "limits": limits},
        environment=describe_environment() | {"dataset_digests": digests},
        details={"suites": tasks},
    )


def measured_tasks(results: Path, served: Iterable[ServedSuite]) -> list[str]:
    """A sentence on the served tasks that runs in the results folder have measured, a suite each."""
    runs = []
    for folder in run_folders(results):
        with suppress(KoderzError):
            runs.append((folder.name, read_plan(folder)))
    notes = []
    for each in served:
        digests = {task.digest for task in each.suite.tasks}
        found = {name: digests & {*_digests(plan)} for name, plan in runs}
        names = [name for name, shared in found.items() if shared]
        if names:
            number = len(set().union(*found.values()))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            notes.append(
                f"{number} of the {len(each.suite.tasks)} tasks of {each.argument} were measured in {names[-1]}{more}; "
                "a model rewarded on them can't be measured on them"
            )
    return notes


def _digests(plan: Plan) -> Iterable[str]:
    try:
        return plan.basis.matches.get("task", {}).values()
    except KoderzError:
        return ()
