"""The outline of a run, taken from the index of its journal: sessions, what was paid, and calibrations of its judge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from koderz_tracker.index import CODES, DAMAGED, DOUBLED, PAID, IndexEntry, read_records
from koderz_tracker.records import Finished, JudgeCalibration


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
