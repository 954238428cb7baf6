"""Two sets of results side by side: paired by task if they have tasks in common, else each on its own.

Tasks of other tools' logs are clustered by a field of theirs, such as their repository, text or subject.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from koderz.analysis.logs import named_alike, reader_of
from koderz.analysis.measures import SUCCESS, headline_measure, value_of
from koderz.analysis.runs import Run, load_run, resolve, run_paths
from koderz.errors import KoderzError
from koderz.types import NOBODY
from koderz_tracker.breakdown import Mean, mean_of
from koderz_tracker.records import PASSES, Measure
from koderz_tracker.results import Clusters, Result, clusters_of, count_of
from koderz_tracker.sequential import SettledOrder, settled_order
from koderz_tracker.summary import Figures, compare_modes, figures

_Side = TypeVar("_Side", bound="Side")
Kind = Literal["single", "samples", "unpaired", "nothing"]


Values = Mapping[str, Sequence[float]]
"""Values of one measure: those of the samples, by task."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One arm of one run."""

    run: Run
    arm: str

    @property
    def label(self) -> str:
        """The run's name, with the arm if the run has several."""
        return f"{self.run.name} {self.arm}" if len(self.run.arms) > 1 else self.run.name

    @property
    def solver(self) -> str:
        """The solver of this arm; the arm's name contains it, and more if needed to tell arms apart."""
        return next((result.solver for result in self.results if result.solver), self.arm)

    @property
    def model(self) -> str:
        """The model in the role `main` of this arm."""
        return next((result.model for result in self.results if result.model), self.run.model)

    @property
    def simulated(self) -> bool:
        """Whether the arm uses the simulated model."""
        return self.run.is_simulated(self.arm)

    @property
    def is_real(self) -> bool:
        """Whether the arm uses a real model. An arm without models, such as a human's patch, is neither."""
        return not self.simulated and self.model != NOBODY

    @property
    def results(self) -> Sequence[Result]:
        return self.run.arms[self.arm].results

    @property
    def figures(self) -> Figures:
        return self.run.arms[self.arm].summary

    @property
    def measure(self) -> Measure:
        """The measure by which the arm is summed up."""
        return headline_measure(self.run)

    @property
    def average(self) -> Mean | None:
        """The mean of that measure if it isn't success; None if the arm has no values."""
        return self.figures.measures.get(self.measure.name)

    @property
    def is_summed_up(self) -> bool:
        """Whether the arm has values of the measure by which it is summed up."""
        return self.measure is SUCCESS or self.average is not None

    @property
    def faults(self) -> int:
        """The number of this arm's experiments that could not be judged."""
        return self.run.faults_of(self.arm)

    @property
    def missing(self) -> list[dict[str, Any]]:
        """Faults of this arm, without those on tasks that stand apart from its figures."""
        return self.run.missing_of(self.arm)

    def by_task(self) -> dict[str, list[Result]]:
        """The results of each task, in the order of the run."""
        tasks: dict[str, list[Result]] = {}
        for result in self.results:
            tasks.setdefault(result.problem_id, []).append(result)
        return tasks

    def values(self, measure: Measure) -> Values:
        """The values of a measure, by task; tasks without a value are left out."""
        return _values(self, measure.name)

    def mean(self, measure: Measure, *, together: int = 1) -> Mean | None:
        """The mean of a measure over the results, or None if none has it.

        Its interval is one of so many that hold `together` with 95 %.
        """
        values = self.values(measure)
        clusters = clusters_of(self.results)
        return (
            mean_of(values, measure, clusters, self.settled, together=together) if values else None
        )

    @property
    def settled(self) -> SettledOrder | None:
        """The settled tasks in the order of a run that stops once it is decided; None for another run."""
        about = self.run.until_decided
        if about is None:
            return None
        faulted = (str(each.get("problem_id")) for each in self.run.faulted(self.arm))
        return settled_order(about, self.arm, self.results, faulted)


