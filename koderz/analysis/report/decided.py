"""The charts of decisions: the interval of the difference, and the evidence, after each counted task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from koderz.analysis.decisions import sentence
from koderz.analysis.report.charts import Band, Mark, Plot, Scale
from koderz.analysis.report.panels import Chart
from koderz.analysis.runs import Run
from koderz_tracker.decisions import each_of
from koderz_tracker.records import PASSES

_MOST, _MOST_POINTS, _MOST_BANDS, _MOST_ROWS = 6, 120, 50, 20  # of decisions; of each
_COLOUR = 1

Point = tuple[int, float, float, float]
"""Counted tasks, e-value, and the ends of the interval of the difference."""


def decision_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    """Two charts of each of the newest decisions: the interval along the tasks, and the evidence for a claim."""
    found = [(run, decision) for run in runs for decision in each_of(run.decision) if decision.get("path")]
    for number, (run, decision) in enumerate(found[-_MOST:]):
        a, b, told = decision["a"], decision["b"], sentence(decision, named=True)
        title = f"{b} less {a}" + (f", {run.name}" if len(runs) > 1 else "")
        points = _thinned(
            [(int(tasks), float(e), float(low), float(high)) for tasks, e, low, high in decision["path"]], _MOST_POINTS
        )
        heads, rows = _table(points, _unit(decision))
        about = f"{told} {'Each interval holds' if len(points) > 1 else 'It holds'} at whatever moment one looks."
        yield Chart(f"decision-{number}", f"Decision: {title}", about, _interval_plot(points, decision), heads, rows)
        limit = 1 / decision["alpha"]
        yield Chart(
            f"evidence-{number}",
            f"Evidence: {title}",
            f"The e-value against no difference; from {limit:g} on, the dashed line, a difference is shown.",
            _evidence_plot(points, limit),
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
        [str(tasks), f"{e:.3g}", f"{low:+.1f} to {high:+.1f}"] for tasks, e, low, high in _thinned(points, _MOST_ROWS)
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
    return _plot(points, across, up, lines, levels, [mark], label, "the ends of its interval, and where it stopped")


def _evidence_plot(points: Sequence[Point], limit: float) -> Plot:
    up = Scale([limit, *(max(point[1], 1e-9) for point in points)])
    lines = [[(point[0], max(point[1], 1e-9)) for point in points]]
    across = _across(points)
    mark = Mark(across.place(points[-1][0]), up.place(lines[0][-1][1]), _COLOUR, tooltip=f"{points[-1][1]:.3g}")
    return _plot(points, across, up, lines, [limit], [mark], "e-value, logarithmic scale", "the evidence")


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
            *((_COLOUR, [(across.place(tasks), up.place(value)) for tasks, value in line]) for line in lines),
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
