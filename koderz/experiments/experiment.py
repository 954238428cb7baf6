"""One experiment as it is handed to whoever runs it, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from koderz.errors import Fault
    from koderz.plans.identity import Identity
    from tracker import records
    from tracker.records import Record, Text


class PendingExperiment(NamedTuple):
    """One experiment, and what is on record for it, in order."""

    identity: Identity
    recorded: Sequence[Record] = ()
    is_whole: bool = True  # False: some of it can't be read, so the solver may have to go another way


class ExperimentOutcome(NamedTuple):
    """How one experiment ended. It hasn't where there is no record: `fault` then ends the run."""

    record: records.Experiment | records.Fault | None
    fault: Fault | None = None


class Ledger(Protocol):
    """Where what happens in experiments is written down."""

    async def record(self, *lines: Record) -> None:
        """Returns once the lines are durable. Raises StorageError where they can't be."""
        ...

    def text(self, text: Text) -> str:
        """A recorded text, also where it lies in a blob."""
        ...
