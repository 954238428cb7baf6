"""The charts of the page, each with its figures as a table, and tables of failures and of resources used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from koderz.analysis.failures import Cause, Failures, failures_of
from koderz.analysis.measures import SUCCESS
from koderz.analysis.report import charts
from koderz.analysis.report.charts import Plot, amount, value_of
from koderz.analysis.report.view import Entry, average, by_series, headline, measured, shown_in
from koderz_tracker.records import Measure

_MOST = 6  # arms whose failures are told, and measures that have charts


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, and its figures as a table."""

    id: str
    title: str
    text: str
    plot: Plot
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def panels(entries: Sequence[Entry]) -> Iterator[Chart]:
    """The charts that have something to show for these arms."""
    chosen = shown_in("cost", headline(entries))
    passing = [entry for entry in chosen if entry.measure is SUCCESS]
    if len(passing) > 1:
        yield _against_cost("pareto", passing, SUCCESS)
    for number, measure in enumerate([*measured(chosen).values()][:_MOST]):
        having = [entry for entry in chosen if measure.name in entry.figures.measures]
        if len(having) > 1:
            yield _against_cost(f"measure-{number}", having, measure)
    iterating = shown_in("iterations", headline(entries))
    if max((entry.attempts for entry in iterating), default=0) > 1:
        yield _by_iteration(iterating)
    known = {entry.measure.name: entry.measure for entry in entries}
    for number, measure in enumerate(sorted(known.values(), key=lambda each: each is not SUCCESS)):
        having = [e for e in shown_in("trend", entries) if e.measure == measure and e.is_summed_up]
        if any(len(series) > 1 for series in by_series(having)):
            yield _trend(f"trend-{number}" if number else "trend", having, measure)


def _against_cost(name: str, chosen: Sequence[Entry], measure: Measure) -> Chart:
    priced = any(entry.figures.avg_cost for entry in chosen)
    success = measure is SUCCESS
    heads = ["Model", "Cost a task" if priced else "Tokens a task", "Passed" if success else measure.name]
    rows = [
        [
            e.title,
            amount(value_of(e, priced=priced), priced=priced),
            f"{e.figures.rate:.1f}%" if success else average(e.figures.measures[measure.name], measure),
            *([e.cost_a_pass] if success and priced else []),
        ]
        for e in chosen
    ]
    better = "Up" if measure.direction == "higher" else "Down"
    return Chart(
        name,
        f"Cost against {measure.name}",
        f"{better} and to the left is better. A dashed line joins what nothing cheaper on the same tasks surpasses.",
        charts.against_cost(chosen, measure, priced=priced),
        [*heads, "Cost a pass"] if success and priced else heads,
        rows,
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


def _trend(name: str, entries: Sequence[Entry], measure: Measure) -> Chart:
    success = measure is SUCCESS
    return Chart(
        name,
        "Over time" if success else f"Over time: {measure.name}",
        "Each model's runs in the order of time, with 95% intervals; a line joins runs on the same tasks. "
        "Hollow: a run that isn't complete.",
        charts.trend(entries, measure),
        ("Run", "Begun", "Passed" if success else measure.name, "95% interval"),
        [(e.title, e.begun, "".join(e.value), e.limits) for e in entries],
    )


@dataclass(frozen=True, slots=True)
class Causes:
    """Causes down, arms across: the number of experiments with each cause, and the fixes by later attempts."""

    columns: Sequence[tuple[Entry, Failures]]
    rows: Sequence[tuple[str, Sequence[Cause | None]]]


def causes_of(entries: Sequence[Entry]) -> Causes:
    """The causes in each model's headline run."""
    failing = [entry for entry in shown_in("causes", headline(entries)) if entry.passed]
    told = [(entry, failures_of(entry)) for entry in failing[-_MOST:]]
    by_name = [{cause.cause: cause for cause in failures.causes} for _, failures in told]
    total: Counter[str] = Counter()
    for causes in by_name:
        total.update({name: cause.experiments for name, cause in causes.items()})
    names = sorted(total, key=lambda name: (-total[name], name))[: 2 * _MOST]
    return Causes(told, [(name, [causes.get(name) for causes in by_name]) for name in names])


SHADE_NAMES = ("never passed", "seldom", "now and then", "mostly", "always passed")
SHADES = len(SHADE_NAMES)  # those between: up to a third, two thirds, all but


@dataclass(frozen=True, slots=True)
class Strip:
    """One arm's cells."""

    entry: Entry
    paths: Sequence[str]  # SVG path data by shade, one unit a task
    spoken: str  # what a screen reader says


@dataclass(frozen=True, slots=True)
class HeatMap:
    """All arms of one suite."""

    suite: str
    tasks: Sequence[str]  # hardest first
    hardest: Sequence[tuple[str, float]]  # ids and per cent passed
    strips: Sequence[Strip]


def heat_maps(entries: Sequence[Entry]) -> list[HeatMap]:
    """One heat map for each suite."""
    suites: dict[str, list[Entry]] = {}
    for entry in entries:
        suites.setdefault(entry.run.suite, []).append(entry)
    return [_heat_map(suite, members) for suite, members in suites.items()]


def _heat_map(suite: str, entries: Sequence[Entry]) -> HeatMap:
    rates = [{task: fmean(passes) for task, passes in entry.values(SUCCESS).items()} for entry in entries]
    passed: dict[str, list[float]] = defaultdict(list)
    for of_entry in rates:
        for task, rate in of_entry.items():
            passed[task].append(rate)
    mean = {task: 100 * sum(found) / len(found) for task, found in passed.items()}
    tasks = sorted(mean, key=lambda task: (mean[task], _natural(task)))
    strips = [_strip(entry, of_entry, tasks) for entry, of_entry in zip(entries, rates, strict=True)]
    return HeatMap(suite, tasks, [(task, mean[task]) for task in tasks[:10] if mean[task] < 100], strips)


def _strip(entry: Entry, rates: Mapping[str, float], tasks: Sequence[str]) -> Strip:
    paths = [""] * SHADES
    begun = 0
    for shade, cells in groupby(_shade(rates[task]) if task in rates else None for task in tasks):
        width = len([*cells])  # neighbours of one shade are one box
        if shade is not None:
            paths[shade] += f"M{begun} 0h{width}v1h-{width}z"
        begun += width
    always = sum(rate == 1 for rate in rates.values())
    never = sum(rate == 0 for rate in rates.values())
    return Strip(entry, paths, f"{entry.title}: of {len(rates)} tasks {always} always passed, {never} never")


def _shade(rate: float) -> int:
    if rate in (0.0, 1.0):
        return 0 if not rate else SHADES - 1
    return 1 + min(int(rate * (SHADES - 2)), SHADES - 3)


def _natural(task: str) -> tuple[str, int]:
    """A sort key that puts `HumanEval/9` before `HumanEval/10`."""
    name, _, number = task.rpartition("/")
    return name, int(number) if number.isdigit() else 0
