"""Results completed where faults left them out: what was not judged may be anything that its measure allows.

Faults need not be missing at random, since a server may hang on just what its model would fail. A claim on results
with faults holds only where it survives their worst completion. Source: C. F. Manski, "Partial identification of
probability distributions" (2003), chapter 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from koderz.analysis.inference import means_of, p_of
from koderz.analysis.measures import SUCCESS, declared
from koderz.analysis.pairs import Matched, Side, match
from koderz.analysis.runs import FAULT, Run
from koderz.analysis.statistics import holm
from koderz_tracker.breakdown import bounds_of
from koderz_tracker.records import Measure
from koderz_tracker.results import Result
from koderz_tracker.summary import compare_modes, figures

_NAMED = 3  # tasks of faults in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The differences, B less A, that faults on the compared tasks could make; points for rates."""

    a: Sequence[str] = field(repr=False)  # the tasks of A's faults, one for each
    b: Sequence[str] = field(repr=False)  # those of B's
    # the least and the most that it can be; None: the measure has no bounds
    differences: tuple[float, float] | None
    # with what is missing set against the leader; 1 where another leads then, or there are no bounds
    p_value: float
    p_holm: float  # corrected as that of the comparison
    # corrected for a judge's errors, over all completions
    interval: tuple[float, float] | None = None
    # whether a difference is shown by what was judged, and not at the worst completion
    could_turn: bool = False

    @property
    def text(self) -> str:
        """The faults as text for people: `40 faults of B (T/60, T/61, T/62, …)`."""
        return self.named("A", "B")

    def named(self, a: str, b: str) -> str:
        """The faults as text for people, with the names of their sides."""
        return " and ".join(
            faults_text(tasks, name) for tasks, name in ((self.a, a), (self.b, b)) if tasks
        )

    @property
    def reason(self) -> str:
        """The reason for claiming nothing."""
        return f"{self.text} could turn it{'' if self.differences else ', since the measure has no bounds'}"

    def corrected(
        self, difference: float | None, interval: tuple[float, float] | None
    ) -> Completion:
        """The completion of a difference with this interval, corrected for a judge's errors; itself without one.

        The correction is taken to be the same for what is missing.
        """
        if difference is None or interval is None or self.differences is None:
            return self
        low, high = (
            limit + end - difference for limit, end in zip(interval, self.differences, strict=True)
        )
        return replace(self, interval=(low, high))


def at_worst(
    claims: Sequence[tuple[Completion | None, float | None, bool]], alpha: float
) -> list[Completion | None]:
    """The completions of claims that are made at once, with what could turn each, corrected by Holm's procedure.

    `claims`: the completion, the p-value, and whether a difference is shown by what was judged.
    """
    p_values = [completion.p_value if completion else p for completion, p, _ in claims]
    adjusted = iter(holm([p for p in p_values if p is not None]))
    found: list[Completion | None] = []
    for completion, p, is_shown in claims:
        p_holm = 1.0 if p is None else next(adjusted)
        if completion is None:
            found.append(None)
            continue
        limits = completion.interval
        holds = not limits[0] <= 0 <= limits[1] if limits else p_holm <= alpha
        found.append(replace(completion, p_holm=p_holm, could_turn=is_shown and not holds))
    return found


def faults_text(tasks: Sequence[str], name: str) -> str:
    """The number of faults of a side, with the first of their tasks."""
    some = ", ".join(dict.fromkeys(tasks[:_NAMED]))
    return f"{len(tasks)} fault{'s' * (len(tasks) != 1)} of {name} ({some}{', …' if len(tasks) > _NAMED else ''})"


def completion_of(
    a: Side, b: Side, matched: Matched, p_value: float | None, *, exact: bool = False
) -> Completion | None:
    """The completions of a comparison with this p-value; None where no fault is on the compared tasks."""
    means = means_of(matched)
    if means is None or p_value is None or not (a.missing or b.missing):
        return None
    measure = matched.measure
    b_leads = (means[1] > means[0]) == (measure.direction == "higher")
    a_worst, a_best, b_worst, b_best = (
        completed(side, measure, best=best) for side in (a, b) for best in (False, True)
    )
    if not (a_worst and a_best and b_worst and b_best):
        tasks = {*a.by_task(), *b.by_task()} if matched.paired else None
        of_a, of_b = _tasks(a, tasks), _tasks(b, tasks)
        return (
            Completion(a=of_a, b=of_b, differences=None, p_value=1.0, p_holm=1.0)
            if of_a or of_b
            else None
        )
    against_b, against_a = match(a_best, b_worst, measure), match(a_worst, b_best, measure)
    worst, other = (against_b, against_a) if b_leads else (against_a, against_b)
    compared = {*worst.tasks} if worst.order is None else {*worst.tasks} & {*worst.order}
    of_a, of_b = (_tasks(side, compared if worst.paired else None) for side in (a, b))
    if not (of_a or of_b):
        return None
    ends = [after - before for before, after in filter(None, map(means_of, (worst, other)))]
    still_leads = ends[0] and (ends[0] > 0) == (means[1] > means[0])
    found = p_of(worst, exact=exact) if still_leads else None
    p_worst = 1.0 if found is None else max(p_value, found)
    scale = 100 if measure.two_valued else 1
    differences = scale * min(ends), scale * max(ends)
    return Completion(a=of_a, b=of_b, differences=differences, p_value=p_worst, p_holm=p_worst)


