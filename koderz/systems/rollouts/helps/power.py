"""The power of a comparison of arms before it begins: the differences that its tasks can show."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from statistics import fmean
from typing import NamedTuple

from koderz.analysis.catalogue import load_catalogue
from koderz.analysis.runs import load_run
from koderz.errors import KoderzError
from koderz.plans.plan import Plan
from koderz_tracker.breakdown import by_task
from koderz_tracker.clusters import clusters_in, members
from koderz_tracker.stopping import tasks_needed

WANTED = 15  # points that a comparison is expected to show
_CHANCE = 0.8
_USUAL_SPREAD, _LEAST_SPREAD = 0.25, 0.02  # of rollouts of agents that differ in nothing
_FEWEST = 8  # tasks with several rollouts on record, for their spread to be taken for that of the plan
_MOST_RUNS = 20  # that are read
_NEVER = 20_000  # tasks


class Power(NamedTuple):
    """The differences of its arms that the tasks of a plan show in four of five cases."""

    tasks: int  # or clusters of tasks
    rollouts: int  # of all arms
    spread: float  # share of tasks on which two rollouts that differ in nothing end differently
    basis: str  # how that is known
    shows: int | None  # the smallest difference in points; None: no difference at all
    needed: int | None  # tasks that show a difference of WANTED points; None: more than 20,000

    @property
    def is_enough(self) -> bool:
        """Whether a difference of WANTED points is likely to be shown."""
        return self.shows is not None and self.shows <= WANTED

    @property
    def line(self) -> str:
        """The power as a sentence, and what it would take."""
        least = f"a difference of {self.shows} points or more in four of five cases"
        needed = f"more than {_NEVER:,}" if self.needed is None else f"{self.needed:,}"
        return (
            f"{self.tasks:,} tasks in up to {self.rollouts:,} rollouts show "
            f"{'no difference, however large' if self.shows is None else least}"
            f"{'' if self.is_enough else f'; {WANTED} points take {needed} tasks'} "
            f"(two rollouts of a task differ in {100 * self.spread:.0f} % of cases, {self.basis})"
        )


def power_of(plan: Plan) -> Power:
    """The power of a plan that stops once it is decided, by the spread on record or else by the usual one.

    Tasks with several rollouts in each arm count as if they had one, so they rather show smaller differences, too.
    """
    about = plan.record.until_decided
    assert about, "asked only of plans that stop once they are decided"
    tasks, alpha = len(members(about.order, clusters_in(plan.record))), about.alpha / (len(plan.arms) - 1)
    spread, basis = _USUAL_SPREAD, "as is usual, since too few are on record here"
    if len(known := [*_spreads_on_record(plan)]) >= _FEWEST:
        spread, basis = max(_LEAST_SPREAD, fmean(known)), f"as on {len(known)} tasks on record"

    def needed(points: int, most: int) -> int | None:
        # Arms part on at least as many tasks as they differ by.
        return tasks_needed(max(spread, points / 100), points / 100, alpha, chances=(_CHANCE,), most=most)[0]

    every = range(1, 100)
    least = bisect_left(every, True, key=lambda points: needed(points, tasks) is not None)
    shows = every[least] if least < len(every) else None
    return Power(tasks, plan.record.planned, spread, basis, shows, needed(WANTED, _NEVER))


def _spreads_on_record(plan: Plan) -> Iterator[float]:
    """For each task with several rollouts of one arm by the same agent and model, the share of pairs that differ."""
    agents, tasks = {(arm.solver.name, arm.model) for arm in plan.arms}, {task.id for task in plan.tasks}
    rows = [row for row in load_catalogue(plan.settings.results).rows if row.mode == plan.record.mode]
    for row in rows[:_MOST_RUNS]:
        with suppress(KoderzError):  # `koderz list` says what is wrong with a run
            for arm in load_run(plan.settings.results / row.run_id).arms.values():
                own = [each for each in arm.results if (each.solver, each.model) in agents]
                for task, passes in by_task(own, lambda each: each.success).items():
                    rollouts, passed = len(passes), sum(passes)
                    if task in tasks and rollouts > 1:
                        yield 2 * passed * (rollouts - passed) / (rollouts * (rollouts - 1))
