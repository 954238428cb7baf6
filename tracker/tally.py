"""What a run has come to so far: one fold of its lines, for whoever records it and whoever watches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FAULTED, JUDGED, PASSED = range(3)
"""How an experiment ended: judged and passed are apart."""


class Tally(Generic[K]):
    """How the experiments ended last, whatever they are told apart by, and what was paid."""

    def __init__(self, ended: Mapping[K, int] | None = None, calls: int = 0, cost: float = 0.0) -> None:
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
        """An experiment ended so, whatever it had come to before."""
        if (before := self.ended.get(experiment)) is not None:
            self._ends[before] -= 1
        self.ended[experiment] = outcome
        self._ends[outcome] += 1

    def pay(self, cost: float, *, call: bool) -> None:
        """A call, or something else that costs US dollars."""
        self.calls += call
        self.cost += cost

    def reopen(self, outcomes: Collection[int]) -> set[K]:
        """The experiments that ended so, which are worked on again and count as not ended."""
        again = {experiment for experiment, outcome in self.ended.items() if outcome in outcomes}
        for experiment in again:
            self._ends[self.ended.pop(experiment)] -= 1
        return again


def outcome_of(*, fault: bool, success: object) -> int:
    """How an experiment ended."""
    return FAULTED if fault else PASSED if success else JUDGED
