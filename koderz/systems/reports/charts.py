"""Charts as values that the page draws; positions are shares of the plot, so that a drawing fits any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from koderz.analysis.measures import SUCCESS
from koderz.analysis.sections import Curves, Scale, Spread, Spreads, scale_of
from koderz.systems.reports.view import COLOURS, Entry, average, by_series, by_tasks, named
from koderz_tracker.records import Measure

_NEAR = 4.0  # per cent of the width: what lies nearer together shares a band
_MOST_TOLD = 8  # lines of a band
_MOST_SPREADS = 40


Place = tuple[float, float]
"""A position in per cent of the plot, from its left and its bottom."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One value at a position."""

    x: float
    y: float
    colour: int
    hollow: bool = False  # of a run that isn't complete, or what others were estimated from
    interval: tuple[float, float] | None = None  # where it begins and ends, from the bottom
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Band:
    """A region of the plot, and the text shown while the pointer or focus is in it."""

    left: float
    right: float
    text: str

    @property
    def side(self) -> str:
        """The direction in which its text extends, so that it stays within the plot."""
        middle = (self.left + self.right) / 2
        if middle < 33:
            return "start"
        return "end" if middle > 67 else "middle"


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of success rates or another measure against a quantity."""

    x_label: str
    y_label: str
    ticks: Sequence[tuple[float, str]]
    rules: Sequence[tuple[float, str]]  # the ticks of the height, from its bottom
    # straight from place to place; colour 0 is a dashed one
    lines: Sequence[tuple[int, Sequence[Place]]]
    marks: Sequence[Mark]
    bands: Sequence[Band]
    keys: Sequence[tuple[int, str]]  # colours with their names


_PER_CENT = [(float(y), str(y)) for y in (0, 25, 50, 75, 100)]


def against_cost(entries: Sequence[Entry], measure: Measure, *, priced: bool) -> Plot:
    """A plot of a measure that all arms have against a task's cost, or its tokens if nothing costs money."""
    values = [value_of(entry, priced=priced) for entry in entries]
    scale = Scale(values)
    y_label, rules, heights = _rates(entries) if measure is SUCCESS else _averages(entries, measure)
    marks = [
        replace(
            mark,
            x=scale.place(value),
            tooltip=f"{mark.tooltip}, {amount(value, priced=priced)} a task",
        )
        for mark, value in zip(heights, values, strict=True)
    ]
    label = "US dollars a task" if priced else "tokens a task (no model here costs money)"
    places = {entry: (mark.x, mark.y) for entry, mark in zip(entries, marks, strict=True)}
    lower = measure.direction == "lower"
    return Plot(
        x_label=f"{label}, logarithmic scale" if scale.logarithmic else label,
        y_label=y_label,
        ticks=[(scale.place(tick), amount(tick, priced=priced)) for tick in scale.ticks()],
        rules=rules,
        lines=[
            (0, _frontier([places[entry] for entry in same], lower=lower))
            for same in by_tasks(entries)
            if len(same) > 1
        ],
        marks=marks,
        bands=_bands(marks),
        keys=_keys(entries),
    )


def _rates(entries: Sequence[Entry]) -> tuple[str, list[tuple[float, str]], list[Mark]]:
    """The axis label, its ticks, and marks at the left, for success rates."""
    marks = []
    for entry in entries:
        figures, hollow = entry.figures, not entry.is_complete
        tooltip = f"{entry.name} {figures.rate:.1f}% ({figures.interval_text})"
        marks.append(
            Mark(0.0, figures.rate, entry.colour, hollow, figures.success_rate_interval, tooltip)
        )
    return "passed, per cent", _PER_CENT, marks


def _averages(
    entries: Sequence[Entry], measure: Measure
) -> tuple[str, list[tuple[float, str]], list[Mark]]:
    """The axis label, its ticks, and marks at the left, for averages of a measure."""
    means = [entry.figures.measures[measure.name] for entry in entries]
    scale = Scale(
        [limit for mean in means for limit in (mean.mean, *(mean.interval or ()))], linear=True
    )
    marks = [
        Mark(
            x=0.0,
            y=scale.place(mean.mean),
            colour=entry.colour,
            hollow=not entry.is_complete,
            interval=_placed(scale, mean.interval),
            tooltip=f"{entry.name} {average(mean, measure)}",
        )
        for entry, mean in zip(entries, means, strict=True)
    ]
    label = f"{measure.name}{f' ({measure.unit})' if measure.unit else ''}, {measure.direction} is better"
    return label, _ticks(scale), marks


