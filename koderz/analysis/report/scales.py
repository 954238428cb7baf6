"""Scales of charts, which map values to positions, logarithmically if possible, and their ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

_FACTORS = ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))  # of a power of ten
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
            step = _round_step((self._high - self._low) / _MOST_TICKS)
            first = math.ceil(max(self._low, self._least) / step)
            return [step * n for n in range(first, math.floor(self._high / step) + 1)]
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        found: list[float] = []
        for factors in _FACTORS:
            found = [factor * 10.0**decade for decade in decades for factor in factors]
            found = [value for value in found if self._low <= math.log10(value) <= self._high]
            if len(found) <= _MOST_TICKS:
                break
        return found[:: math.ceil(len(found) / _MOST_TICKS) or 1] or [10 ** ((self._low + self._high) / 2)]

    def _on(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value


def _round_step(least: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * least)


def dates(scale: Scale, first: datetime, last: datetime) -> list[tuple[float, str]]:
    """Ticks at the first moment, at the last, and between them: days, or times for a range below two days."""
    form = "%Y-%m-%d" if (last - first).days > 1 else "%m-%d %H:%M"
    middle = first + (last - first) / 2
    ticks = {f"{moment:{form}}": scale.place(moment.timestamp()) for moment in (last, middle, first)}
    return [(place, label) for label, place in ticks.items()]
