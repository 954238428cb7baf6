"""The verification of one run, from its files to its findings."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from koderz.errors import KoderzError, Unreachable
from koderz.plans.ids import planned_ids
from koderz.plans.plan import Identity
from koderz.runs.verify.files import RunFiles, check_sums
from koderz.runs.verify.findings import Verification
from koderz.runs.verify.redo import Redoing, open_offline, place_of
from koderz.runs.verify.subject import RestoredRun, check_plan, foreign_parts, restored_run
from koderz.runs.verify.summary import check_summary
from koderz_tracker import records
from koderz_tracker.index import experiment_number, without_caches
from koderz_tracker.records import Attempt, Call, Experiment, Plan, Record, Resumed
from koderz_tracker.runs import require_own

_HOW = ("resume", "retry", "rescore", "calibrate")
_MOST_PLANNED = 10_000_000  # experiments
_BACKWARD = 1.0  # seconds by which times of lines may run backward
_OTHER_TIME = 3600.0  # seconds by which a clock is put back once a year


async def verify_run(
    folder: Path,
    *,
    summary: Path | None = None,
    dataset: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[int, int], None] = lambda done, planned: None,  # noqa: ARG005
) -> Verification:
    """Verifies the run in `folder`, with the summary beside it if there is one.

    `dataset`: the file that has the tasks of a suite which the run read from a file of its own. `tell` is called with
    the experiments done so far and those planned. Raises JournalError where the folder holds no run, and KoderzError
    for a link in it.
    """
    began = time.monotonic()
    result = Verification(None)
    require_own(folder)
    check_sums(folder, summary, result)
    with without_caches():
        files = RunFiles(folder, result)
        result.run_id = files.plan.run_id
        if files.plan.planned > _MOST_PLANNED:
            raise KoderzError(
                f"{folder.name} plans {files.plan.planned:,} experiments; at most {_MOST_PLANNED:,} are verified"
            )
        _check_name(folder, files.plan, result)
        check_plan(files.plan, result)
        restored = restored_run(files.plan, dataset, result)
        how = _Sessions(files, result)
        if restored:
            files.open_private(restored.plan.privacy)
        await _experiments(files, restored, how, environ, tell)
        if foreign_parts(files.plan):
            result.note("figures are as recorded")
        else:
            check_summary(folder, summary, result)
    _say_trust(files.plan, result, is_calibrated=how.is_calibrated)
    result.seconds = time.monotonic() - began
    return result


class _Sessions:
    """The sessions of a run and their ends, as its journal has them."""

    def __init__(self, files: RunFiles, result: Verification) -> None:
        self.again = 0  # sessions that worked on it after the first
        self.is_rescored = self.is_calibrated = False
        self.status = "unfinished"
        for line in files.lines():
            if isinstance(line, Resumed):
                self.again += 1
                self.is_calibrated |= line.how == "calibrate"
                self.is_rescored |= line.how == "rescore" or bool(line.config.get("accept_divergence"))
                if line.how not in _HOW:
                    result.differs("plan", "a session", line.how, f"one of {', '.join(_HOW)}")
            elif isinstance(line, records.Finished):
                self.status = line.status
        if self.again:
            result.note(f"worked on again in {self.again} sessions")


async def _experiments(
    files: RunFiles,
    restored: RestoredRun | None,
    how: _Sessions,
    environ: Mapping[str, str],
    tell: Callable[[int, int], None],
) -> None:
    """Checks each planned experiment, and whether there are others on record."""
    result, left = files.result, files.experiments()
    journal = JournalCheck(files.plan, how, result)

    def planned() -> Iterator[tuple[Identity | None, Sequence[Record]]]:
        for done, (number, identity, place) in enumerate(_planned(files.plan, restored)):
            left.discard(number)
            tell(done, files.plan.planned)
            found = files.records(number, place)
            journal.check(place, found, (identity.task.id, identity.arm.name) if identity else None)
            yield identity, found

    if restored is None:
        for _ in planned():
            pass
    else:
        await _redo(planned(), restored, how, environ, result)
    if left:
        result.differs(
            "plan", f"exp_{min(left):016x}", f"{len(left)} experiments on record that aren't planned", "none"
        )
    journal.conclude()


async def _redo(
    experiments: Iterator[tuple[Identity | None, Sequence[Record]]],
    restored: RestoredRun,
    how: _Sessions,
    environ: Mapping[str, str],
    result: Verification,
) -> None:
    """Does the experiments anew, as many at once as there are judges for. Without a sandbox none is done anew."""
    try:
        async with open_offline(restored.plan, environ) as resources:
            redoing = Redoing(restored, resources, result, how.is_rescored)

            async def lane() -> None:
                for identity, found in experiments:
                    if identity:
                        await redoing.experiment(identity, found)

            async with asyncio.TaskGroup() as group:
                for _ in range(2 * restored.plan.settings.judge_count):
                    group.create_task(lane())
            await redoing.settle()
    except Unreachable as error:
        result.lacks(f"verdicts: {error}")
        for _ in experiments:
            pass


def _planned(plan: Plan, restored: RestoredRun | None) -> Iterator[tuple[int, Identity | None, str]]:
    if restored:
        for identity in restored.plan.experiments():
            yield experiment_number(identity.experiment_id), identity, place_of(identity)
        return
    for name, task, arm, sample in planned_ids(plan):
        yield experiment_number(name), None, f"{name} ({task}, {arm}{f', sample {sample}' if sample else ''})"


class JournalCheck:
    """Compares the lines of experiments with the plan and with each other."""

    def __init__(self, plan: Plan, how: _Sessions, result: Verification) -> None:
        self._plan, self._how, self._result = plan, how, result
        self._unended = self._faults = 0
        self._prices = plan.basis.prices

    def check(self, place: str, lines: Sequence[Record], planned: tuple[str, str] | None) -> None:
        """Checks one experiment's lines: its end, its task and arm, their order, and what its calls cost."""
        result = self._result
        ends = [line for line in lines if isinstance(line, Experiment | records.Fault)]
        self._unended += not ends
        self._faults += bool(ends) and isinstance(ends[-1], records.Fault)
        if len(ends) > 1 + self._how.again:
            result.differs("plan", place, f"{len(ends)} ends", f"{1 + self._how.again} at most")
        for line in lines:
            if planned and isinstance(line, Experiment | records.Fault | Attempt):
                own = line.problem_id, line.arm
                if own != planned:
                    result.differs("plan", place, " in ".join(own), " in ".join(planned))
            if isinstance(line, Call):
                self._check_cost(place, line)
        numbers = [line.call for line in lines if isinstance(line, Call)]
        if sorted(numbers) != [*range(1, len(numbers) + 1)]:
            result.differs("experiment", place, f"calls {numbers}", f"calls 1 to {len(numbers)}")
        self._check_order(place, lines)

    def conclude(self) -> None:
        """Says what the plan has and the journal hasn't."""
        if self._unended and self._how.status == "complete":
            self._result.differs("plan", "experiments without an end", self._unended, "none, since the run is complete")
        elif self._unended:
            self._result.note(f"{self._unended} planned experiments have not ended")
        if self._faults:
            self._result.on_trust.append(f"that {self._faults} experiments ended in a fault")

    def _check_cost(self, place: str, call: Call) -> None:
        price = self._prices.get(call.model) or self._prices.get(call.model.partition("/")[2])
        if call.model == "simulated":
            derived = 0.0
        elif price and len(price) >= 2 and not any(price[2:]):
            derived = (call.tokens_in * price[0] + call.tokens_out * price[1]) / 1e6
        else:
            return
        if abs(call.cost - derived) > 1e-9 + 1e-6 * derived:
            self._result.differs("cost", f"{place}, call {call.call}", call.cost, derived)

    def _check_order(self, place: str, lines: Sequence[Record]) -> None:
        before = self._plan.time
        for line in lines:
            back = _seconds(before) - _seconds(line.time)
            if back > _BACKWARD and abs(back - _OTHER_TIME) > _BACKWARD:
                self._result.differs("order", f"{place}, {line.kind}", line.time, f"not before {before}")
            before = line.time


def _check_name(folder: Path, plan: Plan, result: Verification) -> None:
    if plan.run_id is None:
        return
    if folder.name != plan.run_id:
        result.note(f"its folder is called {folder.name}")
    stamp = plan.run_id.partition("_")[2].partition("_")[2]
    try:
        off = abs((datetime.strptime(stamp, "%Y%m%d_%H%M%S") - datetime.fromisoformat(plan.time)).total_seconds())
    except ValueError:
        off = float("inf")
    if off > 60:
        result.differs("order", "run_id", plan.run_id, f"a plan of {plan.time}")


def _say_trust(plan: Plan, result: Verification, *, is_calibrated: bool) -> None:
    models = sorted({name for arm in plan.arms for name in arm.models.values() if name != "simulated"})
    if models:
        result.on_trust += [f"that {', '.join(models)} wrote these replies", "sampling", "what servers charged"]
    if is_calibrated:
        result.on_trust.append("the labels of people")
    if plan.config.get("imported"):
        result.on_trust.append("where the imported file came from")
    result.on_trust.append("times")


def _seconds(time: str) -> float:
    """A time in seconds; not a number where it is none, which is neither before nor after any other."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (OverflowError, TypeError, ValueError):
        return math.nan
