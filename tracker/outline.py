"""The outline of a run, read from its journal: sessions, payments, batches, decisions, calibrations of its judge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from koderz_tracker.basis import UntilDecided
from koderz_tracker.index import (
    CODES,
    DAMAGED,
    DOUBLED,
    PAID,
    Index,
    IndexEntry,
    load_index,
    read_records,
    read_spans,
)
from koderz_tracker.journal import NAME
from koderz_tracker.records import Batch, Decision, Finished, JudgeCalibration, Plan


class Outline:
    """Facts from the index alone: where sessions begin and end, and how much was paid."""

    def __init__(self, entries: Iterable[IndexEntry]) -> None:
        self.calibrations: list[tuple[int, int]] = []
        # after the plan: a session's last line, the next one's first, …
        self.session_ends: list[tuple[int, int]] = []
        self.last_known = (0, 0)  # the last line of a kind that this version knows
        costs: list[float] = []
        before = (0, 0)
        for entry in entries:
            if entry.code in _NO_LINES:
                continue
            if entry.code in PAID:
                costs.append(entry.cost)
            elif entry.code == _RESUMED and before[1]:
                self.session_ends += [before, entry.span]
            elif entry.code == _CALIBRATION:
                self.calibrations.append(entry.span)
            before = entry.span
            if entry.kind:
                self.last_known = before
        self.session_ends.append(self.last_known)
        self.paid = math.fsum(costs)


_RESUMED, _CALIBRATION = CODES["resumed"], CODES["calibration"]
_NO_LINES = (DAMAGED, DOUBLED)


def with_calibrations(parts: dict[str, Any], journal: Path, lines: Outline) -> dict[str, Any]:
    """The parts, with the last figures of each arm's judge under `calibration`."""
    if not lines.calibrations:
        return parts
    found: dict[str, Any] = dict(parts.get("calibration", {}))
    for record in read_records(journal, lines.calibrations):
        if isinstance(record, JudgeCalibration):
            for arm, figures in record.arms.items():
                found[arm] = {**found.get(arm, {}), **figures}
    return {**parts, "calibration": found}


def last_finished(journal: Path, lines: Outline) -> Finished | None:
    """The orderly end of the run's last session; None if a line of another kind is the last."""
    record = next(read_records(journal, [lines.last_known]))
    return record if isinstance(record, Finished) else None


def active_seconds(times: Sequence[str]) -> float:
    """Seconds between the first and the last line of each session, summed."""
    moments = [datetime.fromisoformat(time) for time in times]
    spans = zip(moments[::2], moments[1::2], strict=True)
    return sum(max(0.0, (end - start).total_seconds()) for start, end in spans)


_BATCH, _CALL = CODES["batch"], CODES["call"]

FREED = ("lost", "failed", "gone")
"""The states of batches whose calls have to be sent again: nothing was paid for them, or its results are no more."""

ENDED = (*FREED, "completed", "expired", "cancelled", "ended")
"""The states of batches of which nothing more will come."""


class LineOfBatch(NamedTuple):
    """A call as it stands in a batch."""

    custom_id: str
    digest: str  # of its request
    dollars: float  # that it was likely to cost


class _Answered(Struct):
    """The part of a call's line that says in which batch it was answered."""

    batch: dict[str, str] | None = None


def batches_in(folder: Path, index: Index | None = None) -> list[Batch]:
    """The last state of each batch of a run, in the order of sending, each with the `time` and `lines` of its first."""
    journal = folder / NAME
    found: dict[str, Batch] = {}
    columns = (index or load_index(journal)).columns("code", "length", "offset")
    for record in read_records(
        journal, [(offset, length) for code, length, offset in columns if code == _BATCH]
    ):
        if isinstance(record, Batch):
            first = found.get(record.name)
            if first and not record.lines:
                record = replace(record, time=first.time, lines=first.lines, newest=first.newest)
            found[record.name] = record
    return [*found.values()]


def lines_of(batch: Batch) -> list[LineOfBatch]:
    """The calls in a batch."""
    split = (line.split() for line in batch.lines.splitlines())
    return [LineOfBatch(name, digest, float(dollars)) for name, digest, dollars in split]