@dataclass(frozen=True)
class Matched:
    """Values of one measure, of A and of B. `tasks` are those in common, in A's order."""

    measure: Measure
    a: Values
    b: Values
    tasks: Sequence[str]
    kind: Kind
    clusters: Clusters = field(default_factory=dict)
    order: Sequence[str] | None = None  # the settled tasks, if a run stops once it is decided
    # tasks whose replies are all the same in both, which are no evidence and left out
    same_replies: Sequence[str] = ()
    differing: int = 0  # tasks of one id that ask something else in A and in B, and so are no pairs

    @cached_property
    def cluster_count(self) -> int | None:
        """The number of clusters among the compared tasks; None if each task stands alone."""
        return count_of(self.tasks if self.paired else {*self.a, *self.b}, self.clusters)

    @property
    def paired(self) -> bool:
        return bool(self.tasks)

    @property
    def smallest_side(self) -> int:
        """The number of tasks on which a claim rests."""
        return len(self.tasks) if self.paired else min(len(self.a), len(self.b))

    def means(self) -> tuple[list[float], list[float]]:
        """One value a task, the mean of its samples: for the tasks in common, or if there are none, for all."""
        return self._means

    @cached_property
    def _means(self) -> tuple[list[float], list[float]]:
        if self.kind == "single":
            return [self.a[task][0] for task in self.tasks], [
                self.b[task][0] for task in self.tasks
            ]
        of_a, of_b = (self.tasks, self.tasks) if self.paired else (self.a, self.b)
        return [fmean(self.a[task]) for task in of_a], [fmean(self.b[task]) for task in of_b]


@lru_cache(maxsize=1024)  # a leaderboard asks for those of each side as often as there are others
def _values(side: Side, measure: str) -> Values:
    tasks: dict[str, list[float]] = {}
    for result in side.results:
        if (value := value_of(result, measure)) is not None:
            tasks.setdefault(result.problem_id, []).append(value)
    return tasks


def match(a: Side, b: Side, measure: Measure = SUCCESS) -> Matched:
    """The values of both sides, matched by task."""
    of_a, of_b, clusters_of_b = a.values(measure), b.values(measure), clusters_of(b.results)
    # Of runs that stop once they are decided, the older one gives the order of the settled tasks.
    deciding = [side for side in (a, b) if side.run.until_decided]
    order = None
    if deciding:
        older = min((side.run for side in deciding), key=lambda run: (run.start_time, run.name))
        first, *others = (
            side.settled or SettledOrder([]) for side in (a, b) if side.run.name == older.name
        )
        settled = {*first}.intersection(*others)
        order = SettledOrder((task for task in first if task in settled), first.largest)
    is_told = a.run.asked and b.run.asked
    differing = (
        [task for task in of_b if task in of_a and _differ(task, a.run, b.run)] if is_told else []
    )
    if differing:
        names = {task: f"{task} of B" for task in differing}  # another task, whatever its id
        of_b = {names.get(task, task): values for task, values in of_b.items()}
        clusters_of_b = {names.get(task, task): cluster for task, cluster in clusters_of_b.items()}
        order = order and SettledOrder([task for task in order if task not in names], order.largest)
    same = [task for task in same_replies(a, b) if task in of_a and task in of_b]
    if same:
        left_out = {*same}
        of_a, of_b = (
            {task: own for task, own in of.items() if task not in left_out} for of in (of_a, of_b)
        )
        # tasks that are left on one side alone are no test of the others
        if not of_a.keys() & of_b.keys():
            of_a = of_b = {}
        order = order and SettledOrder(
            [task for task in order if task not in left_out], order.largest
        )
    clusters = clusters_of_b | clusters_of(a.results)  # an older run doesn't tell its own
    found = matched(measure, of_a, of_b, clusters, order)
    return dataclasses.replace(found, differing=len(differing), same_replies=same)


def replies_of(side: Side) -> dict[str, set[tuple[str, int]]]:
    """By task, the replies that its results are made of: each is named by RUN/EXPERIMENT and call in which it was paid.

    Results of runs before there was reuse, or without a run's id, have none that others could share.
    """
    found: dict[str, set[tuple[str, int]]] = {}
    for result in side.results:
        found.setdefault(result.problem_id, set()).update(_replies_in(side, result))
    return found


