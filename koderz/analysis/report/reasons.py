"""Why experiments were not passed, what later attempts fixed, and what the solved tasks took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from koderz.analysis.failures import Cause, Failures, failures_of
from koderz.analysis.report.view import Entry, headline

_MOST = 6  # arms


@dataclass(frozen=True, slots=True)
class Causes:
    """Causes down, arms across: how many experiments ended so, and what later attempts fixed."""

    entries: Sequence[Entry]
    rows: Sequence[tuple[str, Sequence[tuple[int, str]]]]
    taken: Sequence[Taken]


@dataclass(frozen=True, slots=True)
class Taken:
    """What an arm's solved tasks took."""

    entry: Entry
    cost: str  # a solved task, failures included
    tokens: str  # to a solution, the median
    tiers: str  # what each tier cost in all
    never_fixed: str


def causes_of(entries: Sequence[Entry]) -> Causes:
    """Of each model's run in the headline."""
    chosen = headline(entries)[-_MOST:]
    found = [failures_of(entry) for entry in chosen]
    by_name = [{cause.cause: cause for cause in failures.causes} for failures in found]
    total: Counter[str] = Counter()
    for causes in by_name:
        total.update({name: cause.experiments for name, cause in causes.items()})
    names = sorted(total, key=lambda name: (-total[name], name))[: 2 * _MOST]
    rows = [(name, [_ended_and_fixed(causes.get(name)) for causes in by_name]) for name in names]
    return Causes(chosen, rows, [_taken(entry, failures) for entry, failures in zip(chosen, found, strict=True)])


def _ended_and_fixed(cause: Cause | None) -> tuple[int, str]:
    if cause is None:
        return 0, ""
    return cause.ended, "" if cause.fixed is None else f"fixed later in {cause.fixed} of {cause.experiments}"


def _taken(entry: Entry, failures: Failures) -> Taken:
    each, tokens = failures.cost_per_solved_task, failures.tokens_to_solution
    return Taken(
        entry=entry,
        cost="–" if each is None else f"${each:.4f}",
        tokens="–" if tokens is None else f"{tokens:,.0f}",
        tiers=", ".join(f"{tier} ${cost:.4f}" for tier, cost in failures.cost_by_tier.items() if cost) or "–",
        never_fixed=", ".join(cause.cause for cause in failures.never_fixed) or "–",
    )
