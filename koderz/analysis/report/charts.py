"""Charts as values that the page draws: every place is a share of the plot, so that one drawing fits any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from koderz.analysis.report.scales import Scale, dates
from koderz.analysis.report.view import Entry, named, series_of

_NEAR = 4.0  # per cent of the width: what lies nearer together shares a band
_MOST_TOLD = 8  # lines of a band


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
    """Success rates, per cent, against something."""

    x_label: str
    y_label: str
    ticks: Sequence[tuple[float, str]]
    lines: Sequence[Line]
    marks: Sequence[Mark]
    bands: Sequence[Band]
    keys: Sequence[tuple[int, str]]  # colours with their names


@dataclass(frozen=True, slots=True)
class _Point:
    entry: Entry
    x: float  # per cent of the width
    rate: float  # per cent
    told: str


def pareto(entries: Sequence[Entry], *, priced: bool) -> Plot:
    """What a task costs, or takes in tokens where nothing costs anything, against the success rate."""
    values = [(entry, value_of(entry, priced=priced)) for entry in entries]
    scale = Scale([value for _, value in values])
    points = [
        _Point(entry, scale.place(value), entry.figures.rate, f"{_told(entry)}, {amount(value, priced=priced)} a task")
        for entry, value in values
    ]
    label = "US dollars a task" if priced else "tokens a task (no model here costs money)"
    return Plot(
        x_label=f"{label}, logarithmic scale" if scale.logarithmic else label,
        y_label="passed, per cent",
        ticks=[(scale.place(tick), amount(tick, priced=priced)) for tick in scale.ticks()],
        lines=_frontier([(point.x, point.rate) for point in points]),
        marks=list(map(_mark, points)),
        bands=_bands(points),
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
        _Point(entry, scale.place(moment.timestamp()), entry.figures.rate, f"{entry.begun}: {_told(entry)}")
        for entry, moment in zip(entries, moments, strict=True)
    ]
    return Plot(
        x_label="time",
        y_label="passed, per cent",
        ticks=dates(scale, min(moments), max(moments)),
        lines=[
            line
            for series in _series(points)
            for line in _joined([(point.x, point.rate) for point in series], series[0].entry.colour)
        ],
        marks=list(map(_mark, points)),
        bands=_bands(points),
        keys=_keys(entries),
    )


def has_trend(entries: Sequence[Entry]) -> bool:
    """Whether some model was run more than once."""
    return any(len(series) > 1 for series in _series([_Point(entry, 0, 0, "") for entry in entries]))


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
    interval = point.entry.figures.success_rate_interval
    low, high = (100 - interval[0], 100 - interval[1]) if interval else (None, None)
    return Mark(point.x, 100 - point.rate, low, high, point.entry.colour, not point.entry.is_complete)


def _bands(points: Sequence[_Point]) -> list[Band]:
    """The width shared out among groups of points that lie near together, each from half way to half way."""
    groups: list[list[_Point]] = []
    for point in sorted(points, key=lambda point: point.x):
        if groups and point.x - groups[-1][0].x < _NEAR:
            groups[-1].append(point)
        else:
            groups.append([point])
    middles = [(group[0].x + group[-1].x) / 2 for group in groups]
    borders = [0.0, *((a + b) / 2 for a, b in pairwise(middles)), 100.0]
    return [
        Band(left, right, _few([point.told for point in group]))
        for group, (left, right) in zip(groups, pairwise(borders), strict=True)
    ]


def _joined(places: Sequence[tuple[float, float]], colour: int) -> list[Line]:
    return [Line(x1, 100 - y1, x2, 100 - y2, colour) for (x1, y1), (x2, y2) in pairwise(places)]


def _frontier(points: Sequence[tuple[float, float]]) -> list[Line]:
    """Steps along those that no point at most as dear surpasses, the cheapest first."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best:
            best.append((x, y))
        elif y > best[-1][1]:
            best += [(x, best[-1][1]), (x, y)]
    return _joined(best, 0)


def _series(points: Sequence[_Point]) -> list[list[_Point]]:
    found: dict[tuple[str, str, str], list[_Point]] = {}
    for point in points:
        found.setdefault(series_of(point.entry), []).append(point)
    return list(found.values())


def _keys(entries: Sequence[Entry]) -> list[tuple[int, str]]:
    return list({(entry.colour, named(entry)): None for entry in entries})
