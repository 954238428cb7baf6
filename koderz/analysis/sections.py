"""Sections that a suite or a solver adds to what is shown of a run: plain values, and their drawings as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from koderz.analysis.blocks import Heading, Table, Text
from koderz.analysis.runs import Run
from koderz.errors import KoderzError
from koderz.settings.systems import names_of, required
from koderz_tracker.runs import read_plan


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Values that hold until the next one, against a growing quantity."""

    name: str  # curves of one name have one colour
    label: str  # what tells it from the others
    points: Sequence[tuple[float, float]]  # never empty


@dataclass(frozen=True, slots=True)
class Curves:
    """A drawing of several curves."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]  # never empty


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """A value with its interval, and the values that it was estimated from; all above 0."""

    name: str  # spreads of one name have one colour
    label: str
    points: Sequence[float]
    value: float
    interval: tuple[float, float] | None = None
    experiment_id: str = ""


@dataclass(frozen=True, slots=True)
class Spreads:
    """A drawing of several spreads on one scale."""

    title: str
    label: str  # what the values are
    spreads: Sequence[Spread]  # never empty
    limits: Sequence[float] = ()  # that are drawn across
    # all that have colours, in their order; default: those of the spreads
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Long texts beside each other, folded away until they are opened."""

    title: str
    texts: Mapping[str, str]  # by their headings


Content = Heading | Text | Table | Curves | Spreads | SideBySide


@dataclass(frozen=True, slots=True)
class Section:
    """A titled section."""

    title: str
    contents: Sequence[Content]


def sections_of(runs: Sequence[Run]) -> Iterator[tuple[str, Section]]:
    """The sections of these runs, each with an id; titles name the run if there are several.

    Nothing of runs whose journal isn't there. One that fails says so in its own place.
    """
    number = 0
    for run in runs:
        if run.folder is None:
            continue
        plan = read_plan(run.folder)
        for name in [name for name in plan.parts if name in names_of("sections")]:
            try:
                found = required("sections", name)(plan, run.folder)
            except KoderzError as error:
                found = Section(name, [Text(str(error))])
            except Exception as error:  # noqa: BLE001 it may be anybody's code, and the page is worth more
                found = Section(name, [Text(f"{type(error).__name__}: {error}")])
            if found:
                number += 1
                several = f": {run.name}" if len(runs) > 1 else ""
                yield f"part-{number}", Section(f"{found.title}{several}", found.contents)


# of a power of ten
_FACTORS = ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
_MARGIN = 0.07  # of their reach, on either side of the outermost values
_MOST_TICKS = 5


class Scale:
    """A map from values to per cent of a width; logarithmic if all values are above zero, by default."""

    def __init__(self, values: Sequence[float], *, linear: bool = False) -> None:
        self.logarithmic = not linear and min(values) > 0
        self._least = min(0.0, *values)
        low, high = self._on(min(values)), self._on(max(values))
        beyond = _MARGIN * (high - low) or (math.log10(2) if self.logarithmic else abs(low) or 1.0)
        self._low, self._high = low - beyond, high + beyond

    def place(self, value: float) -> float:
        """The position of a value in per cent of the width."""
        return 100 * (self._on(value) - self._low) / (self._high - self._low)

    def ticks(self) -> list[float]:
        """A few round values in its range, none below zero unless a value is."""
        if not self.logarithmic:
            least = (self._high - self._low) / _MOST_TICKS
            power: float = 10.0 ** math.floor(math.log10(least))
            step = next(
                factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * least
            )
            first = math.ceil(max(self._low, self._least) / step)
            return [step * n for n in range(first, math.floor(self._high / step) + 1)]
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        found: list[float] = []
        for factors in _FACTORS:
            found = [factor * 10.0**decade for decade in decades for factor in factors]
            found = [value for value in found if self._low <= math.log10(value) <= self._high]
            if len(found) <= _MOST_TICKS:
                break
        return found[:: math.ceil(len(found) / _MOST_TICKS) or 1] or [
            10 ** ((self._low + self._high) / 2)
        ]

    def _on(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value


def scale_of(drawn: Spreads) -> Scale:
    """The scale of all drawn values."""
    of_spreads = (
        value
        for each in drawn.spreads
        for value in (each.value, *each.points, *(each.interval or ()))
    )
    return Scale([*of_spreads, *drawn.limits])


_WIDTH = 40  # columns


def strips(drawn: Spreads, experiment_id: str = "") -> Iterator[Text]:
    """The lines of a drawing below their scale, or that of one experiment; empty if there are none.

    `·` is what the value `●` was estimated from, `├─┤` its interval, `┊` a limit.
    """
    shown = [
        each for each in drawn.spreads if not experiment_id or each.experiment_id == experiment_id
    ]
    if shown:
        scale = scale_of(Spreads(drawn.title, drawn.label, shown, drawn.limits))
        width = max(len(each.label) for each in shown)
        yield Text(drawn.title)
        line = " " * _WIDTH
        for tick in scale.ticks():
            at, text = _column(tick, scale), f"{tick:.4g}"
            if at + len(text) <= _WIDTH and not line[max(0, at - 1) : at + len(text) + 1].strip():
                line = line[:at] + text + line[at + len(text) :]
        yield Text(f"{'':{width}}   {line} ".rstrip())
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


def _column(value: float, scale: Scale) -> int:
    return min(_WIDTH - 1, max(0, int(scale.place(value) / 100 * _WIDTH)))
