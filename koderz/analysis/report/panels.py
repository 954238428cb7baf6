"""The charts of the page, each with its title and its figures as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from koderz.analysis.report.view import Entry, latest


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and the same as a table for whoever can't see it."""

    id: str
    title: str
    text: str
    svg: str  # drawn by us, labels escaped by matplotlib
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def panels(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Those charts that say something on these arms."""
    from koderz.analysis.report import charts

    last = latest(entries)
    if len(last) > 1:
        yield _pareto(last)
    if max((entry.attempts for entry in last), default=0) > 1:
        yield _by_iteration(last)
    if charts.has_trend(entries):
        yield _trend(entries)


def _pareto(last: Sequence[Entry]) -> Chart:
    from koderz.analysis.report import charts

    return Chart(
        "pareto",
        "Cost against success",
        "Up and to the left is better. The dashed line joins what nothing cheaper surpasses.",
        charts.pareto(last),
        ("Model", "Cost a task", "Passed", "Cost a pass"),
        [(e.label, f"${e.figures.avg_cost:.5f}", f"{e.figures.success_rate:.1f}%", e.cost_a_pass) for e in last],
    )


def _by_iteration(last: Sequence[Entry]) -> Chart:
    from koderz.analysis.report import charts

    numbers = range(1, max(entry.attempts for entry in last) + 1)
    return Chart(
        "iterations",
        "Success by iteration",
        "Passed within so many attempts: what iterating brings, and where it stops bringing more.",
        charts.by_iteration(last),
        ("Model", *map(str, numbers)),
        [(e.label, *(f"{e.solved_by(k):.1f}%" for k in numbers)) for e in last],
    )


def _trend(entries: Sequence[Entry]) -> Chart:
    from koderz.analysis.report import charts

    return Chart(
        "trend",
        "Over time",
        "Each model's runs in the order of time, with 95% Wilson intervals.",
        charts.trend(entries),
        ("Run", "Begun", "Passed", "95% Wilson interval"),
        [
            (e.label, e.run.start_time[:16].replace("T", " "), f"{e.figures.success_rate:.1f}%", e.interval)
            for e in entries
        ],
    )
