"""Charts as values that the page draws: every place is a share of the plot, so that one drawing fits any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from koderz.analysis.report.scales import Scale, dates
from koderz.analysis.report.sections import Curves, Spread, Spreads
from koderz.analysis.report.view import COLOURS, Entry, average, by_series, named
from tracker.records import Measure

_NEAR = 4.0  # per cent of the width: what lies nearer together shares a band
_MOST_TOLD = 8  # lines of a band
_MOST_SPREADS = 40


@dataclass(frozen=True, slots=True)
class Mark:
    """One value. Places are per cent of the plot, from its left and its top."""

    x: float
    y: float
    low: float | None  # where its interval ends, below and above
    high: float | None
    colour: int
    hollow: bool  # of a run that isn't complete


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line between two places. Colour 0 is the dashed one of what nothing cheaper surpasses."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: int


@dataclass(frozen=True, slots=True)
class Band:
    """What is told where the pointer or the focus is between two places."""

    left: float
    right: float
    text: str

    @property
    def side(self) -> str:
        """Which way its text reaches, so that it stays within the plot."""
        middle = (self.left + self.right) / 2
        return "start" if middle < 33 else "end" if middle > 67 else "middle"


@dataclass(frozen=True, slots=True)
class Plot:
    """Success rates or another measure, upwards, against something."""

    x_label: str
    y_label: str
    ticks: Sequence[tuple[float, str]]
    rules: Sequence[tuple[float, str]]  # the ticks of the height, from its bottom
    lines: Sequence[Line]
    marks: Sequence[Mark]
    bands: Sequence[Band]
    keys: Sequence[tuple[int, str]]  # colours with their names


@dataclass(frozen=True, slots=True)
class _Point:
    entry: Entry
    x: float  # per cent of the width
    y: float  # per cent of the height, from its bottom
    interval: tuple[float, float] | None  # likewise
    told: str


_PER_CENT = [(float(y), str(y)) for y in (0, 25, 50, 75, 100)]


def pareto(entries: Sequence[Entry], *, priced: bool) -> Plot:
    """What a task costs, or takes in tokens where nothing costs anything, against the success rate."""
    at = [(entry.figures.rate, entry.figures.success_rate_interval, _told(entry)) for entry in entries]
    return _against_cost(entries, at, _PER_CENT, "passed, per cent", priced=priced)


def of_measure(entries: Sequence[Entry], measure: Measure, *, priced: bool) -> Plot:
    """The same against the averages of a measure, which all of these have."""
    means = [entry.figures.measures[measure.name] for entry in entries]
    scale = Scale([limit for mean in means for limit in (mean.mean, *(mean.interval or ()))], linear=True)
    at = [
        (
            scale.place(mean.mean),
            mean.interval and (scale.place(mean.interval[0]), scale.place(mean.interval[1])),
            f"{entry.name} {average(mean, measure)}",
        )
        for entry, mean in zip(entries, means, strict=True)
    ]
    rules = [(scale.place(tick), f"{tick:,.4g}") for tick in scale.ticks()]
    label = f"{measure.name}{f' ({measure.unit})' if measure.unit else ''}, {measure.direction} is better"
    return _against_cost(entries, at, rules, label, priced=priced, lower=measure.direction == "lower")


def _against_cost(
    entries: Sequence[Entry],
    at: Sequence[tuple[float, tuple[float, float] | None, str]],
    rules: Sequence[tuple[float, str]],
    y_label: str,
    *,
    priced: bool,
    lower: bool = False,
) -> Plot:
    """`at`: the height of each entry, that of its interval's ends, and what is told of it; `lower` is better."""
    values = [value_of(entry, priced=priced) for entry in entries]
    scale = Scale(values)
    points = [
        _Point(entry, scale.place(value), y, interval, f"{told}, {amount(value, priced=priced)} a task")
        for entry, value, (y, interval, told) in zip(entries, values, at, strict=True)
    ]
    label = "US dollars a task" if priced else "tokens a task (no model here costs money)"
    return Plot(
        x_label=f"{label}, logarithmic scale" if scale.logarithmic else label,
        y_label=y_label,
        ticks=[(scale.place(tick), amount(tick, priced=priced)) for tick in scale.ticks()],
        rules=rules,
        lines=_frontier([(point.x, point.y) for point in points], lower=lower),
        marks=list(map(_mark, points)),
        bands=_bands([(point.x, point.told) for point in points]),
        keys=_keys(entries),
    )


