"""The page's comparisons of one arm with another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from koderz.analysis.measures import shown
from koderz.analysis.statistics import p_text
from koderz.systems.reports.view import Entry, by_series, headline, shown_in

if TYPE_CHECKING:
    from koderz.analysis.comparison import Compared, Comparison

_MOST = 12  # comparisons told in full on one page
_MOST_ARMS = 16  # of one suite that are each compared with every other
_MOST_TASKS = 60  # shown side by side


@dataclass(frozen=True, slots=True)
class Versus:
    """A, the baseline, and B, in sentences."""

    a: Entry
    b: Entry
    verdict: str
    tone: str  # "good" or "bad" where a difference is shown, else ""
    evidence: str
    gained: Sequence[str]  # the tasks that B does better at, as many as are shown side by side
    lost: Sequence[str]
    more: int  # how many more tasks flipped
    difference: float  # in points
    p: float  # corrected (Holm)

    @property
    def p_text(self) -> str:
        return p_text(self.p)


@dataclass(frozen=True, slots=True)
class Matrix:
    """All arms of one suite against each other; each cell above the diagonal compares B (its column) with A.

    A cell is a comparison, with its number among those that are told in full, if it is.
    """

    suite: str
    entries: Sequence[Entry]
    cells: Mapping[tuple[Entry, Entry], tuple[Versus, int | None]]


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The comparisons of a page: those shown in full, tables of all pairs, and notes on all of them."""

    shown: Sequence[Versus]
    matrices: Sequence[Matrix]
    note: str


def comparisons(entries: Sequence[Entry]) -> Comparisons:
    """The comparisons of each pair of headline arms of a suite, and of each series with its previous run.

    p-values are corrected for all of them. Where there are more than two arms of a suite a table has each pair.
    """
    entries = [entry for entry in shown_in("comparison", entries) if entry.passed]
    pairs = [pair for pair in dict.fromkeys(_pairs(entries)) if not _is_mixed(*pair)]
    if not pairs:
        return Comparisons([], [], "")
    from koderz.analysis.comparison import between, corrected

    found = zip(pairs, corrected([between(a, b) for a, b in pairs]), strict=True)
    every = [*found]
    sections = [
        _versus(a, b, one, several=len(pairs) > 1)
        for (a, b), one in every
        if one.p_value is not None
    ]
    clearest = sorted(sections, key=lambda one: one.p)[:_MOST]
    full = [one for one in sections if one in clearest]
    return Comparisons(
        full,
        [*_matrices(entries, sections, full)],
        _note(entries, sections, [one for _, one in every]),
    )


def _note(entries: Sequence[Entry], told: Sequence[Versus], every: Sequence[Comparison]) -> str:
    silent = [
        one
        for one in every
        if one.p_value is None and one.is_at_any_stop and one.difference is not None
    ]
    if not told and not silent:
        return ""
    note = "Paired by task where the runs share tasks. A difference counts as shown where p is below 0.05"
    if len(told) > 1:
        note += (
            f", corrected for all {len(told)} comparisons (Holm), as the intervals are (Bonferroni)"
        )
    if len(told) > _MOST:
        note += f". The {_MOST} with the smallest p are told in full"
    for chosen in _by_suite(entries):
        if len(chosen) > _MOST_ARMS:
            note += f". {chosen[0].run.suite}: of {len(chosen)} arms the newest {_MOST_ARMS} are compared"
    if any(one.is_at_any_stop for one in every):
        note += (
            ". Runs that stop once they are decided "
            "are compared along their order of tasks, by what holds at any stop"
        )
    for method, count in Counter(one.method.removeprefix("none: ") for one in silent).items():
        note += f". No claim in {count} of the comparisons: {method}"
    return f"{note}."


