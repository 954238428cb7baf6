"""The results of scoring candidates, and the end of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from koderz.systems.optimizers.datasets.payload import Graded


class BudgetSpent(Exception):
    """The budget is spent. It ends the search and the solver, and is no error."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the search is over: {reason}")
        self.reason = reason  # budget, usd or stale


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate's scores on some items, by their ids. Items that can't be judged are left out."""

    mean: float  # 0 where nothing was scored
    scores: Mapping[str, float]
    replies: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a score isn't 1
    refused: str = ""  # why the candidate isn't accepted


@dataclass(frozen=True, slots=True)
class Result:
    """One candidate on one item."""

    graded: Graded | None  # None: a judge's reply that can't be read
    reply: str


@dataclass
class Counts:
    """The counts of a search so far."""

    metric_calls: int = 0
    reasoning_calls: int = 0
    refused: int = 0  # proposals
    unreadable: int = 0  # replies of the reasoning model
    faults: int = 0  # pairs of candidate and item
    cut: int = 0  # replies that ended at their longest
    replies: int = 0
    cost: float = 0.0  # US dollars, of all
    item_cost: float = 0.0  # of items with their judge
