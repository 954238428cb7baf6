"""Is B better than A, and where? One answer with its uncertainty, for the terminal, a file, a page and a gate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.analysis.differences import differing
from koderz.analysis.inference import (
    METHODS,
    Difference,
    difference_of,
    interval_of,
    is_shown,
    measures_of,
    p_of,
    probability_of,
    smallest_of,
    success,
)
from koderz.analysis.intervals import Interval
from koderz.analysis.notes import notes_on
from koderz.analysis.pairs import Matched, Side, match, own_arms, sides_to_compare
from koderz.analysis.runs import Run, load_summary, of_summary, refuse_mixture, run_paths
from koderz.analysis.statistics import ALPHA
from koderz.errors import KoderzError
from tracker.summary import Result, Summary

_LOOK_BACK = 50  # runs, in search of two that share tasks

Source = Run | Summary | Path | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What one side came to on the tasks that are compared: those in common, or all where there are none."""

    success_rate: float | None  # per cent, the mean of the tasks' own rates; None where nothing was judged
    successes: int
    experiments: int
    tasks: int
    other_tasks: int  # that it was judged on and the other side wasn't
    cost_per_success: float | None  # US dollars, failures included


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A, the baseline, and B, the candidate. Differences are B less A; those of rates are points."""

    a: Side
    b: Side
    a_compared: Compared
    b_compared: Compared
    alpha: float
    paired: bool  # on tasks that both were judged on
    method: str
    pairs: int  # tasks in common
    a_only: int  # tasks that A does better at; with one sample each, those that only A passed
    b_only: int
    both: int  # tasks that both passed every time
    neither: int
    lost: Sequence[str] = field(repr=False)  # the tasks of a_only
    gained: Sequence[str] = field(repr=False)
    p_value: float | None  # None: nothing to compare
    mcnemar_p: float | None  # the same, where it is McNemar's
    difference: float | None  # points
    interval: Interval | None  # points, of confidence 1 - alpha; without 0 exactly where a difference is shown
    interval_method: str | None
    probability_better: float | None
    smallest_difference: float | None  # points that so many tasks show four times out of five
    significant: bool
    measures: Mapping[str, Difference]  # cost (US dollars), iterations, latency (seconds): an experiment's average
    settings: Mapping[str, tuple[Any, Any]] = field(repr=False)  # what differs
    environment: Mapping[str, tuple[Any, Any]] = field(repr=False)
    notes: Sequence[str]
    arms: Mapping[str, Comparison] = field(default_factory=dict, repr=False)  # where there are several, each one

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.difference is None or self.p_value is None:
            return "There is nothing to compare yet."
        if not self.significant:
            return f"No significant difference (p = {self.p_value:.3g})."
        better = "better" if self.difference > 0 else "worse"
        return f"B is {better}: {self.difference:+.1f} points (p = {self.p_value:.3g})."

    def _repr_html_(self) -> str:
        from koderz.analysis.blocks import as_html
        from koderz.analysis.comparison_view import comparison_blocks

        return as_html(comparison_blocks(self))


def compare(
    a: Source, b: Source | None = None, *, arm: str | None = None, alpha: float = ALPHA, allow_simulated: bool = False
) -> Comparison:
    """A as the baseline of B; without B, the arms of A, paired. Each is a run, a summary or a summary file.

    Where the runs share several arms, the figures are those of the last, and `arms` has each. Raises
    KoderzError for files that can't be read, an arm that isn't there, and a real run beside a simulated one.
    """
    first = _run(a)
    if b is None:
        return of_sides(_within(first), alpha)
    second = _run(b)
    if not allow_simulated:
        refuse_mixture([first, second])
    return of_sides(sides_to_compare(first, second, arm), alpha)


def of_sides(sides: Sequence[tuple[Side, Side]], alpha: float = ALPHA) -> Comparison:
    """The comparison of the last pair, with those of all in `arms` where there are several."""
    each = [between(a, b, alpha) for a, b in sides]
    return each[-1] if len(each) == 1 else replace(each[-1], arms={one.b.arm: one for one in each})


def last_comparable(results: Path, *, allow_simulated: bool = False) -> list[Run]:
    """The last two runs that share tasks, baseline first; a comparative run alone where no other shares its tasks.

    Raises KoderzError where there are none.
    """
    from koderz.analysis.runs import load_run

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


def between(a: Side, b: Side, alpha: float = ALPHA) -> Comparison:
    """Two arms, by task where they have tasks in common."""
    matched = match(a, b)
    paired = list(zip(matched.tasks, *matched.means(success), strict=True)) if matched.paired else []
    lost = [task for task, x, y in paired if x > y]
    gained = [task for task, x, y in paired if x < y]
    p_value = p_of(matched)
    significant = is_shown(matched, p_value, alpha)
    interval, interval_method = interval_of(matched, alpha, shown=significant) or (None, None)
    return Comparison(
        a=a,
        b=b,
        a_compared=_compared(matched.a, matched),
        b_compared=_compared(matched.b, matched),
        alpha=alpha,
        paired=matched.paired,
        method=METHODS[matched.kind],
        pairs=len(matched.tasks),
        a_only=len(lost),
        b_only=len(gained),
        both=sum(x == y == 1 for _, x, y in paired),
        neither=sum(x == y == 0 for _, x, y in paired),
        lost=lost,
        gained=gained,
        p_value=p_value,
        mcnemar_p=p_value if matched.kind == "single" else None,
        difference=difference_of(matched),
        interval=interval,
        interval_method=interval_method,
        probability_better=probability_of(matched),
        smallest_difference=smallest_of(matched, alpha),
        significant=significant,
        measures=measures_of(matched, 1 - alpha),
        settings=differing(a.run.config, b.run.config),
        environment=differing(a.run.environment, b.run.environment),
        notes=notes_on(a, b, matched),
    )


def _compared(by_task: Mapping[str, Sequence[Result]], matched: Matched) -> Compared:
    tasks = matched.tasks if matched.paired else list(by_task)
    results = [result for task in tasks for result in by_task[task]]
    successes = sum(result.success for result in results)
    rates = [sum(map(success, by_task[task])) / len(by_task[task]) for task in tasks]
    return Compared(
        success_rate=100 * sum(rates) / len(rates) if rates else None,
        successes=successes,
        experiments=len(results),
        tasks=len(tasks),
        other_tasks=len(by_task) - len(tasks),
        cost_per_success=math.fsum(result.cost for result in results) / successes if successes else None,
    )


def _tasks(run: Run) -> set[str]:
    return {result.problem_id for result in run.results}


def _within(run: Run) -> list[tuple[Side, Side]]:
    sides = own_arms(run)
    if not sides:
        raise KoderzError(f"{run.name} has one arm, {run.mode}; name a second run to compare it with")
    return sides


def _run(source: Source) -> Run:
    if isinstance(source, Run):
        return source
    if isinstance(source, Summary):
        return of_summary(source, Path(source.run_id or "summary"))
    return load_summary(source)
