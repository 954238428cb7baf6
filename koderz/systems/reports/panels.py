"""The charts of the page, each with its figures as a table, and tables of failures and of resources used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean
from typing import Any

from koderz.analysis.failures import Cause, Failures, failures_of
from koderz.analysis.measures import SUCCESS
from koderz.analysis.runs import Run
from koderz.analysis.sections import Scale
from koderz.analysis.sequential import sentence
from koderz.systems.reports import charts
from koderz.systems.reports.charts import Band, Mark, Plot, amount, value_of
from koderz.systems.reports.view import Entry, average, by_series, headline, measured, shown_in
from koderz_tracker.outline import each_of
from koderz_tracker.records import PASSES, Measure

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
    heads = [
        "Model",
        "Cost a task" if priced else "Tokens a task",
        "Passed" if success else measure.name,
    ]
    rows = [
        [
            e.title,
            amount(value_of(e, priced=priced), priced=priced),
            f"{e.figures.rate:.1f}%"
            if success
            else average(e.figures.measures[measure.name], measure),
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
    rates = [
        {task: fmean(passes) for task, passes in entry.values(SUCCESS).items()} for entry in entries
    ]
    passed: dict[str, list[float]] = defaultdict(list)
    for of_entry in rates:
        for task, rate in of_entry.items():
            passed[task].append(rate)
    mean = {task: 100 * sum(found) / len(found) for task, found in passed.items()}
    tasks = sorted(mean, key=lambda task: (mean[task], _natural(task)))
    strips = [
        _strip(entry, of_entry, tasks) for entry, of_entry in zip(entries, rates, strict=True)
    ]
    return HeatMap(
        suite, tasks, [(task, mean[task]) for task in tasks[:10] if mean[task] < 100], strips
    )


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
    return Strip(
        entry, paths, f"{entry.title}: of {len(rates)} tasks {always} always passed, {never} never"
    )


def _shade(rate: float) -> int:
    if rate in (0.0, 1.0):
        return 0 if not rate else SHADES - 1
    return 1 + min(int(rate * (SHADES - 2)), SHADES - 3)


def _natural(task: str) -> tuple[str, int]:
    """A sort key that puts `HumanEval/9` before `HumanEval/10`."""
    name, _, number = task.rpartition("/")
    return name, int(number) if number.isdigit() else 0


_MOST_DECISIONS, _MOST_POINTS, _MOST_BANDS, _MOST_ROWS = 6, 120, 50, 20  # of decisions; of each
_COLOUR = 1

Point = tuple[int, float, float, float]
"""Counted tasks, e-value, and the ends of the interval of the difference."""


def decision_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Two charts of each of the newest decisions: the interval along the tasks, and the evidence for a claim."""
    found = [
        (run, decision)
        for run in runs
        for decision in each_of(run.decision)
        if decision.get("path")
    ]
    for number, (run, decision) in enumerate(found[-_MOST_DECISIONS:]):
        a, b, told = decision["a"], decision["b"], sentence(decision, named=True)
        title = f"{b} less {a}" + (f", {run.name}" if len(runs) > 1 else "")
        points = _thinned(
            [
                (int(tasks), float(e), float(low), float(high))
                for tasks, e, low, high in decision["path"]
            ],
            _MOST_POINTS,
        )
        heads, rows = _table(points, _unit(decision))
        # the path is that of judged pairs, and the sentence allows for those left out
        about = f"{told} {'Each interval holds' if len(points) > 1 else 'It holds'} at whatever moment one looks."
        judged = " Of the judged tasks alone; a claim allows for those left out." * bool(
            decision.get("interval_bounds")
        )
        yield Chart(
            f"decision-{number}",
            f"Decision: {title}",
            about + judged,
            _interval_plot(points, decision),
            heads,
            rows,
        )
        limit = 1 / decision["alpha"]
        up = Scale([limit, *(max(point[1], 1e-9) for point in points)])
        lines = [[(point[0], max(point[1], 1e-9)) for point in points]]
        across = _across(points)
        mark = Mark(
            across.place(points[-1][0]),
            up.place(lines[0][-1][1]),
            _COLOUR,
            tooltip=f"{points[-1][1]:.3g}",
        )
        yield Chart(
            f"evidence-{number}",
            f"Evidence: {title}",
            f"The e-value against no difference; from {limit:g} on, the dashed line, a difference is shown.{judged}",
            _plot(
                points,
                across,
                up,
                lines,
                [limit],
                [mark],
                "e-value, logarithmic scale",
                "the evidence",
            ),
            heads,
            rows,
        )


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    """About so many of the points, the last among them."""
    every = -(-len(points) // most)
    return [*points[:-1][::every], points[-1]]


def _unit(decision: Mapping[str, Any]) -> str:
    return "points" if decision["measure"] == PASSES else str(decision["measure"])


def _table(points: Sequence[Point], unit: str) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = [
        [str(tasks), f"{e:.3g}", f"{low:+.1f} to {high:+.1f}"]
        for tasks, e, low, high in _thinned(points, _MOST_ROWS)
    ]
    return ["Tasks", "E-value", f"Interval, {unit}"], rows


def _interval_plot(points: Sequence[Point], decision: Mapping[str, Any]) -> Plot:
    up = Scale([0.0, *(limit for point in points for limit in point[2:])], linear=True)
    lines = [[(point[0], point[end]) for point in points] for end in (2, 3)]
    margin = decision.get("margin")
    across = _across(points)
    levels = [0.0, *([-margin, margin] if margin is not None else [])]
    last = points[-1]
    mark = Mark(
        across.place(last[0]),
        up.place(decision["difference"] or 0.0),
        _COLOUR,
        interval=(up.place(last[2]), up.place(last[3])),
        tooltip=f"{decision['outcome']} after {last[0]} tasks",
    )
    label = f"difference, {_unit(decision)}"
    return _plot(
        points,
        across,
        up,
        lines,
        levels,
        [mark],
        label,
        "the ends of its interval, and where it stopped",
    )


def _across(points: Sequence[Point]) -> Scale:
    return Scale([0.0, *(float(point[0]) for point in points)], linear=True)


def _plot(
    points: Sequence[Point],
    across: Scale,
    up: Scale,
    lines: Sequence[Sequence[tuple[int, float]]],
    levels: Sequence[float],
    marks: Sequence[Mark],
    label: str,
    key: str,
) -> Plot:
    """Curves over the counted tasks, and dashed lines at some levels."""
    return Plot(
        x_label="tasks counted",
        y_label=label,
        ticks=[(across.place(tick), f"{tick:,.4g}") for tick in across.ticks()],
        rules=[(up.place(tick), f"{tick:,.4g}") for tick in up.ticks()],
        lines=[
            *((0, [(0.0, up.place(level)), (100.0, up.place(level))]) for level in levels),
            *(
                (_COLOUR, [(across.place(tasks), up.place(value)) for tasks, value in line])
                for line in lines
            ),
        ],
        marks=marks,
        bands=[*_bands(points, across)],
        keys=[(_COLOUR, key)],
    )


def _bands(points: Sequence[Point], across: Scale) -> Iterator[Band]:
    kept = _thinned(points, _MOST_BANDS)
    places = [across.place(point[0]) for point in kept]
    borders = [0.0, *((a + b) / 2 for a, b in pairwise(places)), 100.0]
    for (tasks, e, low, high), (left, right) in zip(kept, pairwise(borders), strict=True):
        yield Band(left, right, f"after {tasks} tasks: {low:+.1f} to {high:+.1f}, e-value {e:.3g}")
