"""Reads and checks a summary file; an error is one sentence that says where it is and what to do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec.structs import asdict, replace

from koderz.errors import KoderzError
from koderz.types import SIMULATED
from koderz_tracker.basis import PASSING, UntilDecided, Whole, check_settings
from koderz_tracker.breakdown import Slice
from koderz_tracker.errors import cause_of
from koderz_tracker.files import MB, open_own, read_all
from koderz_tracker.journal import NAME
from koderz_tracker.outline import check_told
from koderz_tracker.records import SCHEMA_VERSION, Headline, Measure
from koderz_tracker.results import UNSAID, Result
from koderz_tracker.sequential import SettledOrder, settled_order
from koderz_tracker.summary import USUAL, ArmResults, Summary, compare_modes, figures, missing_of

_TOLERANCE = 0.06  # points: older files round their rates


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claims:
    """The figures that a file states for its results."""

    total_problems: Whole | None = None
    successes: Whole | None = None
    success_rate: float | None = None
    baseline_cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    results: list[Result]
    summary: _Claims = _Claims()
    baseline: str = ""
    simulated: bool | None = None  # None: as the run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """The arms of a comparative run; their comparison is computed from their results."""

    arms: tuple[str, str] = USUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A summary file. Fields that older files lack have defaults."""

    run_id: str | None = None
    mode: str | None = None
    start_time: str = ""
    end_time: str = ""
    duration_seconds: float = 0.0
    status: str = "complete"
    reason: str = ""
    planned: Whole | None = None
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    simulated: bool | None = None
    answered_by: dict[str, dict[str, Whole]] = field(default_factory=dict)
    throttled: dict[str, Whole] = field(default_factory=dict)
    unknown_ends: dict[str, Whole] = field(default_factory=dict)
    generated: str = ""
    rewarded_in: list[str] = field(default_factory=list)
    judge: dict[str, Any] = field(default_factory=dict)  # whatever a suite's `judge_record` holds
    damaged_lines: Whole = 0
    faults: list[dict[str, Any]] = field(default_factory=list)
    paid: dict[str, float] = field(default_factory=dict)
    measures: list[Measure] = field(default_factory=list)
    headline: Headline = PASSING
    until_decided: UntilDecided | None = None
    decision: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)
    calibration: dict[str, dict[str, Any]] = field(default_factory=dict)
    comparison: _Compared = _Compared()
    breakdown: list[Slice] = field(default_factory=list)
    results: list[Result] | None = None
    summary: _Claims = _Claims()
    zero_shot: _Arm | None = None
    iterative: _Arm | None = None
    arms: dict[str, _Arm] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The one key of a judge that koderz itself reads; the others are the suite's own, of any type.
        msgspec.convert(self.judge.get("caveats", []), list[str])
        check_settings(self.config)
        check_told(self.decision)
        for judged in self.calibration.values():
            msgspec.convert(judged.get("labelled", []), list[list[tuple[float, float]]])

    def arms_of(self, path: Path) -> dict[str, ArmResults]:
        """The arms by name. Raises KoderzError if an arm's figures contradict its results."""
        found = dict(self.arms)
        if self.zero_shot:
            found["zero-shot"] = self.zero_shot
        if self.iterative:
            found["iterative"] = self.iterative
        if self.results is not None:
            solver = next((row.solver for row in self.results if row.solver), None)
            only = next(iter(self.arms), None) if len(self.arms) == 1 else None
            name = only or solver or self.mode or "iterative"
            simulated = found[name].simulated if name in found else None
            found[name] = _Arm(results=self.results, summary=self.summary, simulated=simulated)
        if not found:
            raise _foreign(path)
        model = str(self.config.get("local_model") or "unknown")
        return {name: _checked(path, name, arm, model, self) for name, arm in found.items()}

    def order_of(self, arm: str, results: Sequence[Result]) -> SettledOrder | None:
        """The settled tasks of an arm, in the order of a run that stops once it is decided; None for other runs."""
        if self.until_decided is None:
            return None
        faulted = (
            str(each.get("problem_id")) for each in self.faults if each.get("arm", arm) == arm
        )
        return settled_order(self.until_decided, arm, results, faulted)


_TAKEN = {item.name for item in fields(_File)} & {item.name for item in fields(Summary)} - {
    "arms",
    "comparison",
}


def read_summary(path: Path) -> Summary:
    """The summary in a file. Raises KoderzError if it is unreadable, damaged, foreign or of a newer version."""
    try:
        with open_own(path) as opened:
            data = read_all(opened, 1024 * MB, str(path))
    except OSError as error:
        raise KoderzError(
            f"{path} can't be read ({error.strerror}); give a run's id or its summary file"
        ) from None
    return parse_summary(data, path)


