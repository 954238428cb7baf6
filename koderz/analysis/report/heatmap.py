"""Tasks × arms as cells: the hardest task leftmost, one path a shade, so that thousands of cells stay small."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from koderz.analysis.measures import SUCCESS
from koderz.analysis.report.view import Entry

SHADE_NAMES = ("never passed", "seldom", "now and then", "mostly", "always passed")
SHADES = len(SHADE_NAMES)  # those between: up to a third, two thirds, all but


@dataclass(frozen=True, slots=True)
class Strip:
    """One arm's cells."""

    entry: Entry
    paths: Sequence[str]  # SVG path data by shade, one unit a task
    spoken: str  # what a screen reader says


@dataclass(frozen=True, slots=True)
class HeatMap:
    """All arms of one suite."""

    suite: str
    tasks: Sequence[str]  # hardest first
    hardest: Sequence[tuple[str, float]]  # ids and per cent passed
    strips: Sequence[Strip]


def heat_maps(entries: Sequence[Entry]) -> list[HeatMap]:
    """One heat map for each suite."""
    suites: dict[str, list[Entry]] = {}
    for entry in entries:
        suites.setdefault(entry.run.suite, []).append(entry)
    return [_heat_map(suite, members) for suite, members in suites.items()]


def _heat_map(suite: str, entries: Sequence[Entry]) -> HeatMap:
    rates = [{task: fmean(passes) for task, passes in entry.values(SUCCESS).items()} for entry in entries]
    passed: dict[str, list[float]] = defaultdict(list)
    for of_entry in rates:
        for task, rate in of_entry.items():
            passed[task].append(rate)
    mean = {task: 100 * sum(found) / len(found) for task, found in passed.items()}
    tasks = sorted(mean, key=lambda task: (mean[task], _natural(task)))
    strips = [_strip(entry, of_entry, tasks) for entry, of_entry in zip(entries, rates, strict=True)]
    return HeatMap(suite, tasks, [(task, mean[task]) for task in tasks[:10] if mean[task] < 100], strips)


def _strip(entry: Entry, rates: Mapping[str, float], tasks: Sequence[str]) -> Strip:
    paths = [""] * SHADES
    begun = 0
    for shade, cells in groupby(_shade(rates[task]) if task in rates else None for task in tasks):
        width = len([*cells])  # neighbours of one shade are one box
        if shade is not None:
            paths[shade] += f"M{begun} 0h{width}v1h-{width}z"
        begun += width
    always = sum(rate == 1 for rate in rates.values())
    never = sum(rate == 0 for rate in rates.values())
    return Strip(entry, paths, f"{entry.title}: of {len(rates)} tasks {always} always passed, {never} never")


def _shade(rate: float) -> int:
    if rate in (0.0, 1.0):
        return 0 if not rate else SHADES - 1
    return 1 + min(int(rate * (SHADES - 2)), SHADES - 3)


def _natural(task: str) -> tuple[str, int]:
    """A sort key that puts `HumanEval/9` before `HumanEval/10`."""
    name, _, number = task.rpartition("/")
    return name, int(number) if number.isdigit() else 0