def by_iteration(entries: Sequence[Entry]) -> Plot:
    """A plot of the experiments passed within a number of attempts."""
    most = max(entry.attempts for entry in entries)
    width = 100 / most
    places = [(number, width * (number - 0.5)) for number in range(1, most + 1)]
    rates = [[(x, entry.solved_by(number)) for number, x in places] for entry in entries]
    step = math.ceil(most / 10)
    return Plot(
        x_label="attempts",
        y_label="passed so far, per cent",
        ticks=[(x, str(number)) for number, x in places[::step]],
        rules=_PER_CENT,
        lines=[(entry.colour, found) for entry, found in zip(entries, rates, strict=True)],
        marks=[
            Mark(x, rate, entry.colour, not entry.is_complete)
            for entry, found in zip(entries, rates, strict=True)
            for x, rate in found
        ],
        bands=[
            Band(
                x - width / 2,
                x + width / 2,
                _told_at(number, [(e, e.solved_by(number)) for e in entries]),
            )
            for number, x in places
        ],
        keys=_keys(entries),
    )


def trend(entries: Sequence[Entry], measure: Measure = SUCCESS) -> Plot:
    """A plot of a measure with intervals over time; a line joins the values of one arm on the same tasks."""
    moments = []
    for entry in entries:
        try:
            moments.append(datetime.fromisoformat(entry.run.start_time).replace(tzinfo=None))
        except ValueError:  # an old file may not say
            moments.append(datetime(1970, 1, 2))
    scale = Scale([moment.timestamp() for moment in moments], linear=True)
    y_label, rules, heights = _rates(entries) if measure is SUCCESS else _averages(entries, measure)
    marks = {
        entry: replace(
            mark, x=scale.place(moment.timestamp()), tooltip=f"{entry.begun}: {mark.tooltip}"
        )
        for entry, mark, moment in zip(entries, heights, moments, strict=True)
    }
    return Plot(
        x_label="time",
        y_label=y_label,
        ticks=dates(scale, min(moments), max(moments)),
        rules=rules,
        lines=[
            (same[0].colour, [(marks[entry].x, marks[entry].y) for entry in same])
            for series in by_series(entries)
            for same in by_tasks(series)
        ],
        marks=list(marks.values()),
        bands=_bands(list(marks.values())),
        keys=_keys(entries),
    )


def steps(drawn: Curves) -> Plot:
    """A plot of curves whose values hold until the next one, in one colour for each name."""
    points = [point for curve in drawn.curves for point in curve.points]
    across, up = (Scale([point[axis] for point in points], linear=True) for axis in (0, 1))
    names = {
        name: 1 + i % COLOURS
        for i, name in enumerate(dict.fromkeys(curve.name for curve in drawn.curves))
    }
    marks = {
        curve: [
            Mark(
                across.place(x),
                up.place(y),
                names[curve.name],
                tooltip=f"{curve.label}: {y:.4g} at {x:,.4g}",
            )
            for x, y in curve.points
        ]
        for curve in drawn.curves
    }
    every = [mark for of_curve in marks.values() for mark in of_curve]
    return Plot(
        x_label=drawn.x_label,
        y_label=drawn.y_label,
        ticks=_ticks(across),
        rules=_ticks(up),
        lines=[(names[curve.name], _stairs(found)) for curve, found in marks.items()],
        marks=every,
        bands=_bands(every),
        keys=[(colour, name) for name, colour in names.items()],
    )


def _stairs(marks: Sequence[Mark]) -> list[Place]:
    """The positions of a staircase through the marks, level first."""
    return [(marks[0].x, marks[0].y), *((b.x, y) for a, b in pairwise(marks) for y in (a.y, b.y))]


