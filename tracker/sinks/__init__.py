"""Sinks: the targets that a run is copied into. Each copy can be redone from the journal at any time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from koderz_tracker.errors import KoderzError
from koderz_tracker.registry import Extensible, find, names_in

if TYPE_CHECKING:
    from koderz_tracker.records import Plan, Record
    from koderz_tracker.stories import Stories


@dataclass(frozen=True, slots=True)
class Source:
    """The run that a sink copies. Its plan and records are without secrets, which stay in the journal."""

    folder: Path  # of the run; its parent is the results folder
    plan: Plan
    stories: Stories  # as of the records that are being handed over
    environ: Mapping[str, str]
    # settings of the sinks, such as mlflow_detail
    options: Mapping[str, Any] = field(default_factory=dict)


class SinkDown(KoderzError):
    """The target can't be reached or written at present. `koderz sync` copies the missing records later."""

    exit_code = 3


class SinkSlow(SinkDown):
    """The target can be reached but takes too long to answer; the sink is behind, not down."""


class Sink(Extensible, ABC):
    """A target that runs are copied into. An instance copies one run.

    A subclass has `take`; all else has a default. It works in a process of its own, which feeds all sinks of a results
    folder; one that a suite or a solver names writes files, in the process of the run. An error other than SinkDown and
    SinkSlow counts as a bug of the sink: the run goes on without it.
    """

    def __init__(self, source: Source) -> None:
        """Open the target for a run. Called before the first records are handed over, anew in each process.

        Raises SinkDown if the target can't be reached.
        """
        self.source = source

    @abstractmethod
    def take(self, records: Sequence[Record]) -> None:
        """Copy the journal's next records, in order: on return they are durable in the target.

        Records may come again, from any earlier point on, also from another process at the same time: that leaves the
        target as it is. Long texts are blobs here; `self.source.stories.of` gives an experiment whole. Raises SinkDown
        if the target can't be reached, SinkSlow if it takes too long.
        """

    @property
    def note(self) -> str:
        """A sentence on what the target refuses for good although it is up to date; by default none."""
        return ""

    def close(self) -> None:
        """Release the target. Called once after the last records of a process, and after an error, too."""

    @classmethod
    def rebuild(cls, results: Path, environ: Mapping[str, str]) -> None:
        """Make the target of a results folder usable again, such as by putting a damaged file aside.

        Called by `koderz sync --rebuild`, before every run is handed over from its first record. By default nothing is
        done. Raises SinkDown if the target can't be reached or written.
        """

    @classmethod
    def check(cls, results: Path, environ: Mapping[str, str]) -> str:  # noqa: ARG003
        """The place of the target, for `koderz doctor`, which asks for it. By default nothing is said of it.

        Raises SinkDown if it can't be reached, KoderzError if it is set up wrongly.
        """
        return ""


SINKS: Mapping[str, str] = {
    "mlflow": "koderz_tracker.sinks.mlflow.sink:MlflowSink",
    "memory": "koderz_tracker.sinks.memory:MemorySink",
}


JSON = "json"
"""The summary file, written by the process that ends a session, see tracker.sinks.json."""

KNOWN = (JSON, *SINKS)
GROUP = "koderz.sinks"
"""The group of entry points for other packages' sinks."""


def sink_class(name: str) -> type[Sink]:
    """The class of the sink with this name. Raises KoderzError for an unknown name."""
    return _as_class(find("sink", name, SINKS, GROUP), name)


def open_sink(name: str, source: Source) -> Sink:
    """Opens the sink with this name. Raises KoderzError for an unknown name, SinkDown if the target is missing."""
    return sink_class(name)(source)


def check_names(names: Iterable[str]) -> None:
    """Raises KoderzError, which lists the known sinks, if one of the names is unknown."""
    for name in names:
        if name in KNOWN:
            continue
        others = names_in(GROUP)
        if name not in others:
            raise KoderzError(
                f"there is no sink {name!r}; choose from {', '.join((*KNOWN, *sorted(others)))}"
            )


@runtime_checkable
class _Rebuilding(Protocol):
    def rebuild(self, results: Path, environ: Mapping[str, str]) -> object: ...


@runtime_checkable
class _Checking(Protocol):
    def check(self, results: Path, environ: Mapping[str, str]) -> str: ...


def _as_class(found: Any, name: str) -> type[Sink]:
    """The class of a sink: itself, or one whose sinks are those that a plain class or function makes of a Source."""
    if isinstance(found, type) and issubclass(found, Sink):
        return found
    if not callable(found):
        raise KoderzError(f"the sink {name} is no subclass of koderz.extend.Sink: {found!r:.80}")

    class AdaptedSink(Sink):
        def __init__(self, source: Source) -> None:
            super().__init__(source)
            self._plain = found(source)

        def take(self, records: Sequence[Record]) -> None:
            self._plain.take(records)

        def close(self) -> None:
            self._plain.close()

        @classmethod
        def rebuild(cls, results: Path, environ: Mapping[str, str]) -> None:
            if isinstance(found, _Rebuilding):
                found.rebuild(results, environ)

        @classmethod
        def check(cls, results: Path, environ: Mapping[str, str]) -> str:
            return found.check(results, environ) if isinstance(found, _Checking) else ""

    AdaptedSink.__doc__ = found.__doc__
    return AdaptedSink