def _replies_in(side: Side, result: Result) -> Iterator[tuple[str, int]]:
    yield from ((origin, call) for origin, calls in result.reused.items() for call in calls)
    if side.run.run_id and result.experiment_id:
        yield from (
            (f"{side.run.run_id}/{result.experiment_id}", number)
            for number in range(1, result.calls + 1)
        )


def told_apart(sides: Sequence[Side]) -> Iterator[tuple[Side, Result]]:
    """The results of several arms, without those that are made of a reply which one before is made of, too."""
    has_copies = any(result.reused for side in sides for result in side.results)
    seen: set[tuple[str, int]] = set()
    for side in sides:
        for result in side.results:
            own = {*_replies_in(side, result)} if has_copies else set()
            if seen.isdisjoint(own):
                yield side, result
            seen |= own


@lru_cache(maxsize=1024)
def _has_copies(side: Side) -> bool:
    return any(result.reused for result in side.results)


@lru_cache(maxsize=8)  # since each measure of a comparison asks for them
def shared_replies(a: Side, b: Side) -> Mapping[str, int]:
    """By task, the number of replies that two arms share, which is no new evidence on either; without tasks of none."""
    if not (_has_copies(a) or _has_copies(b)):
        return {}
    of_a, of_b = replies_of(a), replies_of(b)
    shared = {task: len(of_a[task] & of_b[task]) for task in of_a if task in of_b}
    return {task: count for task, count in shared.items() if count}


def same_replies(a: Side, b: Side) -> list[str]:
    """The tasks whose replies are all the same on both sides, so that nothing but the judge can differ."""
    shared = shared_replies(a, b)
    calls = [_calls_by_task(side) for side in (a, b)] if shared else []
    return [task for task, count in shared.items() if all(own[task] == count for own in calls)]


def judged_apart(a: Side, b: Side, tasks: Sequence[str]) -> list[str]:
    """The tasks among these on which the verdicts of the two sides differ."""
    verdicts: list[dict[str, list[tuple[int, str, bool, float | None]]]] = []
    for results in (side.by_task() for side in (a, b)):
        told = {
            task: [(each.sample, each.verdict, each.success, each.score) for each in results[task]]
            for task in tasks
        }
        verdicts.append({task: sorted(own) for task, own in told.items()})
    return [task for task in tasks if verdicts[0][task] != verdicts[1][task]]


def _calls_by_task(side: Side) -> Counter[str]:
    calls: Counter[str] = Counter()
    for result in side.results:
        calls[result.problem_id] += max(0, result.calls)
    return calls


def _differ(task: str, a: Run, b: Run) -> bool:
    """Whether a task asks something else in two runs, as far as both tell by digests of one kind."""
    of_a, of_b = a.asked.get(task, ""), b.asked.get(task, "")
    return of_a != of_b and len(of_a) == len(of_b)  # those of logs are of other words, and longer


def matched(
    measure: Measure,
    a: Values,
    b: Values,
    clusters: Clusters = MappingProxyType({}),
    order: Sequence[str] | None = None,
) -> Matched:
    """Values by task, paired where A and B have tasks in common."""
    if (
        measure.two_valued
        and measure.name != PASSES
        and any(value not in (0, 1) for by in (a, b) for values in by.values() for value in values)
    ):
        measure = replace(measure, two_valued=False)  # whatever its suite says
    common = [task for task in a if task in b]
    kind: Kind = "samples"
    if not a or not b:
        kind = "nothing"
    elif not common:
        kind = "unpaired"
    elif all(len(a[task]) == len(b[task]) == 1 for task in common):
        kind = "single"
    return Matched(measure, a, b, common, kind, clusters, order)


