"""An experiment between its submission to Modal and its end in the journal."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from koderz.engines.portable import line_key
from koderz.errors import Fault
from koderz.experiments.experiment import PendingExperiment
from koderz.experiments.runner import fault_of
from tracker import records
from tracker.records import Call, Compute, Record, Submitted


@dataclass(slots=True)
class Flight:
    """An experiment that was submitted, or is about to be."""

    work: PendingExperiment
    call_id: str  # empty: not submitted yet
    allowance: float | None = None  # US dollars; None: no cap
    recorded: list[Record] = field(default_factory=list)  # what came since, in order
    stored: int = 0  # how many of its lines have been seen in the store
    caught_up: float = field(default_factory=time.monotonic)  # when its lines were looked at last
    deaths: int = 0
    spent: float = 0.0  # US dollars since it was submitted

    @classmethod
    def of(cls, work: PendingExperiment) -> Flight:
        """As it stands by the journal."""
        calls = [record.call_id for record in work.recorded if isinstance(record, Submitted)]
        return cls(work, calls[-1] if calls else "")

    @property
    def experiment_id(self) -> str:
        return self.work.identity.experiment_id

    @property
    def is_over(self) -> bool:
        """Whether the experiment had ended after it was submitted last, and is to be worked on again."""
        last = [r for r in self.work.recorded if isinstance(r, Submitted) or is_outcome(r)][-1:]
        return bool(last) and is_outcome(last[0])

    def new(self, lines: Iterable[Record]) -> list[Record]:
        """Those lines that the journal doesn't have yet."""
        known = {line_key(record) for record in (*self.work.recorded, *self.recorded)}
        return [line for line in lines if line_key(line) not in known]

    def note(self, lines: Iterable[Record]) -> None:
        """Takes lines for recorded."""
        for line in lines:
            self.recorded.append(line)
            self.spent += line.cost if isinstance(line, Call | Compute) else 0.0

    def to_replay(self) -> PendingExperiment:
        """The work with all that a worker has to know of it."""
        recorded = [r for r in (*self.work.recorded, *self.recorded) if not isinstance(r, Submitted)]
        return self.work._replace(recorded=recorded)

    def lost(self, fault: Fault) -> records.Fault:
        """Its end where it can't be performed."""
        paid = [r for r in (*self.work.recorded, *self.recorded) if isinstance(r, Call | Compute)]
        calls = sum(isinstance(line, Call) for line in paid)
        return fault_of(self.work.identity, fault, cost=sum(line.cost for line in paid), calls=calls)


def is_outcome(record: Record) -> bool:
    return isinstance(record, records.Experiment | records.Fault)
