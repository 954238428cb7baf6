"""Sections that a suite or a solver adds to the page, as plain values, which the page escapes."""

from __future__ import annotations

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
    names: Sequence[str] = ()  # all that have colours, in their order; default: those of the spreads


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
