"""The decisions of a run that stops once its arms are told apart, read from its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import asdict

from koderz_tracker.basis import UntilDecided
from koderz_tracker.index import CODES, Index, load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.records import Decision, Plan

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