def by_iteration(entries: Sequence[Entry]) -> Plot:
    """Passed within so many attempts."""
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
        lines=[line for entry, found in zip(entries, rates, strict=True) for line in _joined(found, entry.colour)],
        marks=[
            Mark(x, 100 - rate, None, None, entry.colour, not entry.is_complete)
            for entry, found in zip(entries, rates, strict=True)
            for x, rate in found
        ],
        bands=[
            Band(x - width / 2, x + width / 2, _told_at(number, [(e, e.solved_by(number)) for e in entries]))
            for number, x in places
        ],
        keys=_keys(entries),
    )


def trend(entries: Sequence[Entry]) -> Plot:
    """Success rates with their intervals in the order of time, a line a model and arm."""
    moments = [_moment(entry) for entry in entries]
    scale = Scale([moment.timestamp() for moment in moments], linear=True)
    points = [
        _Point(
            entry,
            scale.place(moment.timestamp()),
            entry.figures.rate,
            entry.figures.success_rate_interval,
            f"{entry.begun}: {_told(entry)}",
        )
        for entry, moment in zip(entries, moments, strict=True)
    ]
    at = {point.entry: (point.x, point.y) for point in points}
    return Plot(
        x_label="time",
        y_label="passed, per cent",
        ticks=dates(scale, min(moments), max(moments)),
        rules=_PER_CENT,
        lines=[
            line for series in by_series(entries) for line in _joined([at[entry] for entry in series], series[0].colour)
        ],
        marks=list(map(_mark, points)),
        bands=_bands([(point.x, point.told) for point in points]),
        keys=_keys(entries),
    )


def steps(drawn: Curves) -> Plot:
    """Curves whose values hold until the next one, in one colour for each name."""
    points = [point for curve in drawn.curves for point in curve.points]
    across, up = (Scale([point[axis] for point in points], linear=True) for axis in (0, 1))
    names = {name: 1 + i % COLOURS for i, name in enumerate(dict.fromkeys(curve.name for curve in drawn.curves))}
    placed = {curve: [(across.place(x), up.place(y)) for x, y in curve.points] for curve in drawn.curves}
    corners = {
        curve: [places[0], *(each for (_, y), b in pairwise(places) for each in ((b[0], y), b))]
        for curve, places in placed.items()
    }
    return Plot(
        x_label=drawn.x_label,
        y_label=drawn.y_label,
        ticks=[(across.place(tick), f"{tick:,.4g}") for tick in across.ticks()],
        rules=[(up.place(tick), f"{tick:,.4g}") for tick in up.ticks()],
        lines=[line for curve, places in corners.items() for line in _joined(places, names[curve.name])],
        marks=[
            Mark(x, 100 - y, None, None, names[curve.name], hollow=False)
            for curve, places in placed.items()
            for x, y in places
        ],
        bands=_bands(
            [
                (place, f"{curve.label}: {y:.4g} at {x:,.4g}")
                for curve, places in placed.items()
                for (place, _), (x, y) in zip(places, curve.points, strict=True)
            ]
        ),
        keys=[(colour, name) for name, colour in names.items()],
    )


def spreads(drawn: Spreads) -> Plot:
    """Values with their intervals above each other's names, upwards; hollow, what they were estimated from."""
    shown = drawn.spreads[:_MOST_SPREADS]
    scale = scale_of(drawn)
    order = dict.fromkeys((*drawn.names, *(each.name for each in shown)))
    names = {name: 1 + i % COLOURS for i, name in enumerate(order) if any(each.name == name for each in shown)}
    width = 100 / len(shown)
    at = [(width * (number + 0.5), names[each.name], each) for number, each in enumerate(shown)]
    limits = [100 - scale.place(limit) for limit in drawn.limits]
    left_out = len(drawn.spreads) - len(shown)
    return Plot(
        x_label=f"and {left_out} more, in the table" if left_out else "",
        y_label=f"{drawn.label}, logarithmic scale",
        ticks=(),
        rules=[(scale.place(tick), f"{tick:,.4g}") for tick in scale.ticks()],
        lines=[Line(0, y, 100, y, 0) for y in limits],
        marks=[
            *(Mark(x, 100 - scale.place(p), None, None, colour, hollow=True) for x, colour, e in at for p in e.points),
            *(
                Mark(x, 100 - scale.place(e.value), *(_ends(scale, e.interval)), colour, hollow=False)
                for x, colour, e in at
            ),
        ],
        bands=[Band(x - width / 2, x + width / 2, f"{each.label}: {spread_told(each)}") for x, _, each in at],
        keys=[(colour, name) for name, colour in names.items()],
    )


