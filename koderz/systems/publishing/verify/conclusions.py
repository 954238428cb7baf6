"""Computes again what follows from a run's outcomes: its decisions, its judge's calibration, and its summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.plans.plan import Plan
from koderz.runs.deciding import Decider
from koderz.systems.publishing.labels import JudgedRun
from koderz.systems.publishing.verify.files import RunFiles
from koderz.systems.publishing.verify.findings import Verification, as_json
from koderz.systems.publishing.verify.redo import alike
from koderz_tracker.files import MB, open_own, read_all
from koderz_tracker.records import (
    Decision,
    Experiment,
    Fault,
    Finished,
    JudgeCalibration,
    Record,
    Resumed,
)
from koderz_tracker.sinks.json import encode_summary
from koderz_tracker.summary import Summary, summarize

_DIGEST = re.compile(r"[0-9a-f]{1,64}")
_LARGEST_LABELS = 256 * MB


def check_decisions(files: RunFiles, plan: Plan | None, result: Verification) -> None:
    """Follows the outcomes in their recorded order, and compares each decision with the one that they lead to."""
    recorded = [
        line for _, line in files.lines("experiment", "fault", "decision", "resumed", "finished")
    ]
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
    last_end = max(
        (number for number, line in lines if not isinstance(line, JudgeCalibration)), default=0
    )
    for number, line in lines:
        if not isinstance(line, JudgeCalibration):
            continue
        result.trusts("the labels of people")
        if number < last_end:
            result.lacks("figures of a judge's calibration before experiments were worked on again")
            continue
        path = files.folder / "calibrations" / f"{line.digest}.json"
        if not _DIGEST.fullmatch(line.digest) or not path.is_file():
            result.lacks(
                f"figures of the judge's calibration: the labels {line.digest:.16} aren't with the run"
            )
            continue
        try:
            labels: Mapping[str, Mapping[str, float]] = orjson.loads(
                read_all(path, _LARGEST_LABELS)
            )["labels"]
            figures: Any = as_json(JudgedRun(files.folder).calibration(labels, line.digest).arms)
        except (KoderzError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            result.differs(
                "figure",
                f"the calibration {line.digest}",
                "labels",
                f"none that can be read: {error}",
            )
            continue
        for name in {*figures, *line.arms}:
            own, now = as_json(line.arms.get(name)), figures.get(name)
            if not alike(own, now):
                result.differs("figure", f"the calibration of {name}", own, now)


_LARGEST_SUMMARY = 2 << 30
_ALWAYS = frozenset(
    {
        "run_id",
        "mode",
        "start_time",
        "end_time",
        "config",
        "planned",
        "faults",
        "status",
        "simulated",
    }
)
"""Keys that summaries of all versions have, as far as they were written since these were added."""


def check_summary(folder: Path, path: Path | None, result: Verification) -> None:
    """Computes the summary of the run in `folder` anew, and compares the file at `path` with it."""
    summary = summarize(folder)
    arms = {name: replace(arm, results=[]) for name, arm in summary.arms.items()}
    result.figures = sum(
        1 for _ in _numbers(_document(replace(summary, arms=arms, config={}, environment={})))
    )
    if path is None:
        result.note("it has no summary beside it, so only the journal was verified")
        result.figures = 0
        return
    if _is_same(path, summary):
        return
    try:
        with open_own(path) as file:
            recorded = orjson.loads(read_all(file, _LARGEST_SUMMARY, str(path)))
    except (OSError, orjson.JSONDecodeError) as error:
        raise KoderzError(f"{path} can't be read as a summary: {error}") from None
    derived = _document(summary)
    if not isinstance(recorded, dict):
        result.differs("figure", path.name, type(recorded).__name__, "an object")
        return
    version = str(summary.environment.get("koderz", ""))
    if version != __version__ and (newer := derived.keys() - recorded.keys() - _ALWAYS):
        result.note(
            f"written by koderz {version}, whose summaries have no {', '.join(sorted(newer))}"
        )
        derived = {name: value for name, value in derived.items() if name not in newer}
    for where, before, now in _differences("", recorded, derived):
        result.differs("figure", where, before, now)


def _is_same(path: Path, summary: Summary) -> bool:
    """Whether the file holds just these bytes; it is read in pieces, since it may be large."""
    try:
        with open_own(path) as file:
            return all(
                file.read(len(piece)) == piece for piece in encode_summary(summary)
            ) and not file.read(1)
    except OSError as error:
        raise KoderzError(f"{path} can't be read ({error.strerror})") from None


def _document(summary: Summary) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(b"".join(encode_summary(summary)))
    return document


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _differences(where: str, recorded: Any, derived: Any) -> Iterator[tuple[str, Any, Any]]:
    """The paths at which two JSON values differ, with both values there."""
    if isinstance(recorded, dict) and isinstance(derived, dict):
        for name in dict.fromkeys([*derived, *recorded]):
            path = f"{where}.{name}" if where else name
            if name not in recorded or name not in derived:
                yield path, recorded.get(name, "missing"), derived.get(name, "missing")
            else:
                yield from _differences(path, recorded[name], derived[name])
    elif isinstance(recorded, list) and isinstance(derived, list) and len(recorded) == len(derived):
        for number, pair in enumerate(zip(recorded, derived, strict=True)):
            yield from _differences(f"{where}[{number}]", *pair)
    elif recorded != derived:
        yield where, recorded, derived
