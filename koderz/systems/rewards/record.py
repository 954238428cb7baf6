"""The journal of a judge of rewards, and figures of its work by step of the training."""

from __future__ import annotations

import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from koderz.errors import KoderzError, StorageError
from koderz.systems.rewards.scores import Item, Score
from koderz_tracker.recorded import RewardedTasks
from koderz_tracker.records import Plan, Reward
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
            self._tracker = Tracker.create(
                self._settings.results, name, _plan(name, self._settings, self._served)
            )
            self._tasks = RewardedTasks(self.folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
                Reward(
                    **fields, reply=item.reply, program=program, step=item.step, graded=item.graded
                )
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
    tasks = {
        argument: {task.id: task.digest for task in suite.tasks}
        for argument, suite in suites.items()
    }
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


STEPS = 1024  # of which figures are kept, the latest
_A_DOUBLING = 16  # classes of durations: percentiles are off by 2 % at most
_LEAST = 1e-6  # seconds


class Durations:
    """Durations by size, from which percentiles are read."""

    def __init__(self) -> None:
        self._classes: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._classes[round(_A_DOUBLING * math.log2(max(seconds, _LEAST)))] += 1

    def percentile(self, share: float) -> float | None:
        """The duration that so many (0 to 1) don't exceed, in seconds; None if there is none."""
        left = math.ceil(share * self._classes.total())
        for size in sorted(self._classes):
            left -= self._classes[size]
            if left <= 0:
                return round(2 ** (size / _A_DOUBLING), 6)
        return None


class Figures:
    """Totals of a number of scores."""

    def __init__(self) -> None:
        self._scored = self._faults = self._tampered = 0
        self._reward = 0.0
        self._causes: Counter[str] = Counter()
        self._waiting, self._judging = Durations(), Durations()

    def add(self, score: Score, waited: float) -> None:
        """Count a score."""
        self._causes[score.cause or score.verdict] += 1
        self._waiting.add(waited)
        if score.reward is None:
            self._faults += 1
            return
        self._scored += 1
        self._reward += score.reward
        self._tampered += bool(score.tampering)
        self._judging.add(score.seconds)

    def as_dict(self) -> dict[str, Any]:
        """The figures: shares from 0 to 1, durations in seconds; None where nothing was scored."""
        replies = self._scored + self._faults
        return {
            "scored": self._scored,
            "faults": self._faults,
            "mean_reward": self._reward / self._scored if self._scored else None,
            "fault_rate": self._faults / replies if replies else None,
            "tamper_rate": self._tampered / self._scored if self._scored else None,
            "causes": dict(self._causes.most_common()),
            "waiting_p50": self._waiting.percentile(0.5),
            "waiting_p99": self._waiting.percentile(0.99),
            "judging_p50": self._judging.percentile(0.5),
            "judging_p99": self._judging.percentile(0.99),
        }


class Metrics:
    """Figures in all, and of each of the latest steps."""

    def __init__(self) -> None:
        self._all = Figures()
        self._steps: OrderedDict[int, Figures] = OrderedDict()

    def add(self, score: Score, waited: float, step: int | None) -> None:
        """Count a score, which waited so many seconds for its judge."""
        self._all.add(score, waited)
        if step is not None:
            self._steps.setdefault(step, Figures()).add(score, waited)
            self._steps.move_to_end(step)
            if len(self._steps) > STEPS:
                self._steps.popitem(last=False)

    def of(self, step: int | None) -> dict[str, Any]:
        """The figures of a step; None: of all scores."""
        return (self._all if step is None else self._steps.get(step, Figures())).as_dict()

    def as_dict(self, queue: int) -> dict[str, Any]:
        """All figures: `all`, `steps` by number, and the length of the `queue`."""
        steps = {str(step): figures.as_dict() for step, figures in sorted(self._steps.items())}
        return {"all": self._all.as_dict(), "steps": steps, "queue": queue}


def prometheus(found: Mapping[str, Any]) -> str:
    """The figures of `Metrics.as_dict` in Prometheus' text format."""
    lines = ["# TYPE koderz_judge_queue gauge", f"koderz_judge_queue {found['queue']}"]
    groups = [("all", found["all"]), *found["steps"].items()]
    for name in (name for name in found["all"] if name != "causes"):
        kind = "counter" if name in ("scored", "faults") else "gauge"
        lines.append(f"# TYPE koderz_judge_{name} {kind}")
        lines += [
            f'koderz_judge_{name}{{step="{step}"}} {each[name]:.9g}'
            for step, each in groups
            if each[name] is not None
        ]
    lines.append("# TYPE koderz_judge_verdicts counter")
    lines += [line for step, each in groups for line in _causes(step, each["causes"])]
    return "\n".join(lines) + "\n"


def _causes(step: str, causes: Mapping[str, int]) -> Iterator[str]:
    for cause, count in causes.items():
        name = cause.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'koderz_judge_verdicts{{step="{step}",cause="{name}"}} {count}'
