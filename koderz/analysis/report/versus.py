"""What the page says of one arm against another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koderz.analysis.measures import shown
from koderz.analysis.report.view import Entry, headline, series_of

if TYPE_CHECKING:
    from koderz.analysis.comparison import Compared, Comparison

_MOST = 12  # comparisons on one page
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


@dataclass(frozen=True, slots=True)
class Found:
    """The comparisons of a page, and what holds for all of them."""

    shown: Sequence[Versus]
    note: str


def comparisons(entries: Sequence[Entry]) -> Found:
    """Two arms against each other. Of more: the arms of each comparative run, each model's run of the headline against
    the one before it, and against the best.
    """
    pairs = list(dict.fromkeys(_pairs(entries)))[:_MOST]
    if not pairs:
        return Found([], "")
    from koderz.analysis.comparison import between, corrected

    found = zip(pairs, corrected([between(a, b) for a, b in pairs]), strict=True)
    told = [_versus(a, b, one, several=len(pairs) > 1) for (a, b), one in found if one.p_value is not None]
    note = "Paired by task where the runs share tasks. A difference counts as shown where p is below 0.05"
    corrected_for = ", corrected for the number of comparisons (Holm); each interval is that of its pair alone"
    return Found(told, f"{note}{corrected_for if len(told) > 1 else ''}.")


def _pairs(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Baseline first, the most telling first. Only arms of one suite are set against each other."""
    if len(entries) == 2 and entries[0].run.suite == entries[1].run.suite:
        yield entries[0], entries[1]
        return
    chosen = sorted(headline(entries), key=lambda entry: -entry.figures.rate)
    own = _own_pairs(entries)
    yield from [(a, b) for a, b in own if b in chosen]
    for entry in chosen:
        earlier = [other for other in entries[: entries.index(entry)] if series_of(other) == series_of(entry)]
        yield from ((before, entry) for before in headline(earlier))
    for entry in chosen[1:]:
        if entry.run.suite == chosen[0].run.suite:
            yield entry, chosen[0]
    yield from reversed([(a, b) for a, b in own if b not in chosen])


def _own_pairs(entries: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """The first arm of each run with each other one of it."""
    runs: dict[int, list[Entry]] = {}
    for entry in entries:
        runs.setdefault(id(entry.run), []).append(entry)
    return [(first, other) for first, *others in runs.values() for other in others]


def _versus(a: Entry, b: Entry, one: Comparison, *, several: bool) -> Versus:
    difference = one.difference or 0.0
    verdict = f"{abs(difference):.1f} points {'better' if difference > 0 else 'worse'}"
    return Versus(
        a=a,
        b=b,
        verdict=verdict if one.significant else f"No significant difference ({difference:+.1f} points)",
        tone=("good" if difference > 0 else "bad") if one.significant else "",
        evidence=". ".join(_evidence(one, several=several)) + ".",
        gained=one.gained[:_MOST_TASKS],
        lost=one.lost[:_MOST_TASKS],
        more=sum(max(0, len(tasks) - _MOST_TASKS) for tasks in (one.gained, one.lost)),
    )


def _evidence(one: Comparison, *, several: bool) -> Iterator[str]:
    p = f"p = {one.p_holm:.2g}{' (Holm)' if several else ''}"
    yield f"{_rate(one.a_compared)} and {_rate(one.b_compared)}"
    if one.interval:
        low, high = one.interval
        yield f"95% interval {low:+.1f} to {high:+.1f} points ({one.interval_method}), {p}"
    if one.paired:
        others = one.a_compared.other_tasks, one.b_compared.other_tasks
        left_out = f" (left out: {others[0]} others of the first, {others[1]} of the second)" if any(others) else ""
        yield (
            f"Of {one.pairs} tasks{left_out} the second does better at {one.b_only}, the first at {one.a_only}; "
            f"{one.both} are passed by both, {one.neither} by neither"
        )
    else:
        yield "They have no task in common, so only a large difference can show"
    for measure in {measure.name: measure for run in (one.a.run, one.b.run) for measure in run.measures}.values():
        if found := one.measures.get(measure.name):
            yield (
                f"Average {measure.name} {shown(found.a, measure)} and {shown(found.b, measure)}, "
                f"p = {found.p_holm:.2g} ({found.method}; Holm-corrected for {len(one.measures)} measures)"
            )
    cost = one.measures.get("cost")
    if cost and (cost.a or cost.b):
        yield f"A task costs ${cost.a:.5f} and ${cost.b:.5f}"


def _rate(found: Compared) -> str:
    return "–" if found.success_rate is None else f"{found.success_rate:.1f}%"
