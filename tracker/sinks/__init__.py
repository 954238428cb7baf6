"""Sinks: the targets that a run is copied into. Each copy can be redone from the journal at any time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from tracker.errors import KoderzError
from tracker.registry import find, names_in

if TYPE_CHECKING:
    from tracker.records import Plan, Record
    from tracker.stories import Stories


@dataclass(frozen=True, slots=True)
class Source:
    """The run that a sink copies. Its plan and records are without secrets, which stay in the journal."""

    folder: Path  # of the run; its parent is the results folder
    plan: Plan
    stories: Stories  # as of the records that are being handed over
    environ: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)  # settings of the sinks, such as mlflow_detail


class SinkDown(KoderzError):
    """The target can't be reached or written at present. `koderz sync` copies the missing records later."""

    exit_code = 3


class SinkSlow(SinkDown):
    """The target can be reached but takes too long to answer; the sink is behind, not down."""


class Sink(Protocol):
    """One run's projection into one target, made by calling a registered class with a Source."""

    def take(self, records: Sequence[Record]) -> None:
        """Projects the journal's next records, in order; what they say is durable in the target on return.

        Records may come again, from any earlier point on, also from another process at the same time: that
        leaves the target as it is. Long texts are blobs here; `source.stories.of` gives an experiment whole.
        Raises SinkDown where the target can't be reached.
        """

    def close(self) -> None:
        """Closes the target."""


# A sink's class may also have, as class or static methods:
#   rebuild(results: Path, environ)        makes the target usable again, before every run is handed over again
#   check(results: Path, environ) -> str   says where the target is; SinkDown where it can't be reached

SINKS: Mapping[str, str] = {
    "mlflow": "tracker.sinks.mlflow.sink:MlflowSink",
    "memory": "tracker.sinks.memory:MemorySink",
}


JSON = "json"
"""The summary file, written by the process that ends a session, see tracker.sinks.json."""

KNOWN = (JSON, *SINKS)
GROUP = "koderz.sinks"
"""The group of entry points for other packages' sinks."""


def open_sink(name: str, source: Source) -> Sink:
    """Opens the sink with this name. Raises KoderzError for an unknown name, SinkDown if the target is missing."""
    return cast("Sink", find("sink", name, SINKS, GROUP)(source))


def check_names(names: Iterable[str]) -> None:
    """Raises KoderzError, which lists the known sinks, if one of the names is unknown."""
    for name in names:
        if name in KNOWN:
            continue
        others = names_in(GROUP)
        if name not in others:
            raise KoderzError(f"there is no sink {name!r}; choose from {', '.join((*KNOWN, *sorted(others)))}")