def pairs_to_compare(
    runs: Sequence[Run], arm: str | None = None, *, allow_simulated: bool = False
) -> list[tuple[Side, Side]]:
    """The pairs of arms of two runs, or of one run's own arms, which may be none.

    Without `arm`, simulated arms give way to real ones. Arms of one run that have nothing of what they are summed up
    by, such as unchanged code, are left out. Raises KoderzError for an arm that isn't there, and, unless
    `allow_simulated`, where a simulated arm would stand against a real one.
    """
    keep = list if arm is not None or allow_simulated else believed
    if len(runs) == 2:
        # The pairs of arms that both runs share, else their last arms.
        of_a, of_b = (keep(sides_of(run, arm)) for run in runs)
        named = {side.arm: side for side in of_b}
        pairs = [(side, named[side.arm]) for side in of_a if side.arm in named] or [
            (of_a[-1], of_b[-1])
        ]
    else:
        # Each selected arm with its baseline: arms that name one, else all but the first with the first.
        run = runs[0]
        wanted = [side.arm for side in sides_of(run, arm)]
        sides = keep(sides_of(run))
        first, *others = [side.arm for side in sides if side.is_summed_up] or [
            side.arm for side in sides
        ]
        bases = {name: run.arms[name].baseline for name in (first, *others)}
        stated = {name: base for name, base in bases.items() if base in bases}
        arms = stated or dict.fromkeys(others, first)
        pairs = [
            (Side(run, base), Side(run, name)) for name, base in arms.items() if name in wanted
        ]
    if not allow_simulated:
        refuse_simulated(pairs)
    return pairs


def believed(sides: Sequence[_Side]) -> list[_Side]:
    """The sides without simulated ones, if any is real."""
    return (
        [side for side in sides if not side.simulated]
        if any(side.is_real for side in sides)
        else list(sides)
    )


def refuse_simulated(pairs: Iterable[tuple[Side, Side]]) -> None:
    """Raises KoderzError if a simulated arm is paired with a real one."""
    for a, b in pairs:
        for one, other in ((a, b), (b, a)):
            if one.simulated and other.is_real:
                raise KoderzError(
                    f"{one.label} is of the SIMULATED model, {other.label} of a real one, so together they mean "
                    "nothing; to see them side by side all the same: --allow-simulated"
                )


def sides_of(run: Run, arm: str | None = None) -> list[Side]:
    """Every arm of a run, or the named one."""
    return [
        Side(run, name)
        for name in ([arm_named(arm, run.arms, run.name)] if arm is not None else run.arms)
    ]


def chosen_sides(
    names: Sequence[str],
    results: Path,
    *,
    arm: str | None = None,
    allow_simulated: bool = False,
    cluster: str | None = None,
) -> tuple[list[Side], list[str]]:
    """The arms of the named runs, else of all; and a sentence for each that was left out or still goes on.

    Without names, simulated runs give way to real ones and files that can't be read to those that can; with
    names, both are a KoderzError. So is an arm that no run has. `cluster`: the field that `clustered` takes.
    """
    if names:
        left_out = list[str]()
        runs = resolve(names, results, allow_simulated=allow_simulated, left_out=left_out)
    else:
        runs, left_out = _all(results, allow_simulated=allow_simulated)
    runs = clustered(runs, cluster) if cluster else runs
    going = [f"{run.name} {run.progress}" for run in runs if run.is_going]
    sides = [side for run in runs for side in _sides(run, arm, must_have=bool(names))]
    shown = sides if allow_simulated else believed(sides)
    if gone := [side.label for side in sides if side not in shown]:
        left_out.append(
            f"SIMULATED arms are left out: {', '.join(gone)}; --allow-simulated takes them in"
        )
    return shown, left_out + going


def arm_named(name: str, arms: Collection[str], run: str) -> str:
    """The arm with this name, whichever dashes are written. Raises KoderzError if the run has none."""
    for solver in arms:
        if solver.replace("_", "-") == name.replace("_", "-"):
            return solver
    raise KoderzError(f"{run} has no arm {name}; it has {', '.join(arms)}")


