"""Measures by which experiments are compared, and the one that stands for an arm, as a suite declares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

TIMES = "times"
"""The unit of ratios, whose mean is the geometric one."""


class Measure(Struct, frozen=True):
    """A quantity by which experiments are compared besides success: their score, or a metric by its name."""

    name: str
    direction: Literal["higher", "lower"]  # which is better
    unit: str = ""
    two_valued: bool = False  # only ever 0 or 1
    # empty: geometric of TIMES, else arithmetic
    average: Literal["", "arithmetic", "geometric", "median"] = ""
    # of its values; None: of a share 0 and 1, else unknown
    bounds: tuple[float, float] | None = None

    @property
    def averaged(self) -> str:
        """The kind of average for the measure's values: "arithmetic", "geometric" or "median"."""
        return self.average or ("geometric" if self.unit == TIMES else "arithmetic")


PASSES = "success"
"""The measure `success`, which every run has."""


class Headline(Struct, frozen=True):
    """The figure that stands for an arm in lists and titles, and other settings of its system's runs."""

    measure: str = PASSES  # that, or a measure that the suite declares
    # what is said of experiments that pass; empty: they neither pass nor fail
    passed: str = "passed"
    panels: Sequence[str] | None = None  # of the report; None: all


PASSING = Headline()
"""The headline of runs whose suite declares none."""
