"""A run's running totals, counted from its lines while it is recorded or followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FAULTED, JUDGED, PASSED = range(3)
"""The outcomes of an experiment: fault, judged as failed, or passed."""


class Tally(Generic[K]):
    """The last outcome of each experiment, by any key that tells experiments apart, and what was paid."""

    def __init__(
        self, ended: Mapping[K, int] | None = None, calls: int = 0, cost: float = 0.0
    ) -> None:
        self.calls = calls
        self.cost = cost  # US dollars
        self.ended = dict(ended or {})
        self._ends = Counter(self.ended.values())

    @property
    def judged(self) -> int:
        return self._ends[JUDGED] + self._ends[PASSED]

    @property
    def passed(self) -> int:
        return self._ends[PASSED]

    @property
    def faults(self) -> int:
        return self._ends[FAULTED]

    def end(self, experiment: K, outcome: int) -> None:
        """Counts the end of an experiment in place of its earlier outcome."""
        if (before := self.ended.get(experiment)) is not None:
            self._ends[before] -= 1
        self.ended[experiment] = outcome
        self._ends[outcome] += 1

    def pay(self, cost: float, *, call: bool) -> None:
        """Counts a call, or another expense in US dollars."""
        self.calls += call
        self.cost += cost

    def reopen(self, outcomes: Collection[int], but: Collection[K] = ()) -> set[K]:
        """Removes the experiments with these outcomes `but` some, which are worked on again, and returns them."""
        again = {
            experiment for experiment, outcome in self.ended.items() if outcome in outcomes
        } - {*but}
        for experiment in again:
            self._ends[self.ended.pop(experiment)] -= 1
        return again


def outcome_of(*, fault: bool, success: object) -> int:
    """The outcome of an experiment."""
    if fault:
        return FAULTED
    return PASSED if success else JUDGED
