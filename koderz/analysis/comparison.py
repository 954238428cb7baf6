"""Is B better than A, and where? One answer with its uncertainty, for the terminal, a file, a page and a gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.analysis import statistics
from koderz.analysis.differing import differing
from koderz.analysis.matching import Matched, Measure, Side, match, own_arms, sides_to_compare
from koderz.analysis.notes import notes_on
from koderz.analysis.runs import Run, load_summary, of_summary, refuse_mixture, run_paths
from koderz.analysis.statistics import ALPHA, Interval
from koderz.errors import KoderzError
from tracker.summary import Result, Summary

_LOOK_BACK = 50  # runs, in search of two that share tasks

Source = Run | Summary | Path | str


@dataclass(frozen=True, slots=True)
class Difference:
    """B less A of one measure, averaged over tasks, with the interval that chance leaves it."""

    a: float
    b: float
    difference: float
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A, the baseline, and B, the candidate. Differences are B less A; those of rates are points."""

    a: Side
    b: Side
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
    interval: Interval | None  # points, of confidence 1 - alpha
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
        size = f"{self.difference:+.1f} points (p = {self.p_value:.3g})"
        if not self.significant:
            return f"No difference shown: {size} may be chance."
        return f"B is {'better' if self.difference > 0 else 'worse'}: {size}."

    def _repr_html_(self) -> str:
        from koderz.analysis.blocks import as_html
        from koderz.analysis.comparison_view import comparison_blocks

        return as_html(comparison_blocks(self))


def compare(
    a: Source, b: Source | None = None, *, arm: str | None = None, alpha: float = ALPHA, allow_simulated: bool = False
) -> Comparison:
    """A as the baseline of B; without B, the arms of A, paired. Each is a run, a summary or a summary file.

    Where the runs share several arms, the figures are those of the last, and `arms` has each. Raises
    KoderzError for files that won't do, an arm that isn't there, and a real run beside a simulated one.
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
    return each[-1] if len(each) == 1 else replace(each[-1], arms={one.b.solver: one for one in each})


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
    before, after = matched.means(_success) if matched.kind != "nothing" else ([], [])
    paired = list(zip(matched.tasks, before, after, strict=True)) if matched.paired else []
    lost = [task for task, x, y in paired if x > y]
    gained = [task for task, x, y in paired if x < y]
    p_value = p_of(matched)
    return Comparison(
        a=a,
        b=b,
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
        difference=_points(_average(after) - _average(before)) if p_value is not None else None,
        interval=_points_of(_success_interval(matched, before, after, 1 - alpha)),
        probability_better=_probability(matched, before, after),
        smallest_difference=_smallest(matched, before, after, alpha),
        significant=is_shown(matched, p_value, alpha),
        measures=_measures(matched, 1 - alpha),
        settings=differing(a.run.config, b.run.config),
        environment=differing(a.run.environment, b.run.environment),
        notes=notes_on(a, b, matched),
    )


METHODS = {
    "single": "McNemar's exact test, paired by task",
    "samples": "sign-flip test and bootstrap, paired and clustered by task",
    "unpaired": "permutation test and bootstrap, unpaired",
    "nothing": "none",
}


def p_of(matched: Matched) -> float | None:
    """Two-sided p-value that A and B are equally good; None where one has no results."""
    if matched.kind == "nothing":
        return None
    before, after = matched.means(_success)
    if matched.kind == "unpaired":
        return statistics.shuffle_labels(before, after)
    if matched.kind == "samples":
        return statistics.sign_flip(_less(after, before))
    return statistics.mcnemar(
        sum(x > y for x, y in zip(before, after, strict=True)), sum(x < y for x, y in zip(before, after, strict=True))
    )


def is_shown(matched: Matched, p_value: float | None, alpha: float) -> bool:
    """Whether a p-value is small enough, on enough tasks, to claim a difference."""
    tasks = len(matched.tasks) if matched.paired else min(len(matched.a), len(matched.b))
    return p_value is not None and tasks >= statistics.FEWEST_TASKS and p_value <= alpha


def _success_interval(
    matched: Matched, before: Sequence[float], after: Sequence[float], confidence: float
) -> Interval | None:
    if matched.kind == "nothing":
        return None
    if matched.kind == "unpaired":
        found = statistics.bootstrap_difference(before, after, confidence)
        if found is None or found[0] == found[1]:
            return statistics.newcombe(round(sum(before)), len(before), round(sum(after)), len(after), confidence)
        return found
    differences = _less(after, before)
    if set(differences) <= {-1.0, 0.0, 1.0}:
        return statistics.binary_difference(differences, confidence)
    return statistics.bootstrap_mean(differences, confidence) if len(set(differences)) > 1 else None


def _probability(matched: Matched, before: Sequence[float], after: Sequence[float]) -> float | None:
    if matched.kind == "nothing":
        return None
    if matched.kind == "unpaired":
        return statistics.share_better(after, before)
    differences = _less(after, before)
    if matched.kind == "single":
        return statistics.probability_better(sum(d < 0 for d in differences), sum(d > 0 for d in differences))
    return statistics.share_better(differences)


def _smallest(matched: Matched, before: Sequence[float], after: Sequence[float], alpha: float) -> float | None:
    """In points; with one sample each, from the share of tasks that flipped, of which one more is taken to."""
    if matched.kind == "single":
        flips = sum(x != y for x, y in zip(before, after, strict=True))
        found = statistics.smallest_paired_difference(len(before), (flips + 1) / (len(before) + 2), alpha)
    elif matched.kind == "nothing":
        found = None
    elif matched.paired:
        found = statistics.smallest_difference(statistics.standard_error(_less(after, before)), alpha)
    else:
        errors = statistics.standard_error(before), statistics.standard_error(after)
        found = statistics.smallest_difference(sum(error**2 for error in errors) ** 0.5, alpha)
    return _points(found) if found and found <= 1 else None


def _measures(matched: Matched, confidence: float) -> dict[str, Difference]:
    if matched.kind == "nothing":
        return {}
    found = {}
    for name, measure in _MEASURES.items():
        before, after = matched.means(measure)
        interval = (
            statistics.bootstrap_mean(_less(after, before), confidence)
            if matched.paired
            else statistics.bootstrap_difference(before, after, confidence)
        )
        found[name] = Difference(_average(before), _average(after), _average(after) - _average(before), interval)
    return found


def _success(result: Result) -> float:
    return float(result.success)


_MEASURES: dict[str, Measure] = {
    "cost": lambda result: result.cost,
    "iterations": lambda result: float(result.iterations),
    "latency": lambda result: result.latency,
}


def _less(after: Sequence[float], before: Sequence[float]) -> list[float]:
    return [y - x for x, y in zip(before, after, strict=True)]


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _points(fraction: float) -> float:
    return 100 * fraction


def _points_of(interval: Interval | None) -> Interval | None:
    return (_points(interval[0]), _points(interval[1])) if interval else None


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