def answered_in(folder: Path) -> set[str]:
    """The custom ids of the calls whose answers are on record."""
    columns = load_index(folder / NAME).columns("code", "length", "offset")
    spans = [(offset, length) for code, length, offset in columns if code == _CALL]
    decoder = msgspec.json.Decoder(_Answered)
    answered = (decoder.decode(line).batch for line in read_spans(folder / NAME, spans))
    return {batch["custom_id"] for batch in answered if batch}


def told_batches(folder: Path, index: Index | None = None) -> list[dict[str, Any]]:
    """The batches in the form in which a summary has them."""
    names = ("id", "state", "provider", "model", "count", "done", "failed", "reason", "time")
    return [{name: getattr(batch, name) for name in names} for batch in batches_in(folder, index)]


Told = Mapping[str, Any]
"""A decision in the form in which a summary has it."""


_DECISION = CODES[Decision.kind]


class Stoppable(Protocol):
    """The summary of a run that may stop once it is decided, as far as that goes."""

    @property
    def until_decided(self) -> UntilDecided | None: ...
    @property
    def decision(self) -> Told | None: ...
    @property
    def arms(self) -> Mapping[str, Any]: ...
    @property
    def results(self) -> Sequence[Any]: ...
    @property
    def faults(self) -> Sequence[Any]: ...
    @property
    def planned(self) -> int: ...


def decisions_in(folder: Path, index: Index | None = None) -> dict[str, Decision]:
    """The decision on each compared arm: the first that is final, else the last."""
    journal = folder / NAME
    columns = (index or load_index(journal)).columns("code", "length", "offset")
    found: dict[str, Decision] = {}
    for record in read_records(
        journal, [(offset, length) for code, length, offset in columns if code == _DECISION]
    ):
        if isinstance(record, Decision) and not (record.b in found and found[record.b].is_final):
            found[record.b] = record
    return found


def are_decided(plan: Plan, found: Mapping[str, Decision]) -> bool:
    """Whether every comparison of a run is decided for good; also of one that has none to decide."""
    others = [
        arm.name for arm in plan.arms if plan.until_decided and arm.name != plan.until_decided.arm
    ]
    return all(name in found and found[name].is_final for name in others)


def cut_short(plan: Plan, found: Mapping[str, Decision]) -> bool:
    """Whether a run asks no more since every comparison is decided, and one of them before its last task."""
    return are_decided(plan, found) and any(each.outcome != "tasks" for each in found.values())


def told_decisions(plan: Plan, found: Mapping[str, Decision]) -> dict[str, Any] | None:
    """The decisions as the summary has them: that on the last arm, and in `arms` each, where there are several."""
    told = {
        arm.name: {name: value for name, value in asdict(found[arm.name]).items() if name != "time"}
        for arm in plan.arms
        if arm.name in found
    }
    if not told:
        return None
    last = [*told.values()][-1]
    return last if len(plan.arms) == 2 else {**last, "arms": told}


def each_of(decision: Told | None) -> Sequence[Told]:
    """The decision on each compared arm."""
    if not decision:
        return ()
    return [*decision["arms"].values()] if "arms" in decision else [decision]


def check_told(decision: Told | None) -> None:
    """Raises msgspec.ValidationError where a summary's decision, or one on one of several arms, is none."""
    if decision and "arms" in decision:
        msgspec.convert(decision["arms"], dict[str, Decision])
    elif decision:
        msgspec.convert(decision, Decision)


def is_decided(summary: Stoppable) -> bool:
    """Whether no more will be asked because every comparison is decided."""
    if summary.until_decided is None:
        return False
    final = {each["b"] for each in each_of(summary.decision) if each["outcome"] != "money"}
    return final >= {*summary.arms} - {summary.until_decided.arm}


def stopped_early(decision: Told | None, *, went_on: bool = False) -> str:
    """A mark for lists: `stopped early: shown after 84 of 164`; empty for a run that wasn't cut short.

    `went_on`: whether all that was planned has been asked since.
    """
    told = [
        f"{each['outcome']} after {each['tasks']} of {each['planned']}"
        for each in each_of(decision)
        if each["tasks"] + sum((each.get("left_out") or {}).values()) < each["planned"]
    ]
    mark = "decided early, then run to the end" if went_on else "stopped early"
    return f"{mark}: {', '.join(told)}" if told else ""


def went_on(summary: Stoppable) -> bool:
    """Whether all that was planned has been asked, whatever was decided on the way."""
    return len(summary.results) + len(summary.faults) >= summary.planned