def completed(side: Side, measure: Measure, *, best: bool) -> Side | None:
    """The side with a result for each fault, the best or the worst by this measure.

    Its figures are still those of what was judged. None where the measure has no bounds, or its values don't keep them.
    """
    if not side.missing:
        return side
    limits = bounds_of(measure)
    values = [value for of_task in side.values(measure).values() for value in of_task]
    if limits is None or not all(limits[0] <= value <= limits[1] for value in values):
        return None
    value = limits[best == (measure.direction == "higher")]
    given: dict[str, Any] = (
        {"success": bool(value)} if measure.name == SUCCESS.name else {"score": value}
    )
    if measure.name not in (SUCCESS.name, "score"):
        given = {"metrics": {measure.name: value}}
    arm = side.run.arms[side.arm]
    added = [_result(fault, side.arm, **given) for fault in side.missing]
    arms = {**side.run.arms, side.arm: replace(arm, results=[*arm.results, *added])}
    return replace(side, run=replace(side.run, arms=arms, faults=_others(side.run, side.arm)))


def with_faults_failed(run: Run) -> Run:
    """The run with each fault as a failed result: its verdict is `fault`, its cause the fault's.

    Measures with bounds have their worst value there. Averages of attempts, times, tokens and other measures without
    bounds, of which a fault tells nothing, are over what was judged.
    """
    if not any(run.missing_of(arm) for arm in run.arms):
        return run
    arms, left = {}, run
    for name, arm in run.arms.items():
        side, before = Side(run, name), arm.summary
        worst = {
            measure.name: limits[measure.direction == "lower"]
            for measure in declared([run]).values()
            if (limits := bounds_of(measure)) and side.values(measure)
        }
        score, metrics = (
            worst.get("score"),
            {name: worst[name] for name in worst.keys() - {SUCCESS.name, "score"}},
        )
        added = [
            _result(fault, name, score=score, metrics=metrics or None) for fault in side.missing
        ]
        results = [*arm.results, *added]
        own = figures(results, before.baseline_cost, run.measures, side.settled)
        own = replace(own, avg_iterations=before.avg_iterations, avg_latency=before.avg_latency)
        arms[name] = replace(arm, results=results, summary=own)
        left = replace(left, faults=_others(left, name))
    judged = sum(len(arm.results) for arm in arms.values())
    return replace(
        left,
        arms=arms,
        comparison=run.comparison and compare_modes(arms, run.comparison.arms),
        status="complete"
        if run.status == "incomplete" and judged >= run.planned and not left.faults
        else run.status,
    )


def _tasks(side: Side, among: set[str] | None) -> list[str]:
    """The tasks of a side's faults, or those of them that are compared."""
    tasks = [str(fault["problem_id"]) for fault in side.missing]
    return tasks if among is None else [task for task in tasks if task in among]


def _others(run: Run, arm: str) -> list[dict[str, Any]]:
    """The faults of a run that aren't missing in an arm's figures."""
    own = {id(fault) for fault in run.missing_of(arm)}
    return [fault for fault in run.faults if id(fault) not in own]


def _result(fault: Mapping[str, Any], arm: str, **given: Any) -> Result:
    """A result in place of a fault."""
    return Result(
        **{
            "experiment_id": str(fault.get("experiment_id", "")),
            "problem_id": str(fault["problem_id"]),
            "success": False,
            "iterations": 0,
            "cost": float(fault.get("cost") or 0.0),
            "solver": str(fault.get("solver") or arm),
            "arm": arm,
            "sample": int(fault.get("sample") or 0),
            "verdict": FAULT,
            "cause": str(fault.get("cause") or "other"),
            "tokens": 0,
            "calls": 0,
            **given,
        }
    )
