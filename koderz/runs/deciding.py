"""Decides, while a run goes on, when its arms are told apart: from the longest prefix of settled tasks alone."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from koderz.plans.deciding import bounds_in, compared_arms
from koderz.plans.plan import Identity, Plan
from koderz_tracker.basis import UntilDecided
from koderz_tracker.index import CODES, experiment_number, load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.rates import Interval
from koderz_tracker.records import PASSES, Decision, Experiment, Fault, Record
from koderz_tracker.results import clusters_in, members
from koderz_tracker.sequential import SEQUENCE, as_e_value
from koderz_tracker.stopping import OpenDecision, Outcome, StoppingRule, path_of

_OF_DECIDING = tuple(CODES[name] for name in ("experiment", "fault", "decision"))
# times the concurrency: experiments that may be begun beyond the first task that is not settled
_AHEAD = 3


@dataclass(slots=True)
class ExperimentOutcomes:
    """Outcomes of the run's experiments by their numbers."""

    measure: str
    values: dict[int, float | None] = field(default_factory=dict)  # of those that were judged
    faults: Counter[int] = field(default_factory=Counter)
    costs: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # US dollars

    def note(self, record: Experiment | Fault) -> None:
        number = experiment_number(record.experiment_id)
        self.costs[number] = record.cost
        if isinstance(record, Fault):
            self.faults[number] += 1
        elif self.measure == PASSES:
            self.values[number] = float(record.success)
        else:
            own = {**(record.metrics or {}), "score": record.score}
            self.values[number] = own.get(self.measure)

    def is_open(self, number: int) -> bool:
        """Whether an experiment may yet be judged: a fault is tried once more."""
        return number not in self.values and self.faults[number] < 2


class TaskPair:
    """The experiments of both arms on a task."""

    def __init__(self, task: str, numbers: Mapping[str, Sequence[int]], a: str, b: str) -> None:
        self.task, self.arms = task, {a: numbers[a], b: numbers[b]}

    @property
    def numbers(self) -> Iterator[int]:
        return (number for numbers in self.arms.values() for number in numbers)


