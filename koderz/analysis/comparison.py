"""The comparison of B with A: one answer with its uncertainty, for the terminal, a file, a page and a gate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from koderz.analysis import pairs
from koderz.analysis.blocks import Block, Heading, Table, Text, as_html
from koderz.analysis.completion import Completion, at_worst, completion_of, with_faults_failed
from koderz.analysis.failures import failure_blocks
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
from koderz.analysis.judged import JudgedDifference, judged_difference, text_of_difference
from koderz.analysis.logs import named_alike
from koderz.analysis.measures import (
    SUCCESS,
    declared,
    interval_text,
    measure_named,
    measures_of,
    shown,
    usual_measure,
)
from koderz.analysis.notes import differing, differing_values, notes_on
from koderz.analysis.pairs import UNEQUAL, Matched, Side, clustered, match, pairs_to_compare
from koderz.analysis.runs import (
    FaultsAs,
    Source,
    bounds_of,
    figures_table,
    rate_of,
    refuse_generated,
    run_of,
)
from koderz.analysis.statistics import ALPHA, holm, p_figure, p_text
from koderz.errors import KoderzError
from koderz.types import SIMULATED
from koderz_tracker.records import Measure
from koderz_tracker.results import untold


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The figures of one side on the compared tasks: those in common, or all if there are none."""

    mean: float | None  # of the measure, over tasks, in its unit; None where nothing was judged
    # per cent, the mean of the tasks' own rates; None where nothing was judged
    success_rate: float | None
    successes: int
    experiments: int
    tasks: int
    other_tasks: int  # that it was judged on and the other side wasn't
    cost_per_success: float | None  # US dollars, failures included


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A, the baseline, and B, the candidate, by one measure. Differences are B less A in its unit; points for rates."""

    a: Side  # the baseline
    b: Side  # the candidate
    measure: Measure  # the measure that the verdict is about
    a_compared: Compared  # figures of A on the compared tasks
    b_compared: Compared  # figures of B on the compared tasks
    alpha: float  # the probability of a false claim
    paired: bool  # whether the same tasks are compared
    method: str  # the name of the test
    pairs: int  # tasks in common
    a_only: int  # tasks on which A does better; with one sample each, those that only A passed
    b_only: int  # tasks on which B does better
    both: int | None  # tasks that both passed every time; None: the measure isn't two-valued
    neither: int | None  # tasks that neither ever passed
    lost: Sequence[str] = field(repr=False)  # the tasks of a_only
    gained: Sequence[str] = field(repr=False)  # the tasks of b_only
    p_value: float | None  # None: there is nothing to compare
    p_holm: float | None  # the p-value, corrected for the number of arms compared at once
    mcnemar_p: float | None  # by McNemar's exact test, for two rates with one sample a task
    difference: float | None  # B less A
    # of this comparison alone; excludes 0 exactly if p_value shows a difference
    interval: Interval | None
    interval_method: str | None  # how it was computed, or why there is none
    # the posterior probability that B is better, for two-valued measures
    probability_better: float | None
    # the smallest one that so many tasks show four times out of five
    smallest_difference: float | None
    # whether p_holm shows a difference, on enough tasks, that no faults could turn
    significant: bool
    # averages of the other measures: success, cost (US dollars), …
    measures: Mapping[str, Difference]
    ratios: Mapping[str, Ratio]  # ratios of measures such as speed-ups
    settings: Mapping[str, tuple[Any, Any]] = field(repr=False)  # settings in which A and B differ
    # in what else they differ: versions, machine
    environment: Mapping[str, tuple[Any, Any]] = field(repr=False)
    notes: Sequence[str]  # what to bear in mind when reading it
    # each arm's, if there are several
    arms: Mapping[str, Comparison] = field(default_factory=dict, repr=False)
    # of all arms; excludes 0 exactly if p_holm shows a difference
    interval_holm: Interval | None = None
    interval_holm_method: str | None = None  # how it was computed
    at_once: int = 1  # the number of comparisons for which p_holm and interval_holm are corrected
    # the number of clusters that the tasks form; None: each task stands alone
    clusters: int | None = None
    unequal_resources: Sequence[str] = ()  # resources of which A and B had different amounts
    judged: JudgedDifference | None = None  # how far judges that are models may be off
    # replies that both sides have, since one took them from the other or both from a third
    shared_replies: int = 0
    same_replies: Sequence[str] = ()  # tasks whose replies are all the same, left out of the test
    judged_apart: Sequence[str] = ()  # those of them on which the verdicts differ
    # what faults could make of the difference; None: none is on these tasks
    completion: Completion | None = None

    @property
    def worse_by(self) -> float:
        """The amount by which B is worse, in the unit of the difference; below 0 if it is better."""
        difference = self.difference or 0.0
        return -difference if self.measure.direction == "higher" else difference

    @property
    def verdict(self) -> str:
        """The verdict as one sentence."""
        if self.difference is None or self.p_holm is None:
            no_claim = f"No claim: {self.method.removeprefix('none: ')}."
            if self.difference is None and self.same_replies:
                return "No claim: A and B are made of the same replies to all tasks that they have in common."
            return "There is nothing to compare yet." if self.difference is None else no_claim
        corrected = (
            f"{p_text(self.p_holm)}{', Holm-corrected' if self.p_holm != self.p_value else ''}"
        )
        by = "" if self.measure.name == SUCCESS.name else f" in {self.measure.name}"
        corrected = (self.judged and self.judged.basis) or corrected
        corrected = ", ".join([corrected, *([UNEQUAL] if self.unequal_resources else [])])
        if not self.significant:
            if self.completion and self.completion.could_turn:
                seen = shown(self.difference / self.scale, self.measure, signed=True)
                return f"No claim{by}: {seen} by what was judged ({corrected}), but {self.completion.reason}."
            return f"No significant difference{by} ({corrected})."
        if self.is_at_any_stop and self.interval_holm:
            low, high = (limit / self.scale for limit in self.interval_holm)
            is_better = (low > 0) == (self.measure.direction == "higher")
            span = interval_text((low, high), self.measure, signed=True)
            unit = " points" if self.measure.two_valued else ""
            return f"B is {'better' if is_better else 'worse'}{by}: {span}{unit} ({corrected})."
        value = (
            self.judged.difference
            if self.judged and self.judged.difference is not None
            else self.difference
        )
        difference = shown(value / self.scale, self.measure, signed=True)
        is_better = (value > 0) == (self.measure.direction == "higher")
        return f"B is {'better' if is_better else 'worse'}{by}: {difference} ({corrected})."

    @property
    def is_at_any_stop(self) -> bool:
        """Whether a run stopped once it was decided, which makes the difference larger than it is, not the interval."""
        return bool(self.a.run.until_decided or self.b.run.until_decided)

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
    unequal_resources: bool = False,
    faults: FaultsAs | None = None,
    cluster: str | None = None,
) -> Comparison:
    """Compares B, the candidate, with A, the baseline; without B, the arms of A. Each is what `load_summary` takes.

    `measure` is success, score, cost, tokens, iterations, latency or a metric of the suite's. Where the runs share
    several arms, the figures are those of the last, and `arms` has each. `exact`: rates of one sample a task are tested
    by McNemar's exact test, instead of by his score statistic, which shows more. With `faults` "fail" each fault counts
    as a failure; without, nothing is claimed that they could turn. `cluster`: the field of other tools' logs by whose
    values tasks are in clusters. Raises KoderzError for files that can't be read, a field that no task has, an arm or a
    measure that isn't there, a real run beside a simulated one, and, without `unequal_resources`, arms that had
    different resources on the same tasks.
    """
    runs = named_alike([run_of(source) for source in (a, b) if source is not None])
    runs = clustered(runs, cluster) if cluster else runs
    runs = [with_faults_failed(run) for run in runs] if faults == "fail" else runs
    refuse_generated(runs)
    sides = pairs_to_compare(runs, arm if len(runs) == 2 else None, allow_simulated=allow_simulated)
    if not sides:
        raise KoderzError(
            f"{runs[0].name} has one arm, {runs[0].mode}; name a second run to compare it with"
        )
    if not unequal_resources:
        pairs.require_equal_resources(*sides)
    return of_sides(sides, alpha, measure_named(measure or usual_measure(runs), runs), exact=exact)


def of_sides(
    sides: Sequence[tuple[Side, Side]],
    alpha: float = ALPHA,
    measure: Measure = SUCCESS,
    *,
    exact: bool = False,
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
    found = [
        one if one.p_value is None else _corrected(one, next(adjusted), len(p_values))
        for one in each
    ]
    found = [
        replace(one, significant=one.judged.claims(one.significant)) if one.judged else one
        for one in found
    ]
    completions = at_worst(
        [(one.completion, one.p_value, one.significant) for one in found], found[0].alpha
    )
    return [
        replace(
            one, completion=each, significant=one.significant and not (each and each.could_turn)
        )
        for one, each in zip(found, completions, strict=True)
    ]


def _corrected(one: Comparison, p_holm: float, count: int) -> Comparison:
    significant = one.significant and p_holm <= one.alpha
    if count == 1:
        return replace(one, p_holm=p_holm, significant=significant)
    matched = match(one.a, one.b, one.measure)
    limits, method = corrected_interval(matched, one.alpha, count, p_holm) or (
        None,
        reason_for_none(matched),
    )
    interval = limits and (one.scale * limits[0], one.scale * limits[1])
    return replace(
        one,
        p_holm=p_holm,
        significant=significant,
        interval_holm=interval,
        interval_holm_method=method,
        at_once=count,
        judged=judged_difference(one.a, one.b, matched, interval, one.alpha / count),
    )


def between(
    a: Side, b: Side, alpha: float = ALPHA, measure: Measure = SUCCESS, *, exact: bool = False
) -> Comparison:
    """Compares two arms, paired by task if they have tasks in common."""
    matched = match(a, b, measure)
    scale = 100 if matched.measure.two_valued else 1
    paired = list(zip(matched.tasks, *matched.means(), strict=True)) if matched.paired else []
    higher, lower = (
        [task for task, x, y in paired if x < y],
        [task for task, x, y in paired if x > y],
    )
    lost, gained = (lower, higher) if measure.direction == "higher" else (higher, lower)
    p_value = p_of(matched, exact=exact)
    significant = is_shown(matched, p_value, alpha)
    limits, interval_method = interval_of(matched, alpha, shown=significant) or (
        None,
        reason_for_none(matched),
    )
    interval = limits and (scale * limits[0], scale * limits[1])
    of_a, of_b = means_of(matched) or (None, None)
    difference = None if of_a is None or of_b is None else scale * (of_b - of_a)
    smallest = smallest_of(matched, alpha, exact=exact)
    judged = judged_difference(a, b, matched, interval, alpha)
    completion = completion_of(a, b, matched, p_value, exact=exact)
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
        difference=difference,
        interval=interval,
        interval_method=interval_method,
        interval_holm=interval,
        interval_holm_method=interval_method,
        probability_better=probability_of(matched),
        smallest_difference=smallest and scale * smallest,
        significant=significant,
        measures=differences_of(others, matched, alpha, exact=exact),
        ratios=ratios_of(every, alpha),
        settings=differing(a.run.config, b.run.config),
        environment=differing(a.run.environment, b.run.environment),
        notes=notes_on(a, b, matched),
        clusters=matched.cluster_count,
        unequal_resources=pairs.unequal_resources([a, b]),
        judged=judged,
        shared_replies=sum(pairs.shared_replies(a, b).values()),
        same_replies=matched.same_replies,
        judged_apart=pairs.judged_apart(a, b, matched.same_replies),
        completion=completion
        and completion.corrected(difference, judged.interval if judged else None),
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
        cost_per_success=math.fsum(result.cost for result in results) / successes
        if successes and "cost" not in untold(results)
        else None,
    )


_MOST_TASKS = 12  # flipped tasks that are named


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """The blocks of a comparison: every pair of arms, then the differences between the runs."""
    each = list(comparison.arms.values()) or [comparison]
    yield Text(f"A (baseline)  {described(comparison.a)}")
    yield Text(f"B (candidate) {described(comparison.b)}")
    for one in each:
        if len(each) > 1:
            yield Heading(f"Arm: {one.b.arm}")
        yield figures_of(one)
        yield Text(one.verdict)
        if one.p_value is not None:
            yield Text(
                f"{one.method[0].upper()}{one.method[1:]}: {p_text(one.p_value)}.{_power(one)}"
            )
        if one.judged:
            yield from map(Text, text_of_difference(one.judged))
        yield from spans_of_faults(one)
        yield from _methods(one)
        if one.probability_better is not None:
            probability = min(max(one.probability_better, 0.0001), 0.9999)
            yield Text(
                f"Posterior probability that B is better, all rates alike likely before: {probability:.4g}."
            )
        if one.paired:
            better = f"{one.b_only} better by B, {one.a_only} by A."
            if one.both is None:
                yield Text(f"{one.pairs} tasks: {better}")
            else:
                yield Text(
                    f"{one.pairs} tasks: {one.both} passed by both, {one.neither} by neither, {better}"
                )
        for phrase in one.unequal_resources:
            yield Text(f"Unequal resources: {phrase}")
        if one.gained:
            yield Text(f"B gained: {named_tasks(one.gained)}")
        if one.lost:
            yield Text(f"B lost: {named_tasks(one.lost)}")
    for note in dict.fromkeys(note for one in each for note in one.notes):
        yield Text(f"note: {note}")
    others = any(side.other_tasks for side in (comparison.a_compared, comparison.b_compared))
    yield from failure_blocks(comparison.a, comparison.b, on_all=others)
    yield from differing_values("Settings that differ", comparison.settings)
    yield from differing_values("Environment that differs", comparison.environment)


def side_blocks(side: Side) -> Iterator[Block]:
    """The blocks of one run alone."""
    yield Text(described(side))
    yield figures_table(side.run, side.arm)


def figures_of(one: Comparison) -> Table:
    """The averages of both sides, their differences and what these are worth."""
    head = ["", "A", "B", "B - A", f"{100 * (1 - one.alpha):g}% interval", "Holm's p"]
    rows = [*_measure_rows(one)]
    if one.unequal_resources:
        rows = [[f"{name} ({UNEQUAL})", *cells] for name, *cells in rows]
    return Table(head, rows, optional=["Holm's p"])


def spans_of_faults(one: Comparison) -> Iterator[Text]:
    """The difference with faults at their worst or best."""
    if one.completion and one.completion.differences:
        span = interval_text(
            tuple(end / one.scale for end in one.completion.differences), one.measure, signed=True
        )
        yield Text(f"With {one.completion.text} at their worst or best B - A is from {span}.")


def _methods(one: Comparison) -> Iterator[Text]:
    """The methods of intervals, and the numbers of tests for which they and the p-values are corrected."""
    if one.interval_holm_method:
        together = _together(one.alpha, one.at_once, "arms")
        yield Text(f"Interval of {_name(one.measure)}: {one.interval_holm_method}{together}.")
    tested = {name: each for name, each in one.measures.items() if each.p_holm is not None}
    others = {each.interval_holm_method for each in tested.values() if each.interval_holm_method}
    at_once = max((each.at_once for each in tested.values()), default=1)
    if others:
        together = _together(one.alpha, at_once, "measures")
        yield Text(f"Intervals of the other measures: {'; '.join(sorted(others))}{together}.")
    if tests := sorted({each.method for each in tested.values()}):
        yield Text(
            f"p of the other measures: {' or '.join(tests)}{f', Holm-corrected for {at_once}' * (at_once > 1)}."
        )
    if left := [name for name in one.measures if name not in tested]:
        why = one.measures[left[0]].method.removeprefix("none: ")
        yield Text(f"No claim on {', '.join(left)}: {why}.")


def _together(alpha: float, count: int, what: str) -> str:
    if count == 1:
        return ""
    return f"; each of {100 * (1 - alpha / count):.3g}%, so that those of all {count} {what} hold with {1 - alpha:.0%}"


def _measure_rows(one: Comparison) -> Iterator[list[str]]:
    success = one.measure.name == SUCCESS.name
    compared = (one.a_compared, one.b_compared)
    known = declared([one.a.run, one.b.run]) | {one.measure.name: one.measure}
    if success:
        cells = [_compared_rate(each) for each in compared]
    else:
        cells = [
            "no results" if each.mean is None else shown(each.mean, one.measure)
            for each in compared
        ]
    difference = (
        ""
        if one.difference is None
        else shown(one.difference / one.scale, one.measure, signed=True)
    )
    limits = tuple(limit / one.scale for limit in one.interval_holm) if one.interval_holm else None
    yield [
        _name(one.measure, of="Avg "),
        *cells,
        difference,
        interval_text(limits, one.measure, signed=True),
        "",
    ]
    if success and any(each.other_tasks for each in compared):
        yield ["On all its tasks", rate_of(one.a.figures), rate_of(one.b.figures), "", "", ""]
    sides = (one.a.figures.success_rate_bounds, one.b.figures.success_rate_bounds)
    if success and any(sides):
        yield ["Faults failed to passed", *map(bounds_of, sides), "", "", ""]
    for name, ratio in one.ratios.items():
        interval = "×{:.3g} to ×{:.3g}".format(*ratio.interval) if ratio.interval else ""
        yield [
            f"GM {name}",
            f"{ratio.a:.3g}",
            f"{ratio.b:.3g}",
            f"×{ratio.ratio:.3g}",
            interval,
            "",
        ]
    for name, found in one.measures.items():
        if name in known and name not in one.ratios and (found.a or found.b):
            measure = known[name]
            yield [
                _name(measure, of="Avg "),
                shown(found.a, measure),
                shown(found.b, measure),
                shown(found.difference, measure, signed=True),
                interval_text(found.interval_holm, measure, signed=True),
                "" if found.p_holm is None else p_figure(found.p_holm),
            ]
    if any(each.cost_per_success for each in compared):
        costs = (
            f"${cost:.5f}" if (cost := each.cost_per_success) is not None else ""
            for each in compared
        )
        yield ["Cost per success", *costs, "", "", ""]
    # pass@k and pass^k of each side on all its tasks, for each k that both have samples for.
    a, b = one.a.figures, one.b.figures
    if min(len(a.pass_at_k), len(b.pass_at_k)) > 1 and one.measure.two_valued:
        for name in [*a.pass_at_k][1 : len(b.pass_at_k)]:
            yield [name, *(f"{100 * each.pass_at_k[name]:.1f}%" for each in (a, b)), "", "", ""]
        for name in [*a.pass_hat_k][1 : len(b.pass_hat_k)]:
            yield [name, *(each.pass_hat_k[name].text for each in (a, b)), "", "", ""]
    of_a, of_b = a.unread, b.unread
    if of_a and of_b:
        yield [
            "Unread",
            f"{of_a.rate:.1f}%",
            f"{of_b.rate:.1f}%",
            f"{of_b.rate - of_a.rate:+.1f} points",
            "",
            "",
        ]


def _name(measure: Measure, of: str = "") -> str:
    if measure.name == SUCCESS.name:
        return "Success rate" if of else "success rate"
    return f"{of}{measure.name}"


def described(side: Side) -> str:
    """One line on an arm: its run, model, solver, status and time."""
    run = side.run
    simulated = "SIMULATED " if side.simulated and side.model != SIMULATED else ""
    return f"{run.name}: {simulated}{side.model}, {side.arm}, {run.status}, {run.start_time[:16].replace('T', ' ')}"


def _compared_rate(found: Compared) -> str:
    if found.success_rate is None:
        return "no results"
    # where tasks have unlike numbers of samples, passes of all samples say another rate
    alike = abs(found.success_rate * found.experiments - 100 * found.successes) < 1e-6
    count = f"{found.successes}/{found.experiments}" if alike else f"{found.tasks} tasks"
    return f"{found.success_rate:.1f}% ({count})"


def _power(one: Comparison) -> str:
    if one.smallest_difference is None:
        return ""
    clusters = f" in {one.clusters} clusters" if one.clusters else ""
    count = f"{one.pairs} tasks{clusters}" if one.paired else f"so many tasks{clusters}"
    return f" With {count} only a difference of about {size_shown(one)} could be detected."


def size_shown(one: Comparison) -> str:
    """The smallest difference that so many tasks show, as text."""
    size = one.smallest_difference or 0.0
    rounded = f"{size:.0f} points" if size >= 10 else f"{size:.1f} points"
    return rounded if one.measure.two_valued else shown(size, one.measure)


def named_tasks(tasks: Sequence[str]) -> str:
    """The first tasks by name, and how many more there are."""
    more = (
        f", … ({len(tasks) - _MOST_TASKS} more; --json has all)" if len(tasks) > _MOST_TASKS else ""
    )
    return f"{', '.join(tasks[:_MOST_TASKS])}{more}"
