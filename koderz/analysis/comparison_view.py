"""A comparison or leaderboard as headings, sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koderz.analysis.blocks import Block, Heading, Table, Text
from koderz.analysis.comparison import Compared, Comparison
from koderz.analysis.failures import Failures, causes_table, failures_of
from koderz.analysis.inference import Difference
from koderz.analysis.intervals import Interval
from koderz.analysis.leaderboard import Leaderboard, Pair
from koderz.analysis.pairs import Side

_MOST_TASKS = 12  # flipped tasks that are named
_MOST_CAUSES = 8


def comparison_blocks(comparison: Comparison) -> Iterator[Block]:
    """Every arm compared, then what is said once: what differs between the runs."""
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
    """One run alone."""
    yield Text(_described(side))
    figures = side.figures
    yield Table(
        ["Success rate", "95% Wilson", "Total cost", "Avg cost", "Avg iterations", "Faults"],
        [
            [
                _rate(side),
                _per_cent(figures.success_rate_interval),
                f"${figures.total_cost:.4f}",
                f"${figures.avg_cost:.5f}",
                "" if figures.avg_iterations is None else f"{figures.avg_iterations:.1f}",
                str(side.faults),
            ]
        ],
        optional=["Avg iterations", "Avg cost"],
    )


def leaderboard_blocks(board: Leaderboard) -> Iterator[Block]:
    """Standings, then the tests that tell some of them apart."""
    yield Table(
        ["", "Run", "Model", "Arm", "Success rate", "95% Wilson", "Avg cost", "Avg iter.", "Against the first"],
        [
            [
                str(rank),
                standing.side.run.name,
                standing.side.model,
                standing.side.arm,
                _rate(standing.side),
                _per_cent(standing.interval),
                f"${standing.side.figures.avg_cost:.5f}",
                f"{standing.side.figures.avg_iterations:.1f}",
                "" if rank == 1 else "no significant difference" if standing.level_with_best else "worse",
            ]
            for rank, standing in enumerate(board.standings, start=1)
        ],
        optional=["Avg iter.", "Avg cost", "95% Wilson", "Model"],
    )
    yield Text(f"{len(board.pairwise)} tests, two-sided, Holm-corrected, at {board.alpha:g}:")
    shown = [pair for pair in board.pairwise if pair.significant]
    yield from [Text(_pair_line(pair)) for pair in shown] or [Text("no significant difference")]
    for note in board.notes:
        yield Text(f"note: {note}")


def _one(one: Comparison) -> Iterator[Block]:
    yield Table(["", "A", "B", "B - A", f"{100 * (1 - one.alpha):g}% interval"], _measure_rows(one))
    yield Text(one.verdict)
    if one.p_value is not None:
        yield Text(f"{one.method[0].upper()}{one.method[1:]}: p = {one.p_value:.3g}{_sure(one)}.{_power(one)}")
    if one.interval_method:
        of_averages = {each.interval_method for each in one.measures.values() if each.interval_method}
        averages = "".join(f", {method} (averages)" for method in of_averages)
        yield Text(f"Intervals: {one.interval_method} (success rate){averages}.")
    if one.paired:
        yield Text(
            f"{one.pairs} tasks: {one.both} passed by both, {one.neither} by neither, "
            f"{one.b_only} better by B, {one.a_only} by A."
        )
    if one.gained:
        yield Text(f"B gained: {_named(one.gained)}")
    if one.lost:
        yield Text(f"B lost: {_named(one.lost)}")


def _measure_rows(one: Comparison) -> list[list[str]]:
    difference = f"{one.difference:+.1f} points" if one.difference is not None else ""
    between = f"{one.interval[0]:+.1f} to {one.interval[1]:+.1f}" if one.interval else ""
    compared = (one.a_compared, one.b_compared)
    rows = [["Success rate", *map(_compared_rate, compared), difference, between]]
    if any(each.other_tasks for each in compared):
        rows.append(["On all its tasks", _rate(one.a), _rate(one.b), "", ""])
    for name, form in (("cost", "${:.5f}"), ("iterations", "{:.2f}"), ("latency", "{:.2f} s")):
        if (measure := one.measures.get(name)) and (name != "cost" or measure.a or measure.b):
            rows.append([f"Avg {name}", *_measure_cells(measure, form)])
    if any(each.cost_per_success for each in compared):
        costs = (f"${cost:.5f}" if (cost := each.cost_per_success) is not None else "" for each in compared)
        rows.append(["Cost per success", *costs, "", ""])
    return rows


def _measure_cells(measure: Difference, form: str) -> list[str]:
    interval = measure.interval
    return [
        form.format(measure.a),
        form.format(measure.b),
        _signed(measure.difference, form),
        f"{_signed(interval[0], form)} to {_signed(interval[1], form)}" if interval else "",
    ]


def _signed(value: float, form: str) -> str:
    return ("-" if value < 0 else "+") + form.format(abs(value))


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
    simulated = "SIMULATED " if run.simulated and side.model != "simulated" else ""
    return f"{run.name}: {simulated}{side.model}, {side.arm}, {run.status}, {run.start_time[:16].replace('T', ' ')}"


def _compared_rate(found: Compared) -> str:
    if found.success_rate is None:
        return "no results"
    # where tasks have unlike numbers of samples, passes of all samples say another rate
    alike = abs(found.success_rate * found.experiments - 100 * found.successes) < 1e-6
    count = f"{found.successes}/{found.experiments}" if alike else f"{found.tasks} tasks"
    return f"{found.success_rate:.1f}% ({count})"


def _rate(side: Side) -> str:
    figures = side.figures
    if not figures.total_problems:
        return "no results"
    return f"{figures.success_rate:.1f}% ({figures.successes}/{figures.total_problems})"


def _per_cent(interval: Interval | None) -> str:
    return f"{interval[0]:.1f}% to {interval[1]:.1f}%" if interval else ""


def _sure(one: Comparison) -> str:
    if one.probability_better is None:
        return ""
    return f"; B is better with a probability of {min(max(one.probability_better, 0.0001), 0.9999):.4g}"


def _power(one: Comparison) -> str:
    if one.smallest_difference is None:
        return ""
    points = one.smallest_difference
    count = f"{one.pairs} tasks" if one.paired else "so many tasks"
    about = f"{points:.0f}" if points >= 10 else f"{points:.1f}"
    return f" With {count} only a difference of about {about} points could be detected."


def _pair_line(pair: Pair) -> str:
    return f"{pair.a} is better than {pair.b}: p = {pair.p_holm:.3g} ({pair.method})"


def _named(tasks: Sequence[str]) -> str:
    more = f", … ({len(tasks) - _MOST_TASKS} more; --json has all)" if len(tasks) > _MOST_TASKS else ""
    return ", ".join(tasks[:_MOST_TASKS]) + more


def _shown(value: Any) -> str:
    return "" if value is None else str(value)