class ArmsCompared:
    """The comparison of one arm with the one named in the plan.

    Units are counted in their drawn order. One with a fault stays where it is until the fault was tried again: if it
    were moved or left out, what a model does where it would fail would select the tasks that count.
    """

    def __init__(
        self,
        arms: tuple[str, str],
        units: Sequence[Sequence[TaskPair]],
        about: UntilDecided,
        rule: StoppingRule,
        bounds: Interval,
    ) -> None:
        self.a, self.b = arms
        self.trial = OpenDecision(rule)
        self.decision: Decision | None = None
        self.planned = sum(map(len, units))
        self._largest = max(map(len, units), default=1)
        self._about, self._units = about, units
        self._at = 0
        self._counted: list[TaskPair] = []
        self._means: list[tuple[float, float]] = []
        self._left_out: Counter[str] = Counter()
        self._costs: list[float] = []
        self._bounds = bounds
        self._scale = 100.0 if about.measure == PASSES else bounds[1] - bounds[0]
        self._told = (0, "")  # how many tasks were counted when the text was made, and it

    @property
    def tasks(self) -> int:
        return len(self._counted)

    @property
    def is_final(self) -> bool:
        return self.decision is not None and self.decision.is_final

    @property
    def is_cut_short(self) -> bool:
        """Whether it is decided for good before its last task."""
        return self.is_final and self.decision is not None and self.decision.outcome != "tasks"

    @property
    def text(self) -> str:
        """The state of the comparison: tasks, difference, interval and evidence; in the end, how it ended."""
        if self.decision and self.decision.is_final:
            return f"{self.decision.outcome} after {self.decision.tasks}/{self.planned} tasks"
        if not self.tasks:
            return "no task counted yet"
        if self._told[0] != self.tasks:
            evidence, alpha = self.trial.evidence, self.trial.rule.alpha
            mean, low, high = (
                self._scale * value for value in (evidence.mean, *self.trial.interval)
            )
            unit, digits = (
                ("points", ".1f")
                if self._about.measure == PASSES
                else (f"in {self._about.measure}", ".3g")
            )
            shown = f"{mean:+{digits}} {unit} ({low:+{digits}} to {high:+{digits}})"
            evidence_of = f"evidence {as_e_value(self.trial.log_e):.3g} of {1 / alpha:.4g}"
            self._told = self.tasks, f"{self.tasks}/{self.planned} tasks, {shown}, {evidence_of}"
        return self._told[1]

    @property
    def waits_for(self) -> str:
        """The last task of the first unit that is not settled; empty if all are."""
        return self._units[self._at][-1].task if self._at < len(self._units) else ""

    def advance(self, state: ExperimentOutcomes) -> Outcome | None:
        """Counts what has been settled since; returns the outcome if that makes one."""
        while self._at < len(self._units):
            unit = self._units[self._at]
            if any(state.is_open(number) for pair in unit for number in pair.numbers):
                return None
            self._at += 1
            if outcome := self._count(unit, state):
                return outcome
        return "tasks"

    def _count(self, unit: Sequence[TaskPair], state: ExperimentOutcomes) -> Outcome | None:
        """Counts a unit: a task, or the tasks of a cluster, which weighs as much as it has tasks.

        Pairs that could not be judged are left out, and count by what they might have been.
        """
        differences, ends = list[float](), list[Interval]()
        low, high = self._bounds
        for pair in unit:
            self._costs += [state.costs[number] for number in pair.numbers]
            means: dict[str, Interval] = {}  # with what is missing at either bound
            is_judged = True
            for arm, numbers in pair.arms.items():
                values = [
                    value for number in numbers if (value := state.values.get(number)) is not None
                ]
                judged = [value for value in values if low <= value <= high]
                missing = len(numbers) - len(judged)
                means[arm] = fmean([*judged, *[low] * missing]), fmean([*judged, *[high] * missing])
                self._left_out[arm] += bool(missing)
                is_judged &= not missing
            a, b = means[self.a], means[self.b]
            ends.append(((b[0] - a[1]) / (high - low), (b[1] - a[0]) / (high - low)))
            if is_judged:
                self._counted.append(pair)
                self._means.append((a[0], b[0]))
                differences.append(ends[-1][0])
        value, weight = fmean(differences) if differences else None, len(unit) / self._largest
        if len(differences) == len(unit):
            return self.trial.add(value, weight=weight)
        worst = fmean(low for low, _ in ends), fmean(high for _, high in ends)
        return self.trial.add(value, worst, weight=weight, judged=len(differences) / self._largest)

    def ended(self, outcome: Outcome) -> Decision:
        """Ends the comparison with this outcome."""
        self.decision = self._decision(outcome)
        return self.decision

    def _decision(self, outcome: Outcome) -> Decision:
        rule, evidence, about = self.trial.rule, self.trial.evidence, self._about
        scale = self._scale
        of_means = 100.0 if about.measure == PASSES else 1.0
        left_out = sum(self._left_out.values())
        cost = math.fsum(self._costs)
        left = self.planned - self.tasks - left_out
        a, b = (
            (of_means * fmean(side) for side in zip(*self._means, strict=True))
            if self._means
            else (None, None)
        )
        low, high = evidence.interval(rule.alpha)
        least, most = self.trial.interval
        return Decision(
            outcome=outcome,
            a=self.a,
            b=self.b,
            tasks=self.tasks,
            planned=self.planned,
            a_mean=a,
            b_mean=b,
            difference=scale * evidence.mean if self._means else None,
            interval=(scale * low, scale * high) if self._means else None,
            interval_method=SEQUENCE,
            e_value=evidence.e_value,
            alpha=rule.alpha,
            margin=about.margin,
            measure=about.measure,
            left_out=dict(+self._left_out),
            interval_bounds=(scale * least, scale * most) if left_out else None,
            cost=cost,
            cost_saved=cost * max(0, left) / (self.tasks + left_out)
            if self.tasks + left_out
            else 0.0,
            path=[
                (point.tasks, point.e_value, scale * point.low, scale * point.high)
                for point in path_of(self.trial.values, rule.alpha, self.trial.weights)
            ],
        )


def recorded_outcomes(folder: Path) -> Iterator[Record]:
    """The ends of experiments and the decisions in the journal of the run in `folder`, in their order."""
    journal = folder / NAME
    spans = load_index(journal).columns("code", "length", "offset")
    return read_records(
        journal, [(offset, length) for code, length, offset in spans if code in _OF_DECIDING]
    )


