"""Sinks: the places that a run is projected into, each of which can be redone from the journal at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from tracker.errors import KoderzError
from tracker.registry import find

if TYPE_CHECKING:
    from tracker.records import Plan, Record
    from tracker.stories import Stories


@dataclass(frozen=True, slots=True)
class Source:
    """The run that a sink projects."""

    folder: Path  # of the run; its parent is the results folder
    plan: Plan
    stories: Stories  # as of the records that are being handed over
    environ: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)  # settings of the sinks, such as mlflow_detail


class SinkDown(KoderzError):
    """The target can't be reached or written now. What the sink lacks is made up for by `koderz sync`."""

    exit_code = 3


class Sink(Protocol):
    """One run's projection into one target, made by calling a registered class with a Source."""

    def take(self, records: Sequence[Record]) -> None:
        """Projects the journal's next records, in order; what they say is durable in the target on return.

        Records may come again, from any earlier point on, also from another process at the same time: that
        leaves the target as it is. Long texts are blobs here; `source.stories.of` gives an experiment whole.
        Raises SinkDown where the target can't be reached.
        """

    def close(self) -> None:
        """Lets go of the target."""


SINKS: Mapping[str, str] = {
    "mlflow": "tracker.sinks.mlflow:MlflowSink",
    "memory": "tracker.sinks.memory:MemorySink",
}


def open_sink(name: str, source: Source) -> Sink:
    """The sink of this name. Raises KoderzError for an unknown name, SinkDown where the target isn't there."""
    return cast("Sink", find("sink", name, SINKS, "koderz.sinks")(source))