def _all(results: Path, *, allow_simulated: bool) -> tuple[list[Run], list[str]]:
    runs, notes = [], []
    for path in run_paths(results):
        try:
            runs.append(load_run(path))
        except KoderzError as error:
            notes.append(f"left out: {error}")
    if not runs:
        raise KoderzError(
            "; ".join(notes) or f"{results} holds no run yet; make one with: koderz benchmark 0 10"
        )
    published = [run for run in runs if not run.generated]
    if published and len(published) < len(runs):
        notes.append(
            f"{len(runs) - len(published)} runs of generated tasks are left out; name them to see them"
        )
        runs = published
    real = [run for run in runs if not run.simulated]
    if real and len(real) < len(runs) and not allow_simulated:
        left_out = f"{len(runs) - len(real)} runs of the SIMULATED model are left out"
        notes.append(f"{left_out}; --allow-simulated takes them in")
        runs = real
    return named_alike(runs), notes


def _sides(run: Run, arm: str | None, *, must_have: bool) -> list[Side]:
    wanted = arm.replace("_", "-") if arm is not None else None
    if must_have or wanted is None or wanted in run.arms:
        return sides_of(run, arm)
    return []


HELD = ("cpus", "memory_mb", "storage_mb", "network", "agent_seconds", "verifier_seconds")
"""The resources that are compared, among those of `Result.resources`."""

UNEQUAL = "unequal resources"


def unequal_resources(sides: Sequence[Side]) -> list[str]:
    """A phrase for each resource of which two sides had different amounts on a task, with the first such task.

    Nothing for results on whose resources nothing is recorded.
    """
    held = [(side, _held(side)) for side in sides]
    found: dict[str, str] = {}
    for (a, of_a), (b, of_b) in combinations(held, 2):
        for name, phrase in _differing(a.label, of_a, b.label, of_b):
            found.setdefault(name, phrase)
    return [*found.values()]


def require_equal_resources(*compared: Sequence[Side]) -> None:
    """Raises KoderzError, which names the resources, if sides that are compared had different ones on a task."""
    if differing := next(filter(None, map(unequal_resources, compared)), []):
        names = ", ".join(phrase.partition(" ")[0] for phrase in differing)
        raise KoderzError(
            f"unequal resources: {names} ({differing[0]}); --unequal-resources compares all the same"
        )


def _held(side: Side) -> dict[str, list[Mapping[str, Any]]]:
    """The resources of each task's results, as far as they are recorded."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in side.results:
        if result.resources:
            found.setdefault(result.problem_id, []).append(result.resources)
    return found


def _differing(
    a: str,
    of_a: Mapping[str, Sequence[Mapping[str, Any]]],
    b: str,
    of_b: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, str]]:
    for name in HELD:
        for task in of_a:
            left, right = (
                sorted({_message(each.get(name)) for each in own.get(task, ())})
                for own in (of_a, of_b)
            )
            if left and right and left != right:
                yield (
                    name,
                    f"{name} of {task} is {' and '.join(left)} in {a}, {' and '.join(right)} in {b}",
                )
                break


def _message(value: Any) -> str:
    if value is None:
        return "unlimited"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def clustered(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs, with tasks of one value of the field in one cluster. A task without the field stands alone.

    What a log doesn't say of a task is taken from the others. Raises KoderzError for a run of koderz' own, whose plan
    has its clusters, and for a log in which no task has the field.
    """
    own = [_labels(run, name) for run in runs]
    known = {task: value for each in reversed(own) for task, value in each.items()}
    return [_in_clusters(run, known | each) for run, each in zip(runs, own, strict=True)]


def _labels(run: Run, name: str) -> dict[str, str]:
    """The value of the field by task."""
    reader = reader_of(run.path) if run.is_log else None
    if reader is None:
        raise KoderzError(
            f"--cluster {name} takes a field of other tools' logs; the clusters of {run.name} are those of its plan, "
            "which --cluster-column names before it runs"
        )
    return reader(run.path).values(name, run.path)


def _in_clusters(run: Run, clusters: dict[str, str]) -> Run:
    arms = {}
    for name, arm in run.arms.items():
        results = [replace(each, cluster=clusters.get(each.problem_id, "")) for each in arm.results]
        own = figures(
            results, arm.summary.baseline_cost, run.measures, None, len(run.missing_of(name))
        )
        arms[name] = dataclasses.replace(arm, results=results, summary=own)
    return dataclasses.replace(
        run, arms=arms, comparison=run.comparison and compare_modes(arms, run.comparison.arms)
    )
