"""Distributions as lines of text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from koderz.analysis.blocks import Text
from koderz.analysis.report.charts import Scale, scale_of
from koderz.analysis.report.sections import Spread, Spreads

_WIDTH = 40  # columns


def strips(drawn: Spreads, experiment_id: str = "") -> Iterator[Text]:
    """The lines of a drawing below their scale, or that of one experiment; empty if there are none.

    `·` is what the value `●` was estimated from, `├─┤` its interval, `┊` a limit.
    """
    shown = [each for each in drawn.spreads if not experiment_id or each.experiment_id == experiment_id]
    if shown:
        scale = scale_of(Spreads(drawn.title, drawn.label, shown, drawn.limits))
        width = max(len(each.label) for each in shown)
        yield Text(drawn.title)
        yield Text(f"{'':{width}}  {_ticks(scale)}".rstrip())
        yield from (Text(f"{each.label:{width}}  {_strip(each, drawn, scale)}") for each in shown)


def _strip(spread: Spread, drawn: Spreads, scale: Scale) -> str:
    cells = [" "] * _WIDTH
    for limit in drawn.limits:
        cells[_column(limit, scale)] = "┊"
    low, high = (_column(end, scale) for end in spread.interval or (1, 1))
    if spread.interval:
        cells[low : high + 1] = "─" * (high + 1 - low)
    for point in spread.points:
        cells[_column(point, scale)] = "·"
    if spread.interval:
        cells[low], cells[high] = "├", "┤"
    cells[_column(spread.value, scale)] = "●"
    return f"│{''.join(cells)}│"


def _ticks(scale: Scale) -> str:
    line = " " * _WIDTH
    for tick in scale.ticks():
        at, text = _column(tick, scale), f"{tick:.4g}"
        if at + len(text) <= _WIDTH and not line[max(0, at - 1) : at + len(text) + 1].strip():
            line = line[:at] + text + line[at + len(text) :]
    return f" {line} "


def _column(value: float, scale: Scale) -> int:
    return min(_WIDTH - 1, max(0, int(scale.place(value) / 100 * _WIDTH)))