def parse_summary(data: bytes, path: Path) -> Summary:
    """The summary in `data`, which came from `path`. Raises KoderzError as `read_summary` does."""
    version = _version(path, data)
    if version > SCHEMA_VERSION:
        raise KoderzError(
            f"{path} was written by a newer koderz (schema {version}; this one reads up to {SCHEMA_VERSION}); "
            "upgrade koderz to read it"
        )
    try:
        file = msgspec.json.decode(data, type=_File)
        # an integer beyond 64 bits could be shown and not exported
        orjson.dumps(file, default=_fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise KoderzError(f"{path} was edited or is damaged: {error}; {_remedy(path)}") from None
    return _summary(file, path)


def summary_of_document(document: Mapping[str, Any], path: Path) -> Summary:
    """The summary of an object with the keys of a summary file. Raises KoderzError where one has no such value."""
    try:
        file = msgspec.convert(document, _File)
        orjson.dumps(file, default=_fields)
    except (msgspec.ValidationError, TypeError) as error:
        raise KoderzError(f"{path} holds what no result can be: {error}") from None
    return _summary(file, path)


def _summary(file: _File, path: Path) -> Summary:
    arms = file.arms_of(path)
    values = {name: getattr(file, name) for name in _TAKEN}
    judged = sum(len(arm.results) for arm in arms.values())
    values["mode"] = file.mode or ("comparative" if len(arms) > 1 else next(iter(arms)))
    values["planned"] = judged + len(file.faults) if file.planned is None else file.planned
    values["faults"] = [
        {**fault, "cause": fault.get("cause") or cause_of(str(fault.get("reason")))}
        for fault in file.faults
    ]
    if file.simulated is None:
        values["simulated"] = file.config.get("local_model") == SIMULATED
    if file.calibration:  # the only part that others than its owner read
        values["parts"] = {"calibration": file.calibration}
    return Summary(**values, arms=arms, comparison=compare_modes(arms, file.comparison.arms))


def _version(path: Path, data: bytes) -> int:
    try:
        top = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        version = (
            msgspec.json.decode(top["schema_version"], type=int)
            if "schema_version" in top
            else SCHEMA_VERSION
        )
    except msgspec.ValidationError:
        raise _foreign(path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "is empty" if not data.strip() else f"is truncated or no JSON ({error})"
        raise KoderzError(f"{path} {what}; {_remedy(path)}") from None
    if not top.keys() & {"results", "zero_shot", "iterative", "arms"}:
        raise _foreign(path)
    return version


def _fields(value: Any) -> Any:
    return None if value is msgspec.UNSET else asdict(value)


def _foreign(path: Path) -> KoderzError:
    return KoderzError(
        f"{path} is no summary of a run: it holds no results; give a bench_….json that koderz wrote"
    )


def _remedy(path: Path) -> str:
    """Advice on a bad file: if its journal exists, it can be written anew."""
    folder = path.with_suffix("")
    if (folder / NAME).exists():
        return f"write it again from its journal: koderz benchmark resume {folder.name}"
    return "get it again from where it came"


def _checked(path: Path, name: str, arm: _Arm, model: str, file: _File) -> ArmResults:
    results = list(_results(name, arm.results, model))
    (twin, times), *_ = Counter((r.problem_id, r.sample) for r in results).most_common(1) or [
        (("", 0), 0)
    ]
    if times > 1:
        raise KoderzError(
            f"{path} was edited: {twin[0]} (sample {twin[1]}) is in its results {times} times; {_remedy(path)}"
        )
    baseline = arm.summary.baseline_cost
    missing = missing_of(file.faults, name)
    own = figures(results, baseline, file.measures, file.order_of(name, results), len(missing))
    found = ArmResults(results, own, arm.baseline, simulated=arm.simulated)
    claimed = arm.summary
    for figure, says, is_ in (
        ("total_problems", claimed.total_problems, len(results)),
        ("successes", claimed.successes, found.summary.successes),
        ("success_rate", claimed.success_rate, found.summary.success_rate or 0.0),
    ):
        if says is not None and not math.isclose(says, is_, rel_tol=0.0, abs_tol=_TOLERANCE):
            raise KoderzError(
                f"{path} was edited: {name} says {figure} {says:g}, its results come to {is_:g}; {_remedy(path)}"
            )
    return found


def _results(arm: str, rows: Sequence[Result], model: str) -> Iterator[Result]:
    """The rows, completed for older files. Rows of one task without samples are its samples in order."""
    seen: Counter[str] = Counter()
    for row in rows:
        usual = {
            "solver": arm,
            "arm": arm,
            "model": model,
            "sample": seen[row.problem_id],
            "verdict": "passed" if row.success else "failed",
            "tokens": row.tokens_in + row.tokens_out,
            "calls": row.iterations,
        }
        seen[row.problem_id] += 1
        yield replace(
            row,
            **{name: value for name, value in usual.items() if getattr(row, name) in ("", UNSAID)},
        )