def spreads(drawn: Spreads) -> Plot:
    """A plot of values with their intervals, one row a name; hollow marks are the values they were estimated from."""
    shown = drawn.spreads[:_MOST_SPREADS]
    scale = scale_of(drawn)
    order = dict.fromkeys((*drawn.names, *(each.name for each in shown)))
    names = {
        name: 1 + i % COLOURS
        for i, name in enumerate(order)
        if any(each.name == name for each in shown)
    }
    width = 100 / len(shown)
    at = [(width * (number + 0.5), names[each.name], each) for number, each in enumerate(shown)]
    left_out = len(drawn.spreads) - len(shown)
    return Plot(
        x_label=f"and {left_out} more, in the table" if left_out else "",
        y_label=f"{drawn.label}, logarithmic scale",
        ticks=(),
        rules=_ticks(scale),
        lines=[(0, [(0, scale.place(limit)), (100, scale.place(limit))]) for limit in drawn.limits],
        marks=[
            *(
                Mark(x, scale.place(point), colour, hollow=True)
                for x, colour, each in at
                for point in each.points
            ),
            *(
                Mark(x, scale.place(each.value), colour, interval=_placed(scale, each.interval))
                for x, colour, each in at
            ),
        ],
        bands=[
            Band(x - width / 2, x + width / 2, f"{each.label}: {spread_told(each)}")
            for x, _, each in at
        ],
        keys=[(colour, name) for name, colour in names.items()],
    )


def spread_told(spread: Spread) -> str:
    """A value with its interval, in words."""
    interval = spread.interval
    return f"{spread.value:.3g}" + (f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else "")


def _placed(scale: Scale, interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return interval and (scale.place(interval[0]), scale.place(interval[1]))


def _ticks(scale: Scale) -> list[tuple[float, str]]:
    return [(scale.place(tick), f"{tick:,.4g}") for tick in scale.ticks()]


def value_of(entry: Entry, *, priced: bool) -> float:
    """The mean cost of a task in US dollars, or its mean tokens."""
    figures = entry.figures
    return (
        figures.avg_cost
        if priced
        else (figures.tokens_in + figures.tokens_out) / figures.total_problems
    )


def amount(value: float, *, priced: bool) -> str:
    """An amount as text: `$0.0012` or `1,280`."""
    if not priced:
        return f"{value:,.0f}"
    return f"${value:,.3g}" if value >= 0.0001 else f"${value:.2g}"


def _told_at(number: int, rates: Sequence[tuple[Entry, float]]) -> str:
    head = f"within {number} attempt{'' if number == 1 else 's'}"
    return _few([head, *(f"{entry.name} {rate:.1f}%" for entry, rate in rates)])


def _few(lines: Sequence[str]) -> str:
    left_out = len(lines) - _MOST_TOLD
    return "\n".join(
        [
            *lines[:_MOST_TOLD],
            *([f"and {left_out} more, in the table below"] if left_out > 0 else []),
        ]
    )


def _bands(marks: Sequence[Mark]) -> list[Band]:
    """The width divided among groups of nearby marks, at half the distance between them."""
    groups: list[list[Mark]] = []
    for mark in sorted(marks, key=lambda mark: mark.x):
        if groups and mark.x - groups[-1][0].x < _NEAR:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    middles = [(group[0].x + group[-1].x) / 2 for group in groups]
    borders = [0.0, *((a + b) / 2 for a, b in pairwise(middles)), 100.0]
    return [
        Band(left, right, _few([mark.tooltip for mark in group]))
        for group, (left, right) in zip(groups, pairwise(borders), strict=True)
    ]


def _frontier(points: Sequence[Place], *, lower: bool) -> list[Place]:
    """The steps along the points that no cheaper or equally cheap point surpasses, the cheapest first."""
    up = -1 if lower else 1
    best: list[Place] = []
    for x, y in sorted(points, key=lambda point: (point[0], -up * point[1])):
        if not best:
            best.append((x, y))
        elif up * y > up * best[-1][1]:
            best += [(x, best[-1][1]), (x, y)]
    return best


def _keys(entries: Sequence[Entry]) -> list[tuple[int, str]]:
    return list({(entry.colour, named(entry)): None for entry in entries})


def dates(scale: Scale, first: datetime, last: datetime) -> list[tuple[float, str]]:
    """Ticks at the first moment, at the last, and between them: days, or times for a range below two days."""
    form = "%Y-%m-%d" if (last - first).days > 1 else "%m-%d %H:%M"
    middle = first + (last - first) / 2
    ticks = {
        f"{moment:{form}}": scale.place(moment.timestamp()) for moment in (last, middle, first)
    }
    return [(place, label) for label, place in ticks.items()]