class Decider:
    """Follows the outcomes of a run whose plan has `until_decided`, and decides its comparisons."""

    def __init__(self, plan: Plan, recorded: Iterable[Record], *, goes_past: bool = False) -> None:
        """Takes in what is on record so far. `goes_past`: everything is asked, whatever is decided."""
        about = plan.record.until_decided
        assert about, "made only for runs that are decided on"
        self._goes_past = goes_past
        self._state = ExperimentOutcomes(about.measure)
        self._places = {task: place for place, task in enumerate(about.order)}
        self._ahead = _AHEAD * plan.settings.concurrency
        self._begun: list[int] = []  # the places of the tasks that have begun since, in order
        self._experiments = {
            experiment_number(each.experiment_id): each for each in plan.experiments()
        }
        numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, each in self._experiments.items():
            numbers[each.task.id, each.arm.name].append(number)
        self._comparisons = [*_comparisons(plan, about, numbers)]
        for record in recorded:
            if isinstance(record, Decision) and record.is_final:
                next(each for each in self._comparisons if each.b == record.b).decision = record
            elif isinstance(record, Experiment | Fault):
                self._state.note(record)
        self._faulted = deque(number for number in self._experiments if self._is_to_retry(number))

    @property
    def leaves_rest(self) -> bool:
        """Whether no more is to be asked: every comparison is decided, and one of them before its last task."""
        is_over = all(each.is_final for each in self._comparisons)
        return (
            is_over and any(each.is_cut_short for each in self._comparisons) and not self._goes_past
        )

    def text(self) -> str:
        """The state of the evidence, for the screen."""
        several = len(self._comparisons) > 1
        return " · ".join(
            f"{each.b}: {each.text}" if several else each.text for each in self._comparisons
        )

    def is_settled(self, arm: str) -> bool:
        """Whether an arm is asked no more: all comparisons that it takes part in are decided before their last task."""
        mine = [each for each in self._comparisons if arm in (each.a, each.b)]
        return all(each.is_cut_short for each in mine) and not self._goes_past

    def begins(self, task: str) -> None:
        """Notes that an experiment on a task begins."""
        self._begun.append(self._places.get(task, len(self._places)))

    @property
    def is_far_ahead(self) -> bool:
        """Whether enough is begun beyond the first task that is not settled: it is paid for, perhaps in vain."""
        waiting = [each.waits_for for each in self._comparisons if not each.is_final]
        behind = min((self._places[task] for task in waiting if task), default=len(self._places))
        is_far = len(self._begun) - bisect_right(self._begun, behind) >= self._ahead
        return is_far and not self.has_retries and not self._goes_past

    def take(self, lines: Iterable[Record]) -> list[Decision]:
        """Takes in lines that have become durable; returns the decisions that follow."""
        for line in lines:
            if isinstance(line, Experiment | Fault):
                self._state.note(line)
                number = experiment_number(line.experiment_id)
                self._faulted += [number] * self._is_to_retry(number)
        open_ones = [each for each in self._comparisons if not each.is_final]
        return [each.ended(outcome) for each in open_ones if (outcome := each.advance(self._state))]

    def out_of_money(self) -> list[Decision]:
        """Ends the comparisons that are open because the cap is reached."""
        return [each.ended("money") for each in self._comparisons if not each.is_final]

    @property
    def has_retries(self) -> bool:
        """Whether an experiment that ended in a fault is to be tried again, of a comparison that is open."""
        while self._faulted and not self._is_to_retry(self._faulted[0]):
            self._faulted.popleft()
        return bool(self._faulted)

    def retry(self) -> Identity:
        """The next experiment to try again, if it `has_retries`; each is handed out once."""
        return self._experiments[self._faulted.popleft()]

    def _is_to_retry(self, number: int) -> bool:
        state, experiment = self._state, self._experiments.get(number)
        if experiment is None or state.faults[number] != 1 or not state.is_open(number):
            return False
        arm, is_ordered = experiment.arm.name, experiment.task.id in self._places
        return is_ordered and any(
            arm in (each.a, each.b) and not each.is_final for each in self._comparisons
        )


def _comparisons(
    plan: Plan, about: UntilDecided, numbers: Mapping[tuple[str, str], Sequence[int]]
) -> Iterator[ArmsCompared]:
    others = [*compared_arms(plan.record)]
    bounds = bounds_in(plan.record, about.measure)
    scale = 100.0 if about.measure == PASSES else bounds[1] - bounds[0]
    for b in others:
        both = [
            task for task in about.order if (task, about.arm) in numbers and (task, b) in numbers
        ]
        units = [
            [
                TaskPair(task, {arm: numbers[task, arm] for arm in (about.arm, b)}, about.arm, b)
                for task in unit
            ]
            for unit in members(both, clusters_in(plan.record))
        ]
        margin = None if about.margin is None else about.margin / scale
        rule = StoppingRule(
            len(units), about.alpha / len(others), margin, about.fewest, plan.settings.seed
        )
        yield ArmsCompared((about.arm, b), units, about, rule, bounds)