def spread_told(spread: Spread) -> str:
    """A value with its interval, in words."""
    interval = spread.interval
    return f"{spread.value:.3g}" + (f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else "")


def scale_of(drawn: Spreads) -> Scale:
    """That of all that is drawn."""
    of_spreads = (value for each in drawn.spreads for value in (each.value, *each.points, *(each.interval or ())))
    return Scale([*of_spreads, *drawn.limits])


def _ends(scale: Scale, interval: tuple[float, float] | None) -> tuple[float | None, float | None]:
    return (100 - scale.place(interval[0]), 100 - scale.place(interval[1])) if interval else (None, None)


def has_trend(entries: Sequence[Entry]) -> bool:
    """Whether some model was run more than once."""
    return any(len(series) > 1 for series in by_series(entries))


def value_of(entry: Entry, *, priced: bool) -> float:
    """What a task cost, in US dollars, or took in tokens."""
    figures = entry.figures
    return figures.avg_cost if priced else (figures.tokens_in + figures.tokens_out) / figures.total_problems


def amount(value: float, *, priced: bool) -> str:
    """As the page writes it: `$0.0012`, `1,280`."""
    return f"${value:,.3g}" if priced and value >= 0.0001 else f"${value:.2g}" if priced else f"{value:,.0f}"


def _moment(entry: Entry) -> datetime:
    try:
        return datetime.fromisoformat(entry.run.start_time).replace(tzinfo=None)
    except ValueError:  # an old file may not say
        return datetime(1970, 1, 2)


def _told(entry: Entry) -> str:
    return f"{entry.name} {entry.figures.rate:.1f}% (95% Wilson interval {entry.interval})"


def _told_at(number: int, rates: Sequence[tuple[Entry, float]]) -> str:
    head = f"within {number} attempt{'' if number == 1 else 's'}"
    return _few([head, *(f"{entry.name} {rate:.1f}%" for entry, rate in rates)])


def _few(lines: Sequence[str]) -> str:
    left_out = len(lines) - _MOST_TOLD
    return "\n".join([*lines[:_MOST_TOLD], *([f"and {left_out} more, in the table below"] if left_out > 0 else [])])


def _mark(point: _Point) -> Mark:
    low, high = (100 - point.interval[0], 100 - point.interval[1]) if point.interval else (None, None)
    return Mark(point.x, 100 - point.y, low, high, point.entry.colour, not point.entry.is_complete)


def _bands(points: Sequence[tuple[float, str]]) -> list[Band]:
    """The width shared out among groups of points that lie near together, each from half way to half way.

    `points`: per cent of the width, and what is told there.
    """
    groups: list[list[tuple[float, str]]] = []
    for point in sorted(points, key=lambda point: point[0]):
        if groups and point[0] - groups[-1][0][0] < _NEAR:
            groups[-1].append(point)
        else:
            groups.append([point])
    middles = [(group[0][0] + group[-1][0]) / 2 for group in groups]
    borders = [0.0, *((a + b) / 2 for a, b in pairwise(middles)), 100.0]
    return [
        Band(left, right, _few([told for _, told in group]))
        for group, (left, right) in zip(groups, pairwise(borders), strict=True)
    ]


def _joined(places: Sequence[tuple[float, float]], colour: int) -> list[Line]:
    return [Line(x1, 100 - y1, x2, 100 - y2, colour) for (x1, y1), (x2, y2) in pairwise(places)]


def _frontier(points: Sequence[tuple[float, float]], *, lower: bool) -> list[Line]:
    """Steps along those that no point at most as dear surpasses, the cheapest first."""
    up = -1 if lower else 1
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -up * point[1])):
        if not best:
            best.append((x, y))
        elif up * y > up * best[-1][1]:
            best += [(x, best[-1][1]), (x, y)]
    return _joined(best, 0)


def _keys(entries: Sequence[Entry]) -> list[tuple[int, str]]:
    return list({(entry.colour, named(entry)): None for entry in entries})
