"""A comparison or leaderboard as headings, sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from koderz.analysis.blocks import Block, Heading, Table, Text
from koderz.analysis.failures import Failures, causes_table, failures_of
from koderz.analysis.measures import SUCCESS, declared, named_average, shown
from koderz.analysis.run_view import figures_table, rate_of
from koderz.analysis.statistics import p_figure, p_text
from koderz.types import SIMULATED
from tracker.records import Measure

if TYPE_CHECKING:
    from koderz.analysis.comparison import Compared, Comparison
    from koderz.analysis.inference import Difference
    from koderz.analysis.leaderboard import Leaderboard
    from koderz.analysis.pairs import Side

_MOST_TASKS = 12  # flipped tasks that are named
_MOST_CAUSES = 8


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """The blocks of a comparison: every pair of arms, then the differences between the runs."""
    each = list(comparison.arms.values()) or [comparison]
    yield Text(f"A (baseline)  {_described(comparison.a)}")
    yield Text(f"B (candidate) {_described(comparison.b)}")
    for one in each:
        if len(each) > 1:
            yield Heading(f"Arm: {one.b.arm}")
        yield from _one(one)
    for note in dict.fromkeys(note for one in each for note in one.notes):
        yield Text(f"note: {note}")
    yield from _failure_blocks(comparison)
    yield from _differing("Settings that differ", comparison.settings)
    yield from _differing("Environment that differs", comparison.environment)


def side_blocks(side: Side) -> Iterator[Block]:
    """The blocks of one run alone."""
    yield Text(_described(side))
    yield figures_table(side.run, side.arm)


def leaderboard_blocks(board: Leaderboard) -> Iterator[Block]:
    """The blocks of a leaderboard: standings, then the tests that tell some of them apart."""
    success = board.measure.name == SUCCESS.name
    head = "Success rate" if success else named_average(board.measure)
    yield Table(
        ["", "Run", "Model", "Arm", head, "95% interval", "Avg cost", "Avg iter.", "Against the first"],
        [
            [
                str(rank),
                standing.side.run.name,
                standing.side.model,
                standing.side.arm,
                rate_of(standing.side.figures) if success else shown(standing.mean.mean, board.measure),
                _limits(standing.mean.interval, board.measure),
                f"${standing.side.figures.avg_cost:.5f}",
                f"{standing.side.figures.avg_iterations:.1f}",
                "" if rank == 1 else "no significant difference" if standing.level_with_best else "worse",
            ]
            for rank, standing in enumerate(board.standings, start=1)
        ],
        optional=["Avg iter.", "Avg cost", "95% interval", "Model"],
    )
    if methods := {standing.mean.interval_method for standing in board.standings if standing.mean.interval_method}:
        yield Text(f"Intervals: {' or '.join(sorted(methods))}.")
    yield Text(f"{len(board.pairwise)} tests, two-sided, Holm-corrected, at {board.alpha:g}:")
    told = [pair for pair in board.pairwise if pair.significant]
    yield from [Text(f"{pair.a} is better than {pair.b}: {p_text(pair.p_holm)} ({pair.method})") for pair in told] or [
        Text("no significant difference")
    ]
    for note in board.notes:
        yield Text(f"note: {note}")


def _one(one: Comparison) -> Iterator[Block]:
    head = ["", "A", "B", "B - A", f"{100 * (1 - one.alpha):g}% interval", "Holm's p"]
    yield Table(head, list(_measure_rows(one)), optional=["Holm's p"])
    yield Text(one.verdict)
    if one.p_value is not None:
        yield Text(f"{one.method[0].upper()}{one.method[1:]}: {p_text(one.p_value)}.{_power(one)}")
    yield from _methods(one)
    yield from _posterior(one)
    if one.paired:
        better = f"{one.b_only} better by B, {one.a_only} by A."
        if one.both is None:
            yield Text(f"{one.pairs} tasks: {better}")
        else:
            yield Text(f"{one.pairs} tasks: {one.both} passed by both, {one.neither} by neither, {better}")
    if one.gained:
        yield Text(f"B gained: {_named(one.gained)}")
    if one.lost:
        yield Text(f"B lost: {_named(one.lost)}")


def _methods(one: Comparison) -> Iterator[Text]:
    """The methods of intervals, and the numbers of tests for which they and the p-values are corrected."""
    if one.interval_holm_method:
        together = _together(one.alpha, one.at_once, "arms")
        yield Text(f"Interval of {_name(one.measure)}: {one.interval_holm_method}{together}.")
    others = {each.interval_holm_method for each in one.measures.values() if each.interval_holm_method}
    if others:
        together = _together(one.alpha, len(one.measures), "measures")
        yield Text(f"Intervals of the other measures: {'; '.join(sorted(others))}{together}.")
    if tests := sorted({each.method for each in one.measures.values()}):
        yield Text(f"p of the other measures: {' or '.join(tests)}, Holm-corrected for {len(one.measures)}.")


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
        cells = ["no results" if each.mean is None else shown(each.mean, one.measure) for each in compared]
    difference = "" if one.difference is None else shown(one.difference / one.scale, one.measure, signed=True)
    limits = tuple(limit / one.scale for limit in one.interval_holm) if one.interval_holm else None
    yield [_name(one.measure, of="Avg "), *cells, difference, _limits(limits, one.measure, signed=True), ""]
    if success and any(each.other_tasks for each in compared):
        yield ["On all its tasks", rate_of(one.a.figures), rate_of(one.b.figures), "", "", ""]
    for name, ratio in one.ratios.items():
        interval = "×{:.3g} to ×{:.3g}".format(*ratio.interval) if ratio.interval else ""
        yield [f"GM {name}", f"{ratio.a:.3g}", f"{ratio.b:.3g}", f"×{ratio.ratio:.3g}", interval, ""]
    for name, found in one.measures.items():
        if name in known and name not in one.ratios and (found.a or found.b):
            yield [_name(known[name], of="Avg "), *_difference_cells(found, known[name])]
    if any(each.cost_per_success for each in compared):
        costs = (f"${cost:.5f}" if (cost := each.cost_per_success) is not None else "" for each in compared)
        yield ["Cost per success", *costs, "", "", ""]


def _name(measure: Measure, of: str = "") -> str:
    if measure.name == SUCCESS.name:
        return "Success rate" if of else "success rate"
    return f"{of}{measure.name}"


def _difference_cells(found: Difference, measure: Measure) -> list[str]:
    return [
        shown(found.a, measure),
        shown(found.b, measure),
        shown(found.difference, measure, signed=True),
        _limits(found.interval_holm, measure, signed=True),
        p_figure(found.p_holm),
    ]


def _limits(interval: tuple[float, ...] | None, measure: Measure, *, signed: bool = False) -> str:
    """Both ends of an interval, with the word `points` once."""
    if interval is None:
        return ""
    low, high = (shown(limit, measure, signed=signed).removesuffix(" points") for limit in interval)
    return f"{low} to {high}"


def _failure_blocks(comparison: Comparison) -> Iterator[Block]:
    found = {"A": failures_of(comparison.a), "B": failures_of(comparison.b)}
    if any(failures.causes for failures in found.values()):
        others = comparison.a_compared.other_tasks or comparison.b_compared.other_tasks
        yield Heading(f"Failed attempts by cause{', on all their tasks' if others else ''}")
        yield causes_table(found)
    for name, failures in found.items():
        if failures.never_fixed:
            never = ", ".join(cause.cause for cause in failures.never_fixed[:_MOST_CAUSES])
            yield Text(f"{name} never fixed: {never}")
        yield Text(f"{name}: {_took(failures)}")


def _took(failures: Failures) -> str:
    if failures.cost_per_solved_task is None:
        return "no task was solved"
    tiers = ", ".join(f"{tier} ${cost:.4f}" for tier, cost in failures.cost_by_tier.items() if cost)
    by_tier = f" (cost by tier: {tiers})" if tiers else ""
    cost = f"${failures.cost_per_solved_task:.5f} a solved task{by_tier}, " if failures.cost_per_solved_task else ""
    return f"{cost}{failures.tokens_to_solution or 0:,.0f} tokens to a solution (median)"


def _differing(title: str, values: Mapping[str, tuple[Any, Any]]) -> Iterator[Block]:
    if values:
        yield Heading(title)
        yield Table(["", "A", "B"], [[name, _shown(a), _shown(b)] for name, (a, b) in values.items()])


def _described(side: Side) -> str:
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


def _posterior(one: Comparison) -> Iterator[Text]:
    if one.probability_better is not None:
        probability = min(max(one.probability_better, 0.0001), 0.9999)
        yield Text(f"Posterior probability that B is better, all rates alike likely before: {probability:.4g}.")


def _power(one: Comparison) -> str:
    if one.smallest_difference is None:
        return ""
    size = one.smallest_difference
    clusters = f" in {one.clusters} clusters" if one.clusters else ""
    count = f"{one.pairs} tasks{clusters}" if one.paired else f"so many tasks{clusters}"
    rounded = f"{size:.0f} points" if size >= 10 else f"{size:.1f} points"
    about = rounded if one.measure.two_valued else shown(size, one.measure)
    return f" With {count} only a difference of about {about} could be detected."


def _named(tasks: Sequence[str]) -> str:
    more = f", … ({len(tasks) - _MOST_TASKS} more; --json has all)" if len(tasks) > _MOST_TASKS else ""
    return ", ".join(tasks[:_MOST_TASKS]) + more


def _shown(value: Any) -> str:
    return "" if value is None else str(value)
