"""What goes back from a container as the result of a call, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koderz._version import __version__
from koderz.engines.portable import source_digest
from koderz.errors import FatalFault, Fault
from koderz.experiments.budget import CapReached, ExperimentCapReached
from koderz.experiments.experiment import ExperimentOutcome
from koderz.experiments.replay import NeedsCallError
from koderz.suites.references import ReferenceFault
from tracker.records import Experiment, Record, decode, encode
from tracker.records import Fault as FaultRecord


def result_of(outcome: ExperimentOutcome, lines: Sequence[bytes]) -> dict[str, Any]:
    """How an experiment ended, with the lines of its journal."""
    return {**_version(), "lines": [*lines], "outcome": _packed(outcome)}


def performed_by(call_id: str) -> dict[str, Any]:
    """The result of a call whose experiment another one performs."""
    return {**_version(), "lines": [], "elsewhere": call_id}


def read_result(outcome: Mapping[str, Any]) -> ExperimentOutcome:
    """The outcome in what `result_of` made."""
    record = decode(outcome["record"]) if outcome["record"] else None
    assert record is None or isinstance(record, Experiment | FaultRecord)
    fault = _FAULTS[outcome["fault"]](outcome["message"]) if outcome["fault"] else None
    return ExperimentOutcome(record, fault)


def outcome_among(lines: Sequence[Record]) -> Experiment | FaultRecord | None:
    """The end of an experiment, if its stored lines have one that is not followed by more."""
    last = lines[-1] if lines else None
    return last if isinstance(last, Experiment | FaultRecord) else None


_KINDS: tuple[type[Fault], ...] = (CapReached, ExperimentCapReached, FatalFault, NeedsCallError, ReferenceFault, Fault)
_FAULTS: Mapping[str, type[Fault]] = {kind.__name__: kind for kind in _KINDS}


def _packed(outcome: ExperimentOutcome) -> dict[str, Any]:
    fault = outcome.fault
    kind = next((name for name, kind in _FAULTS.items() if isinstance(fault, kind)), "")
    return {"record": encode(outcome.record) if outcome.record else b"", "fault": kind, "message": str(fault or "")}


def _version() -> dict[str, str]:
    return {"koderz": __version__, "digest": source_digest()}
