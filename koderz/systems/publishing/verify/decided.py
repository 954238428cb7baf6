"""Computes again what follows from the outcomes of a whole run: decisions, and the calibration of a judge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from koderz.errors import KoderzError
from koderz.plans.plan import Plan
from koderz.runs.deciding import Decider
from koderz.systems.publishing.labels import JudgedRun
from koderz.systems.publishing.verify.files import RunFiles
from koderz.systems.publishing.verify.findings import Verification, as_json
from koderz.systems.publishing.verify.redo import alike
from koderz_tracker.files import MB, read_all
from koderz_tracker.records import Decision, Experiment, Fault, Finished, JudgeCalibration, Record, Resumed

_DIGEST = re.compile(r"[0-9a-f]{1,64}")
_LARGEST = 256 * MB


def check_decisions(files: RunFiles, plan: Plan | None, result: Verification) -> None:
    """Follows the outcomes in their recorded order, and compares each decision with the one that they lead to."""
    recorded = [line for _, line in files.lines("experiment", "fault", "decision", "resumed", "finished")]
    if not (files.plan.until_decided or any(isinstance(line, Decision) for line in recorded)):
        return
    if plan is None or plan.record.until_decided is None:
        result.lacks("decisions, since the plan can't be had here")
        return
    seen: list[Record] = []
    decider, due = Decider(plan, ()), dict[str, Decision]()
    for line in recorded:
        if isinstance(line, Resumed):  # a session begins with what is on record
            decider = Decider(plan, seen)
            due |= {each.b: each for each in decider.take(())}
        elif isinstance(line, Experiment | Fault):
            seen.append(line)
            due |= {each.b: each for each in decider.take([line])}
        elif isinstance(line, Decision):
            if line.outcome == "money" and line.b not in due:
                due |= {each.b: each for each in decider.out_of_money()}
            derived = due.pop(line.b, None)
            if derived is None:
                result.differs("decision", f"{line.a} and {line.b}", line.outcome, "none here")
                continue
            seen.append(derived)
            _compare(line, derived, result)
    for derived in due.values():
        where = f"{derived.a} and {derived.b}"
        if derived.is_final and isinstance(recorded[-1], Finished):
            result.differs("decision", where, "none", derived.outcome)
        elif derived.is_final:
            result.gaps.append(f"the decision on {where}, {derived.outcome}, isn't on record")


def _compare(recorded: Decision, derived: Decision, result: Verification) -> None:
    own, now = as_json(recorded), as_json(derived)
    for name in now.keys() - {"time"}:
        if not alike(own[name], now[name]):
            result.differs("decision", f"{derived.a} and {derived.b}, {name}", own[name], now[name])


def check_calibrations(files: RunFiles, result: Verification) -> None:
    """Computes the figures of a judge anew from the labels of people that lie beside the journal."""
    lines = [*files.lines("experiment", "fault", "calibration")]
    last_end = max((number for number, line in lines if not isinstance(line, JudgeCalibration)), default=0)
    for number, line in lines:
        if not isinstance(line, JudgeCalibration):
            continue
        result.trusts("the labels of people")
        if number < last_end:
            result.lacks("figures of a judge's calibration before experiments were worked on again")
            continue
        path = files.folder / "calibrations" / f"{line.digest}.json"
        if not _DIGEST.fullmatch(line.digest) or not path.is_file():
            result.lacks(f"figures of the judge's calibration: the labels {line.digest:.16} aren't with the run")
            continue
        try:
            labels: Mapping[str, Mapping[str, float]] = orjson.loads(read_all(path, _LARGEST))["labels"]
            figures: Any = as_json(JudgedRun(files.folder).calibration(labels, line.digest).arms)
        except (KoderzError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            result.differs("figure", f"the calibration {line.digest}", "labels", f"none that can be read: {error}")
            continue
        for name in {*figures, *line.arms}:
            own, now = as_json(line.arms.get(name)), figures.get(name)
            if not alike(own, now):
                result.differs("figure", f"the calibration of {name}", own, now)
