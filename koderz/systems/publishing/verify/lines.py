"""The check of a journal's lines against the plan and against each other, without doing anything anew."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from koderz.experiments.experiment import SANDBOX, UNPRICED, Totals
from koderz.models.prices import IN_BATCHES
from koderz.systems.publishing.share import PUBLISHED
from koderz.systems.publishing.verify.asked import check_again, check_text
from koderz.systems.publishing.verify.files import ExperimentLines, RunFiles
from koderz.systems.publishing.verify.findings import Verification, is_redacted
from koderz.systems.publishing.verify.redo import alike
from koderz.types import SIMULATED
from koderz_tracker import records
from koderz_tracker.records import (
    Attempt,
    Call,
    Compute,
    Experiment,
    Grade,
    Once,
    Record,
    Resumed,
    Submitted,
)

_HOW = ("resume", "retry", "rescore", "calibrate")
_BACKWARD = 1.0  # seconds by which times of lines may run backward
_OTHER_TIME = 3600.0  # seconds by which a clock is put back once a year
# lines that may follow an end that was lost when a session ended, times the experiments under way
_IN_FLIGHT = 3


class RunSession(NamedTuple):
    """One session of a run."""

    begins: int  # the number of its first line
    how: str  # empty: the first
    concurrency: int
    finished: int | None = None  # the number of its last line, if it came to an orderly end
    status: str = "unfinished"


class PlannedExperiment(NamedTuple):
    """An experiment as the plan names it."""

    task: str
    solver: str
    arm: str
    sample: int
    model: str


class Sessions:
    """The sessions of a run and their ends, as its journal has them."""

    def __init__(self, files: RunFiles, result: Verification) -> None:
        at_once = files.plan.config.get("concurrency")
        self.all = [RunSession(0, "", at_once if isinstance(at_once, int) else 1)]
        self._lines = files.count
        self.is_rescored = False
        for number, line in files.lines("resumed", "finished"):
            if isinstance(line, Resumed):
                at_once = line.config.get("concurrency", self.all[-1].concurrency)
                self.all.append(
                    RunSession(number, line.how, at_once if isinstance(at_once, int) else 1)
                )
                self.is_rescored |= line.how == "rescore" or bool(
                    line.config.get("accept_divergence")
                )
                if line.how not in _HOW:
                    result.differs("plan", "a session", line.how, f"one of {', '.join(_HOW)}")
            elif isinstance(line, records.Finished):
                self.all[-1] = self.all[-1]._replace(finished=number, status=line.status)
        if self.again:
            result.note(f"worked on again in {self.again} sessions")

    @property
    def again(self) -> int:
        """The number of sessions that worked on the run after the first."""
        return len(self.all) - 1

    @property
    def status(self) -> str:
        """The status with which the last session ended."""
        return self.all[-1].status

    def number_at(self, line: int) -> int:
        """The number of the session that wrote a line, from 0."""
        return bisect_right([session.begins for session in self.all], line) - 1

    def was_in_flight(self, line: int) -> bool:
        """Whether a session ended so shortly after a line that its experiment was still under way."""
        number = self.number_at(line)
        ends = self.all[number + 1].begins if number < self.again else self._lines
        return ends - line <= _IN_FLIGHT * max(1, self.all[number].concurrency)


class JournalCheck:
    """Compares the lines of experiments with the plan and with each other."""

    def __init__(self, plan: records.Plan, sessions: Sessions, result: Verification) -> None:
        self._plan, self._sessions, self._result = plan, sessions, result
        self._unended = self._faults = self._free_faults = 0
        self._redacts = bool((plan.environment.get(PUBLISHED) or {}).get("redacted"))
        self._prices = plan.basis.prices
        self.models: set[str] = set()  # those that answered calls, without the simulated one
        self.kinds: set[type[Record]] = set()

    def check(self, place: str, lines: ExperimentLines, planned: PlannedExperiment) -> None:
        """Checks one experiment's lines: its ends, its task and arm, their order, its calls and what they cost."""
        found, calls = lines.records, [line for line in lines.records if isinstance(line, Call)]
        self.kinds.update(map(type, found))
        self._check_ends(place, lines)
        for line in found:
            self._check_identity(place, line, planned)
        for call in calls:
            self._check_cost(place, call)
            if not (self._redacts and is_redacted(call)):
                check_text(place, call, self._result)
        self.models |= {call.model for call in calls} - {SIMULATED}
        check_again(place, calls, self._result)
        numbers = [call.call for call in calls]
        if sorted(numbers) != [*range(1, len(numbers) + 1)]:
            self._result.differs(
                "experiment", place, f"calls {numbers}", f"calls 1 to {len(numbers)}"
            )
        self._check_order(place, found)

    def conclude(self) -> None:
        """Says what the plan has and the journal hasn't, and which experiments have no verdict."""
        planned, status = self._plan.planned, self._sessions.status
        if self._unended and status == "complete" and not self._plan.config.get("imported"):
            self._result.differs(
                "plan",
                "experiments without an end",
                self._unended,
                "none, since the run is complete",
            )
        elif self._unended and status != "decided":
            self._result.gaps.append(
                f"{self._unended} of {planned} planned experiments have not ended"
            )
        elif self._unended:
            self._result.note(
                f"{self._unended} of {planned} planned experiments were not asked, since it was decided"
            )
        if self._faults and status in ("complete", "decided"):
            self._result.differs(
                "plan",
                "its status",
                status,
                f"incomplete, since {self._faults} experiments faulted",
            )
        if self._faults:
            without = f", {self._free_faults} of them without a call" if self._free_faults else ""
            self._result.gaps.append(
                f"{self._faults} of {planned} experiments ended in a fault{without}"
            )
        if not self._unended and not self._faults and status not in ("complete", "unfinished"):
            self._result.differs("plan", "its status", status, "complete")

    def _check_ends(self, place: str, lines: ExperimentLines) -> None:
        """Checks that only what koderz writes behind an end stands behind one."""
        found, end = lines.records, lines.end
        self._unended += end is None
        ended = None if end is None else found[end]
        if isinstance(ended, records.Fault):
            self._faults += 1
            self._free_faults += not any(isinstance(line, Call | Attempt) for line in found)
        if isinstance(ended, Experiment | records.Fault):
            self._check_totals(place, found[: end + 1] if end is not None else found, ended)
        by_session = defaultdict[int, list[Record]](list)
        before: Record | None = None  # the last end
        for line, number in zip(found, lines.numbers, strict=True):
            session = self._sessions.number_at(number)
            is_same = before is not None and before in by_session[session]
            is_end = isinstance(line, Experiment | records.Fault)
            retries = self._plan.until_decided is not None and isinstance(before, records.Fault)
            if is_same and not retries:
                self._result.differs(
                    "experiment", place, f"a line behind its end: {line.kind}", "none"
                )
            how = self._sessions.all[session].how
            if is_end and isinstance(before, Experiment) and how != "rescore":
                self._result.differs(
                    "plan", place, f"another end, in a session of {how or 'the run'}", "one end"
                )
            if is_end:
                before = line
            by_session[session].append(line)

    def _check_totals(
        self, place: str, lines: Sequence[Record], ended: Experiment | records.Fault
    ) -> None:
        """Compares an end with the sums over its calls and machines, whatever its solver."""
        totals = Totals()
        for line in lines:
            if isinstance(line, Call):
                totals.add(line)
            elif isinstance(line, Compute):
                totals.rent(line)
        derived = {
            "calls": totals.calls,
            "cost": totals.cost,
            "unknown_ends": dict(totals.unknown_ends),
        }
        if isinstance(ended, Experiment):
            names = (
                "depth",
                "cost_known",
                "tokens_in",
                "tokens_out",
                "tokens_reasoning",
                "latency",
                "answered_by",
            )
            derived |= {name: getattr(totals, name) for name in names}
            derived |= {"saved_cost": totals.saved_cost, "reused": totals.reused}
            derived |= {"cost_by_tier": totals.by_tier(), "throttled": dict(totals.throttled)}
            grades = sum(isinstance(line, records.Grade) for line in lines)
            derived["grades"] = min(ended.grades, grades)  # a solver that starts over grades again
            if ended.success != (ended.verdict == "passed") and not any(
                isinstance(line, Attempt) and line.passes for line in lines
            ):
                self._result.differs(
                    "experiment", f"{place}, success", ended.success, ended.verdict
                )
        rented = [
            line.cost
            for line in lines
            if isinstance(line, Compute) and line.engine not in (SANDBOX, UNPRICED)
        ]
        # false where it was worked on again here
        if rented and alike(ended.cost, totals.cost + math.fsum(rented)):
            del derived["cost"]
            derived.pop("cost_by_tier", None)
        for name, value in derived.items():
            if not alike(getattr(ended, name), value):
                self._result.differs("experiment", f"{place}, {name}", getattr(ended, name), value)

    def _check_identity(self, place: str, line: Record, planned: PlannedExperiment) -> None:
        if isinstance(line, Once | Grade) and line.key:
            name = f"once:{line.name}/" if isinstance(line, Once) else f"grade:{line.item}/"
            if not line.key.startswith(name):
                self._result.differs("experiment", f"{place}, a key", line.key, f"{name}…")
        if isinstance(line, Submitted) and line.problem_id != planned.task:
            self._result.differs("plan", place, line.problem_id, planned.task)
        if isinstance(line, Experiment | records.Fault | Attempt):
            own = line.problem_id, line.solver, line.arm, line.sample
            if own != planned[:4]:
                self._result.differs(
                    "plan", place, " in ".join(map(str, own)), " in ".join(map(str, planned[:4]))
                )
        if isinstance(line, Experiment) and line.model not in ("", planned.model):
            self._result.differs("plan", f"{place}, model", line.model, planned.model)

    def _check_cost(self, place: str, call: Call) -> None:
        if (call.cost if call.reused else call.cost_saved) != 0.0:
            what = "of a reused reply" if call.reused else "saved"
            self._result.differs(
                "cost", f"{place}, call {call.call}, {what}", call.cost or call.cost_saved, 0.0
            )
        paid = call.cost_saved if call.reused else call.cost
        names = call.model, call.model.partition("/")[2]
        price = next((self._prices[name] for name in names if name in self._prices), None)
        if call.batch:
            own = [
                self._prices[key]
                for name in names
                if (key := f"{name}{IN_BATCHES}") in self._prices
            ]
            price = own[0] if own else price and [price[0] / 2, price[1] / 2, *price[2:]]
        if call.model == SIMULATED:
            derived = 0.0
        elif price and len(price) >= 2 and not any(price[2:]):
            derived = (call.tokens_in * price[0] + call.tokens_out * price[1]) / 1e6
        else:
            return
        if abs(paid - derived) > 1e-9 + 1e-6 * derived:
            self._result.differs("cost", f"{place}, call {call.call}", paid, derived)

    def _check_order(self, place: str, lines: Sequence[Record]) -> None:
        before = self._plan.time
        for line in lines:
            back = _seconds(before) - _seconds(line.time)
            if back > _BACKWARD and abs(back - _OTHER_TIME) > _BACKWARD:
                self._result.differs(
                    "order", f"{place}, {line.kind}", line.time, f"not before {before}"
                )
            before = line.time


def check_missing_ends(
    found: Sequence[tuple[int, str, str]], sessions: Sessions, result: Verification
) -> None:
    """Says which experiments came to an end that isn't on record: the number of the last line, place and verdict.

    A session that is killed leaves those that were under way, and only these, between their last verdict and their end.
    """
    left: dict[int, int] = defaultdict(int)
    excused = 0
    for number, place, verdict in found:
        session = sessions.number_at(number)
        left[session] += 1
        if sessions.was_in_flight(number) and left[session] <= max(
            1, sessions.all[session].concurrency
        ):
            excused += 1
        else:
            result.differs("experiment", place, "no end", verdict)
    if excused:
        result.gaps.append(f"{excused} experiments came to an end that isn't on record")


def _seconds(time: str) -> float:
    """A time in seconds; not a number where it is none, which is neither before nor after any other."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (OverflowError, TypeError, ValueError):
        return math.nan