def _pairs(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """The pairs, most informative first: arms of one run, a run and the one before it, all others of a suite.

    At the end come arms of runs that aren't in the headline, as far as they can be told in full.
    """
    suites = [chosen[-_MOST_ARMS:] for chosen in _by_suite(entries)]
    every = [pair for chosen in suites for pair in combinations(chosen, 2)]
    yield from ((a, b) for a, b in every if a.run is b.run)
    before = [
        (earlier, later) for series in by_series(entries) for earlier, later in pairwise(series)
    ]
    newest = {entry for chosen in suites for entry in chosen}
    yield from ((a, b) for a, b in before if b in newest)
    yield from ((a, b) for a, b in every if a.run is not b.run)
    old = [(a, b) for a, b in combinations(entries, 2) if a.run is b.run and b not in newest]
    yield from old[::-1][: max(0, _MOST - len(every))]


def _is_mixed(a: Entry, b: Entry) -> bool:
    """Whether a simulated arm would be compared with a real one unasked."""
    is_one = (a.simulated and b.is_real) or (b.simulated and a.is_real)
    return is_one and not (a.run.simulated or b.run.simulated)


def _by_suite(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The headline entries, grouped by suite."""
    found: dict[str, list[Entry]] = {}
    for entry in headline(entries) if len(entries) > 2 else entries:
        found.setdefault(entry.run.suite, []).append(entry)
    return list(found.values())


def _matrices(
    entries: Sequence[Entry], told: Sequence[Versus], full: Sequence[Versus]
) -> Iterator[Matrix]:
    places = {(one.a, one.b): place for place, one in enumerate(full)}
    numbers = {(one.a, one.b): (one, places.get((one.a, one.b))) for one in told}
    for chosen in _by_suite(entries):
        newest = chosen[-_MOST_ARMS:]
        cells = {pair: numbers[pair] for pair in combinations(newest, 2) if pair in numbers}
        if len(newest) > 2 and cells:
            yield Matrix(newest[0].run.suite, newest, cells)


def _versus(a: Entry, b: Entry, one: Comparison, *, several: bool) -> Versus:
    difference = one.difference or 0.0
    size = f"{abs(difference):.1f}"
    if one.is_at_any_stop and one.interval_holm:
        size = " to ".join(f"{limit:.1f}" for limit in sorted(map(abs, one.interval_holm)))
    word, tone = ("better", "good") if difference > 0 else ("worse", "bad")
    none = f"No significant difference ({difference:+.1f} points)"
    if one.completion and one.completion.could_turn:
        faults = one.completion.named("the first", "the second")
        none = f"No claim ({difference:+.1f} points by what was judged): {faults} could turn it"
    return Versus(
        a=a,
        b=b,
        verdict=f"{size} points {word}" if one.significant else none,
        tone=tone if one.significant else "",
        evidence=". ".join(_evidence(one, several=several)) + ".",
        gained=one.gained[:_MOST_TASKS],
        lost=one.lost[:_MOST_TASKS],
        more=sum(max(0, len(tasks) - _MOST_TASKS) for tasks in (one.gained, one.lost)),
        difference=difference,
        p=one.p_holm or 0.0,
    )


def _evidence(one: Comparison, *, several: bool) -> Iterator[str]:
    p = f"{p_text(one.p_holm or 0.0)}{' (Holm)' if several else ''}"
    yield f"{_rate(one.a_compared)} and {_rate(one.b_compared)}"
    if one.interval_holm:
        low, high = one.interval_holm
        yield f"95% interval {low:+.1f} to {high:+.1f} points ({one.interval_holm_method}), {p}"
    elif one.interval_holm_method:
        yield f"No interval: {one.interval_holm_method.partition(': ')[2]}"
    if one.paired:
        others = one.a_compared.other_tasks, one.b_compared.other_tasks
        left_out = (
            f" (left out: {others[0]} others of the first, {others[1]} of the second)"
            if any(others)
            else ""
        )
        yield (
            f"Of {one.pairs} tasks{left_out} the second does better at {one.b_only}, the first at {one.a_only}; "
            f"{one.both} are passed by both, {one.neither} by neither"
        )
    else:
        yield "They have no task in common, so only a large difference can show"
    for measure in {
        measure.name: measure for run in (one.a.run, one.b.run) for measure in run.measures
    }.values():
        if ratio := one.ratios.get(measure.name):
            sure = "×{:.3g} to ×{:.3g}".format(*ratio.interval) if ratio.interval else ""
            interval = f" (95% interval {sure}, {ratio.interval_method})" if sure else ""
            yield f"Geometric means of {measure.name} {ratio.a:.3g} and {ratio.b:.3g}: ×{ratio.ratio:.3g}{interval}"
        elif found := one.measures.get(measure.name):
            sure = "no claim" if found.p_holm is None else p_text(found.p_holm)
            corrected = (
                f"; Holm-corrected for {found.at_once} measures" if found.at_once > 1 else ""
            )
            yield (
                f"Average {measure.name} {shown(found.a, measure)} and {shown(found.b, measure)}, "
                f"{sure} ({found.method}{corrected})"
            )
    cost = one.measures.get("cost")
    if cost and (cost.a or cost.b):
        yield f"A task costs ${cost.a:.5f} and ${cost.b:.5f}"


def _rate(found: Compared) -> str:
    return "–" if found.success_rate is None else f"{found.success_rate:.1f}%"
