"""What the page says of one arm against another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koderz.analysis.matching import Side
from koderz.analysis.report.view import Entry, latest

if TYPE_CHECKING:
    from koderz.analysis.comparison import Comparison

_MOST = 12  # comparisons on one page
_MOST_TASKS = 60  # named in one sentence


@dataclass(frozen=True, slots=True)
class Versus:
    """A, the baseline, and B, in sentences."""

    a: Entry
    b: Entry
    verdict: str
    tone: str  # "good" or "bad" where a difference is shown, else ""
    evidence: str
    gained: str  # the tasks that B does better at
    lost: str


@dataclass(frozen=True, slots=True)
class Found:
    """The comparisons of a page, and what holds for all of them."""

    shown: Sequence[Versus]
    note: str


def comparisons(entries: Sequence[Entry]) -> Found:
    """Two arms against each other; of more, each model's last run against its run before, and against the best."""
    pairs = list(_pairs(entries))[:_MOST]
    if not pairs:
        return Found([], "")
    from koderz.analysis.comparison import between
    from koderz.analysis.statistics import ALPHA, holm

    found = [(a, b, between(Side(a.run, a.solver), Side(b.run, b.solver))) for a, b in pairs]
    tested = [(a, b, one) for a, b, one in found if one.p_value is not None]
    corrected = holm([one.p_value or 0.0 for _, _, one in tested])
    shown = [
        _versus(a, b, one, p, shown=one.significant and p < ALPHA)
        for (a, b, one), p in zip(tested, corrected, strict=True)
    ]
    note = "Paired by task where the runs share tasks. A difference counts as shown where p is below 0.05"
    corrected_for = ", corrected for the number of comparisons (Holm); each interval is that of its pair alone"
    return Found(shown, f"{note}{corrected_for if len(shown) > 1 else ''}.")


def _pairs(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Baseline first. Only arms of one suite are set against each other."""
    if len(entries) == 2 and entries[0].run.suite == entries[1].run.suite:
        yield entries[0], entries[1]
        return
    last = sorted(latest(entries), key=lambda entry: -entry.figures.rate)
    for entry in last:
        before = [
            other
            for other in entries
            if other is not entry
            and (other.run.model, other.solver, other.run.suite) == (entry.run.model, entry.solver, entry.run.suite)
        ]
        if before:
            yield before[-1], entry
    for entry in last[1:]:
        if entry.run.suite == last[0].run.suite:
            yield entry, last[0]


def _versus(a: Entry, b: Entry, one: Comparison, p: float, *, shown: bool) -> Versus:
    difference = one.difference or 0.0
    verdict = f"{abs(difference):.1f} points {'better' if difference > 0 else 'worse'}"
    return Versus(
        a=a,
        b=b,
        verdict=verdict if shown else f"No significant difference ({difference:+.1f} points)",
        tone=("good" if difference > 0 else "bad") if shown else "",
        evidence=". ".join(_evidence(one, p)) + ".",
        gained=_named(one.gained),
        lost=_named(one.lost),
    )


def _evidence(one: Comparison, p: float) -> Iterator[str]:
    if one.interval:
        low, high = one.interval
        yield f"95% interval {low:+.1f} to {high:+.1f} points ({one.interval_method}), p = {p:.2g}"
    if one.paired:
        yield (
            f"Of {one.pairs} tasks the second does better at {one.b_only}, the first at {one.a_only}; "
            f"{one.both} are passed by both, {one.neither} by neither"
        )
    else:
        yield "They have no task in common, so only a large difference can show"
    cost = one.measures.get("cost")
    if cost and (cost.a or cost.b):
        yield f"A task costs ${cost.a:.5f} and ${cost.b:.5f}"


def _named(tasks: Sequence[str]) -> str:
    rest = f", … ({len(tasks) - _MOST_TASKS} more)" if len(tasks) > _MOST_TASKS else ""
    return ", ".join(tasks[:_MOST_TASKS]) + rest
