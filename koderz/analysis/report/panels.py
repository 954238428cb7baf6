"""The charts of the page, each with its title and its figures as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from koderz.analysis.report import charts
from koderz.analysis.report.charts import Plot, amount, value_of
from koderz.analysis.report.view import Entry, headline


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and the same as a table."""

    id: str
    title: str
    text: str
    plot: Plot
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def panels(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Those charts that say something on these arms."""
    chosen = headline(entries)
    if len(chosen) > 1:
        yield _pareto(chosen)
    if max((entry.attempts for entry in chosen), default=0) > 1:
        yield _by_iteration(chosen)
    if charts.has_trend(entries):
        yield _trend(entries)


def _pareto(chosen: Sequence[Entry]) -> Chart:
    priced = any(entry.figures.avg_cost for entry in chosen)
    heads = ("Model", "Cost a task", "Passed", "Cost a pass") if priced else ("Model", "Tokens a task", "Passed")
    rows = [
        (e.title, amount(value_of(e, priced=priced), priced=priced), f"{e.figures.rate:.1f}%", e.cost_a_pass)
        for e in chosen
    ]
    return Chart(
        "pareto",
        "Cost against success",
        "Up and to the left is better. The dashed line joins what nothing cheaper surpasses.",
        charts.pareto(chosen, priced=priced),
        heads,
        [row[: len(heads)] for row in rows],
    )


def _by_iteration(chosen: Sequence[Entry]) -> Chart:
    numbers = range(1, max(entry.attempts for entry in chosen) + 1)
    return Chart(
        "iterations",
        "Success by iteration",
        "Passed within so many attempts: what iterating brings, and where it stops bringing more.",
        charts.by_iteration(chosen),
        ("Model", *map(str, numbers)),
        [(e.title, *(f"{e.solved_by(k):.1f}%" for k in numbers)) for e in chosen],
    )


def _trend(entries: Sequence[Entry]) -> Chart:
    return Chart(
        "trend",
        "Over time",
        "Each model's runs in the order of time, with 95% Wilson intervals. Hollow: a run that isn't complete.",
        charts.trend(entries),
        ("Run", "Begun", "Passed", "95% Wilson interval"),
        [(e.title, e.begun, f"{e.figures.rate:.1f}%", e.interval) for e in entries],
    )
