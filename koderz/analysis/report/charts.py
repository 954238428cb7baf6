"""Charts as SVG that takes its colours from the page, so that one drawing serves light, dark and print."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from koderz.analysis.report.view import Entry, latest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _MUTED, _GRID, _SURFACE = "#010101", "#020202", "#030303", "#040404"
_SERIES = [f"#0500{number:02x}" for number in range(9)]
_VARIABLES = {_INK: "--ink", _MUTED: "--muted", _GRID: "--line", _SURFACE: "--surface"} | {
    colour: f"--s{number}" for number, colour in enumerate(_SERIES) if number
}
"""Stand-ins, which no chart needs as colours, and the variables of the page that take their place."""

_MARKERS = "osD^vPX*"
_WIDTH, _HEIGHT = 6.4, 3.9  # inches of 72 units


def pareto(entries: Sequence[Entry]) -> str:
    """Cost of a task against the success rate; the line joins what nothing cheaper surpasses."""
    priced = any(entry.figures.avg_cost for entry in entries)
    points = [(entry, _cost(entry, priced=priced)) for entry in entries]
    with _drawing("pareto") as (axes, svg):
        axes.set_xlabel("US dollars a task" if priced else "tokens a task (no model here costs money)", color=_MUTED)
        axes.set_ylabel("passed, per cent", color=_MUTED)
        if all(x > 0 for _, x in points):
            axes.set_xscale("log")
            _plain_ticks(axes, "$" if priced else "")
            least, most = min(x for _, x in points), max(x for _, x in points)
            if least == most:  # by itself a logarithmic axis would have no length, and matplotlib warns
                axes.set_xlim(least / 2, 2 * most)
        frontier = _frontier([(x, entry.figures.rate) for entry, x in points])
        axes.step(
            *zip(*frontier, strict=True), where="post", color=_MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=1
        )
        for entry, x in points:
            _point(axes, entry, x)
        _legend(axes, entries)
    return svg[0]


def by_iteration(entries: Sequence[Entry]) -> str:
    """Passed within so many attempts."""
    most = max(entry.attempts for entry in entries)
    with _drawing("iterations") as (axes, svg):
        axes.set_xlabel("attempts", color=_MUTED)
        axes.set_ylabel("passed so far, per cent", color=_MUTED)
        numbers = range(1, most + 1)
        for entry in latest(entries):
            rates = [entry.solved_by(number) for number in numbers]
            axes.plot(numbers, rates, color=_SERIES[entry.colour], linewidth=2, marker=_marker(entry), markersize=4)
        axes.set_xlim(0.7, most + 0.3)
        axes.locator_params(axis="x", integer=True)
        _legend(axes, latest(entries))
    return svg[0]


def trend(entries: Sequence[Entry]) -> str:
    """Success rates with their intervals in the order of time, a line a model and solver."""
    with _drawing("trend") as (axes, svg):
        axes.set_ylabel("passed, per cent", color=_MUTED)
        for series in _series(entries):
            days: Any = [_moment(entry) for entry in series]
            rates = [entry.figures.rate for entry in series]
            colour = _SERIES[series[0].colour]
            axes.errorbar(
                days, rates, yerr=_errors(series), color=colour, linewidth=2, elinewidth=1, capsize=3,
                marker=_marker(series[0]), markersize=5,
            )  # fmt: skip
        axes.figure.autofmt_xdate(rotation=0, ha="center")
        _dates(axes)
        _legend(axes, latest(entries))
    return svg[0]


def has_trend(entries: Sequence[Entry]) -> bool:
    """Whether some model was run more than once."""
    return any(len(series) > 1 for series in _series(entries))


def _point(axes: Axes, entry: Entry, x: float) -> None:
    axes.errorbar(
        [x], [entry.figures.rate], yerr=_errors([entry]), color=_SERIES[entry.colour], marker=_marker(entry),
        markersize=8, elinewidth=1.2, capsize=3, linestyle="none", markeredgecolor=_SURFACE, zorder=2,
    )  # fmt: skip


def _cost(entry: Entry, *, priced: bool) -> float:
    figures = entry.figures
    return figures.avg_cost if priced else (figures.tokens_in + figures.tokens_out) / figures.total_problems


def _frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no point at most as dear surpasses, the cheapest first."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return best


def _errors(entries: Sequence[Entry]) -> Any:
    """How far the interval reaches below and above each rate."""
    spans = [(e.figures.rate, e.figures.success_rate_interval or (e.figures.rate,) * 2) for e in entries]
    return [[max(0.0, rate - low) for rate, (low, _) in spans], [max(0.0, high - rate) for rate, (_, high) in spans]]


def _series(entries: Sequence[Entry]) -> list[list[Entry]]:
    found: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.run.model, entry.solver, entry.run.suite), []).append(entry)
    return list(found.values())


def _moment(entry: Entry) -> datetime:
    try:
        return datetime.fromisoformat(entry.run.start_time).replace(tzinfo=None)
    except ValueError:  # an old file may not say
        return datetime(1970, 1, 1)


def _marker(entry: Entry) -> str:
    """Beside the colour, which not everybody tells apart."""
    return _MARKERS[(entry.colour - 1) % len(_MARKERS)]


def _legend(axes: Axes, entries: Sequence[Entry]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], color=_SERIES[entry.colour], marker=_marker(entry), markersize=6, linewidth=2,
            label=f"{entry.run.model} · {entry.solver}",
        )
        for entry in latest(entries)
    ]  # fmt: skip
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False, labelcolor=_INK,
        fontsize=9,
    )  # fmt: skip


def _plain_ticks(axes: Axes, sign: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{sign}{value:,g}"))


def _dates(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator: Any = AutoDateLocator(minticks=2, maxticks=6)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


@contextmanager
def _drawing(name: str) -> Iterator[tuple[Axes, list[str]]]:
    """Axes to draw on; the list has the SVG afterwards. Nothing of pyplot, which keeps figures of its own."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": name, "axes.unicode_minus": False, "text.parse_math": False}
    ):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), facecolor="none")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot(facecolor="none")
        _style(axes)
        svg: list[str] = []
        yield axes, svg
        axes.set_ylim(-3, 103)
        data = io.StringIO()
        figure.savefig(data, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
        svg.append(_for_the_page(data.getvalue(), name))


def _style(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_MUTED, which="both", length=0, labelsize=9)


def _for_the_page(svg: str, name: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" class="chart" aria-hidden="true">', svg, count=1
    )
    svg = re.sub(r'(?<=[\s"])(font(?:-family)?): ?([\d.]+px )?[^;"]*', _font, svg)
    svg = re.sub(r'(id="|url\(#|xlink:href="#)', rf"\1{name}-", svg).replace("xlink:href", "href")
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.strip()


def _font(found: re.Match[str]) -> str:
    """The size that was meant, in the page's own type."""
    return f"font-size: {found[2].strip()}" if found[2] else "font-family: inherit"
