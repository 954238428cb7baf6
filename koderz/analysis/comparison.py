"""The comparison of B with A: one answer with its uncertainty, for the terminal, a file, a page and a gate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.analysis.blocks import as_html
from koderz.analysis.comparison_view import comparison_blocks
from koderz.analysis.inference import (
    Difference,
    Ratio,
    corrected_interval,
    differences_of,
    interval_of,
    is_shown,
    mcnemar_of,
    means_of,
    method_of,
    p_of,
    probability_of,
    ratios_of,
    reason_for_none,
    smallest_of,
)
from koderz.analysis.intervals import Interval
from koderz.analysis.measures import SUCCESS, measure_named, measures_of, shown, usual_measure
from koderz.analysis.notes import differing, notes_on
from koderz.analysis.pairs import Matched, Side, match, pairs_to_compare
from koderz.analysis.runs import Run, load_run, load_summary, of_summary, refuse_generated, run_paths
from koderz.analysis.statistics import ALPHA, holm, p_text
from koderz.errors import KoderzError
from tracker.records import Measure
from tracker.summary import Summary

_LOOK_BACK = 50  # runs, in search of two that share tasks

Source = Summary | Path | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The figures of one side on the compared tasks: those in common, or all if there are none."""

    mean: float | None  # of the measure, over tasks, in its unit; None where nothing was judged
    success_rate: float | None  # per cent, the mean of the tasks' own rates; None where nothing was judged
    successes: int
    experiments: int
    tasks: int
    other_tasks: int  # that it was judged on and the other side wasn't
    cost_per_success: float | None  # US dollars, failures included


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A, the baseline, and B, the candidate, by one measure. Differences are B less A in its unit; points for rates."""

    a: Side
    b: Side
    measure: Measure
    a_compared: Compared
    b_compared: Compared
    alpha: float
    paired: bool  # on tasks that both were judged on
    method: str
    pairs: int  # tasks in common
    a_only: int  # tasks that A does better at; with one sample each, those that only A passed
    b_only: int
    both: int | None  # tasks that both passed every time; None where the measure isn't two-valued
    neither: int | None
    lost: Sequence[str] = field(repr=False)  # the tasks of a_only
    gained: Sequence[str] = field(repr=False)
    p_value: float | None  # None: nothing to compare
    p_holm: float | None  # corrected for the number of arms that are compared at once
    mcnemar_p: float | None  # by McNemar's exact test, of two rates with one sample a task
    difference: float | None
    interval: Interval | None  # of confidence 1 - alpha, alone; without 0 exactly where p_value shows a difference
    interval_method: str | None
    probability_better: float | None  # of two-valued measures
    smallest_difference: float | None  # that so many tasks show four times out of five
    significant: bool  # by p_holm, on enough tasks
    measures: Mapping[str, Difference]  # the other ones, an experiment's average: success, cost (US dollars), …
    ratios: Mapping[str, Ratio]  # of those that are told in times, such as speed-ups
    settings: Mapping[str, tuple[Any, Any]] = field(repr=False)  # what differs
    environment: Mapping[str, tuple[Any, Any]] = field(repr=False)
    notes: Sequence[str]
    arms: Mapping[str, Comparison] = field(default_factory=dict, repr=False)  # where there are several, each one
    interval_holm: Interval | None = None  # of all arms together; without 0 exactly where p_holm shows a difference
    interval_holm_method: str | None = None
    at_once: int = 1  # for how many comparisons p_holm and interval_holm are corrected
    clusters: int | None = None  # in which the tasks are; None: each stands alone

    @property
    def worse_by(self) -> float:
        """The amount by which B is worse, in the unit of the difference; below 0 if it is better."""
        difference = self.difference or 0.0
        return -difference if self.measure.direction == "higher" else difference

    @property
    def verdict(self) -> str:
        """The verdict as one sentence."""
        if self.difference is None or self.p_holm is None:
            return "There is nothing to compare yet."
        corrected = f"{p_text(self.p_holm)}{', Holm-corrected' if self.p_holm != self.p_value else ''}"
        by = "" if self.measure.name == SUCCESS.name else f" in {self.measure.name}"
        if not self.significant:
            return f"No significant difference{by} ({corrected})."
        difference = shown(self.difference / self.scale, self.measure, signed=True)
        return f"B is {'better' if self.worse_by < 0 else 'worse'}{by}: {difference} ({corrected})."

    @property
    def scale(self) -> int:
        """The factor of differences: 100 for rates, which are shown in points."""
        return 100 if self.measure.two_valued else 1

    def _repr_html_(self) -> str:
        return as_html(comparison_blocks(self))


def compare(
    a: Source,
    b: Source | None = None,
    *,
    arm: str | None = None,
    measure: str | None = None,
    alpha: float = ALPHA,
    allow_simulated: bool = False,
    exact: bool = False,
) -> Comparison:
    """Compares B, the candidate, with A, the baseline; without B, the arms of A. Each is a run or a summary file.

    `measure` is success, score, cost, tokens, iterations, latency or a metric of the suite's. Where the runs share
    several arms, the figures are those of the last, and `arms` has each. `exact`: rates of one sample
    a task are tested by McNemar's exact test, instead of by his score statistic, which shows more. Raises KoderzError
    for files that can't be read, an arm or a measure that isn't there, and a real run beside a simulated one.
    """
    runs = [_run(source) for source in (a, b) if source is not None]
    refuse_generated(runs)
    sides = pairs_to_compare(runs, arm if len(runs) == 2 else None, allow_simulated=allow_simulated)
    if not sides:
        raise KoderzError(f"{runs[0].name} has one arm, {runs[0].mode}; name a second run to compare it with")
    return of_sides(sides, alpha, measure_named(measure or usual_measure(runs), runs), exact=exact)


def of_sides(
    sides: Sequence[tuple[Side, Side]], alpha: float = ALPHA, measure: Measure = SUCCESS, *, exact: bool = False
) -> Comparison:
    """The comparison of the last pair, with those of all in `arms` where there are several; `exact` as in `compare`."""
    each = corrected([between(a, b, alpha, measure, exact=exact) for a, b in sides])
    return each[-1] if len(each) == 1 else replace(each[-1], arms={one.b.arm: one for one in each})


def corrected(each: Sequence[Comparison]) -> list[Comparison]:
    """Comparisons made at once, with p-values and intervals corrected for their number.

    The p-values by Holm's procedure, the intervals by Bonferroni's, so that all hold together.
    """
    p_values = [one.p_value for one in each if one.p_value is not None]
    adjusted = iter(holm(p_values))
    return [one if one.p_value is None else _corrected(one, next(adjusted), len(p_values)) for one in each]


def _corrected(one: Comparison, p_holm: float, count: int) -> Comparison:
    significant = one.significant and p_holm <= one.alpha
    if count == 1:
        return replace(one, p_holm=p_holm, significant=significant)
    matched = match(one.a, one.b, one.measure)
    interval, method = corrected_interval(matched, one.alpha, count, p_holm) or (None, reason_for_none(matched))
    return replace(
        one,
        p_holm=p_holm,
        significant=significant,
        interval_holm=interval and (one.scale * interval[0], one.scale * interval[1]),
        interval_holm_method=method,
        at_once=count,
    )


def last_comparable(results: Path, *, allow_simulated: bool = False) -> list[Run]:
    """The last two runs that share tasks, baseline first; a comparative run alone if no other shares its tasks.

    Raises KoderzError where there are none.
    """
    recent: list[Run] = []
    for path in reversed(run_paths(results)[-_LOOK_BACK:]):
        run = load_run(path)
        for later in recent:
            if (allow_simulated or later.simulated == run.simulated) and _tasks(later) & _tasks(run):
                return [run, later]
        recent.append(run)
    alone = [run for run in recent if len(run.arms) > 1 and run.results]
    if alone:
        return alone[:1]
    raise KoderzError(
        f"{results} holds no two runs on the same tasks; make some with: koderz benchmark 0 10 --mode comparative"
    )


def between(a: Side, b: Side, alpha: float = ALPHA, measure: Measure = SUCCESS, *, exact: bool = False) -> Comparison:
    """Compares two arms, paired by task if they have tasks in common."""
    matched = match(a, b, measure)
    scale = 100 if matched.measure.two_valued else 1
    paired = list(zip(matched.tasks, *matched.means(), strict=True)) if matched.paired else []
    higher, lower = [task for task, x, y in paired if x < y], [task for task, x, y in paired if x > y]
    lost, gained = (lower, higher) if measure.direction == "higher" else (higher, lower)
    p_value = p_of(matched, exact=exact)
    significant = is_shown(matched, p_value, alpha)
    limits, interval_method = interval_of(matched, alpha, shown=significant) or (None, reason_for_none(matched))
    interval = limits and (scale * limits[0], scale * limits[1])
    of_a, of_b = means_of(matched) or (None, None)
    smallest = smallest_of(matched, alpha, exact=exact)
    every = [match(a, b, each) for each in measures_of([a.run, b.run]).values()]
    others = [each for each in every if each.measure.name != measure.name]
    return Comparison(
        a=a,
        b=b,
        measure=matched.measure,
        a_compared=_compared(a, matched, of_a),
        b_compared=_compared(b, matched, of_b),
        alpha=alpha,
        paired=matched.paired,
        method=method_of(matched, exact=exact),
        pairs=len(matched.tasks),
        a_only=len(lost),
        b_only=len(gained),
        both=sum(x == y == 1 for _, x, y in paired) if matched.measure.two_valued else None,
        neither=sum(x == y == 0 for _, x, y in paired) if matched.measure.two_valued else None,
        lost=lost,
        gained=gained,
        p_value=p_value,
        p_holm=p_value,
        mcnemar_p=mcnemar_of(matched),
        difference=None if of_a is None or of_b is None else scale * (of_b - of_a),
        interval=interval,
        interval_method=interval_method,
        interval_holm=interval,
        interval_holm_method=interval_method,
        probability_better=probability_of(matched),
        smallest_difference=smallest and scale * smallest,
        significant=significant,
        measures=differences_of(others, alpha, exact=exact),
        ratios=ratios_of(every, alpha),
        settings=differing(a.run.config, b.run.config),
        environment=differing(a.run.environment, b.run.environment),
        notes=notes_on(a, b, matched),
        clusters=matched.cluster_count,
    )


def _compared(side: Side, matched: Matched, mean: float | None) -> Compared:
    by_task = side.by_task()
    tasks = matched.tasks if matched.paired else list(by_task)
    results = [result for task in tasks for result in by_task[task]]
    successes = sum(result.success for result in results)
    rates = [sum(result.success for result in by_task[task]) / len(by_task[task]) for task in tasks]
    return Compared(
        mean=mean,
        success_rate=100 * sum(rates) / len(rates) if rates else None,
        successes=successes,
        experiments=len(results),
        tasks=len(tasks),
        other_tasks=len(by_task) - len(tasks),
        cost_per_success=math.fsum(result.cost for result in results) / successes if successes else None,
    )


def _tasks(run: Run) -> set[str]:
    return {result.problem_id for result in run.results}


def _run(source: Source) -> Run:
    return of_summary(source) if isinstance(source, Summary) else load_summary(source)
