"""Two sets of results side by side: by task where they have tasks in common, each on its own where not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from koderz.analysis.runs import Run
from koderz.errors import KoderzError
from tracker.summary import Figures, Result

Measure = Callable[[Result], float]
Kind = Literal["single", "samples", "unpaired", "nothing"]


@dataclass(frozen=True, slots=True)
class Side:
    """One arm of one run."""

    run: Run
    arm: str

    @property
    def label(self) -> str:
        """Its run, and its arm where the run has several."""
        return f"{self.run.name} {self.arm}" if len(self.run.arms) > 1 else self.run.name

    @property
    def model(self) -> str:
        """The model that answers in this arm."""
        return next((result.model for result in self.results if result.model), self.run.model)

    @property
    def results(self) -> Sequence[Result]:
        return self.run.arms[self.arm].results

    @property
    def figures(self) -> Figures:
        return self.run.arms[self.arm].summary

    @property
    def faults(self) -> int:
        """How many experiments of this arm could not be judged."""
        return sum(fault.get("arm", fault.get("solver")) in (self.arm, None) for fault in self.run.faults)

    def by_task(self) -> dict[str, list[Result]]:
        """The results of each task, in the order of the run."""
        tasks: dict[str, list[Result]] = {}
        for result in self.results:
            tasks.setdefault(result.problem_id, []).append(result)
        return tasks


@dataclass(frozen=True, slots=True)
class Matched:
    """Results of A and B by task. `tasks` are those in common, in A's order."""

    a: dict[str, list[Result]]
    b: dict[str, list[Result]]
    tasks: list[str]
    kind: Kind

    @property
    def paired(self) -> bool:
        return bool(self.tasks)

    def means(self, measure: Measure) -> tuple[list[float], list[float]]:
        """One value a task, the mean of its samples: of the tasks in common, or where there are none, of all."""
        of_a, of_b = (self.tasks, self.tasks) if self.paired else (list(self.a), list(self.b))
        return [_mean(self.a[task], measure) for task in of_a], [_mean(self.b[task], measure) for task in of_b]


def match(a: Side, b: Side) -> Matched:
    """The tasks that both were judged on."""
    of_a, of_b = a.by_task(), b.by_task()
    common = [task for task in of_a if task in of_b]
    return Matched(of_a, of_b, common, _kind(of_a, of_b, common))


def sides_to_compare(a: Run, b: Run, arm: str | None = None) -> list[tuple[Side, Side]]:
    """Arm by arm where two runs share arms, else their main arms. Raises KoderzError for an arm that isn't there."""
    if arm is not None:
        return [(Side(a, _arm(a, arm)), Side(b, _arm(b, arm)))]
    shared = [name for name in a.arms if name in b.arms]
    if shared:
        return [(Side(a, name), Side(b, name)) for name in shared]
    return [(Side(a, list(a.arms)[-1]), Side(b, list(b.arms)[-1]))]


def own_arms(run: Run) -> list[tuple[Side, Side]]:
    """The first arm of a run as the baseline of each other one; empty where there is only one."""
    first, *others = run.arms
    return [(Side(run, first), Side(run, other)) for other in others]


def sides_of(run: Run, arm: str | None = None) -> list[Side]:
    """Every arm of a run, or the one asked for."""
    return [Side(run, name) for name in ([_arm(run, arm)] if arm is not None else run.arms)]


def arm_named(name: str, arms: Collection[str], run: str) -> str:
    """The arm that is meant, however its dashes are written. Raises KoderzError where the run has none of that name."""
    for solver in arms:
        if solver.replace("_", "-") == name.replace("_", "-"):
            return solver
    raise KoderzError(f"{run} has no arm {name}; it has {', '.join(arms)}")


def _arm(run: Run, arm: str) -> str:
    return arm_named(arm, run.arms, run.name)


def _kind(a: dict[str, list[Result]], b: dict[str, list[Result]], common: list[str]) -> Kind:
    if not a or not b:
        return "nothing"
    if not common:
        return "unpaired"
    return "single" if all(len(a[task]) == len(b[task]) == 1 for task in common) else "samples"


def _mean(results: Sequence[Result], measure: Measure) -> float:
    return sum(map(measure, results)) / len(results)
