"""A run in a line, read from the needed fields of its summary, or from its journal if it has no summary yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from koderz_tracker.basis import Whole
from koderz_tracker.causes import cause_of
from koderz_tracker.decisions import check_told, stopped_early
from koderz_tracker.measures import PASSING
from koderz_tracker.records import PASSES, Headline, Measure

if TYPE_CHECKING:
    from koderz_tracker.summary import Summary


class Average(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The average that stands for an arm whose headline isn't its success rate."""

    measure: Measure
    mean: float
    interval: tuple[float, float] | None  # 95 %


class ArmRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The figures of one arm."""

    solver: str  # the arm's name
    judged: int
    passed: int
    rate: float | None  # per cent; None where nothing was judged
    interval: tuple[float, float] | None  # 95 %, per cent
    interval_method: str | None
    cost: float  # US dollars
    iterations: float | None  # average
    simulated: bool  # it asks the simulated model
    # of the headline's measure, where that isn't success and the arm has it
    average: Average | None = None
    solved_by: str = ""  # the name of its solver; empty in files that don't say
    # the rate with its faults all failed, all passed; None without faults
    bounds: tuple[float, float] | None = None


class RunRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run."""

    run_id: str
    status: str  # as in the summary, or "running", or "unfinished": begun, and nobody works on it
    mode: str
    model: str
    suite: str
    started: str  # ISO 8601, local
    seconds: float  # of the sessions that worked on it
    planned: int
    faults: int
    cost: float  # US dollars, all that was paid
    cost_known: bool
    simulated: bool
    damaged_lines: int  # of its journal, which are left out
    imported: bool
    tags: tuple[str, ...]
    arms: tuple[ArmRow, ...]
    sinks: Mapping[str, str] = {}  # where each stands: up to date, behind, down or off
    # those of them that lack something of it; koderz sync catches them up
    behind: tuple[str, ...] = ()
    progress: Mapping[str, int] = {}  # per cent of the run that those have
    headline: Headline = PASSING  # what its arms are summed up by
    fault_causes: Mapping[str, int] = {}  # the number of faults by cause, the commonest first
    stopped_early: str = ""  # what was decided, of a run that stopped then

    @property
    def rate(self) -> float:
        """The success rate in per cent of the last arm, the iterative one of a comparative run; -1 if there is none."""
        if self.headline.measure != PASSES:
            return -1.0
        rate = self.arms[-1].rate if self.arms else None
        return -1.0 if rate is None else rate


class _Config(msgspec.Struct):
    local_model: str | None = None
    models: tuple[str, ...] = ()  # where several answer
    suite: str = "humaneval"
    tags: tuple[str, ...] = ()
    imported: bool | str = False  # the kind of samples, or the tool whose log it is


class _Mean(msgspec.Struct):
    mean: float
    interval: tuple[float, float] | None = None


class _Figures(msgspec.Struct):
    total_problems: Whole
    success_rate: float | None = None
    successes: Whole | None = None
    success_rate_interval: tuple[float, float] | None = None
    success_rate_interval_method: str | None = None
    success_rate_bounds: tuple[float, float] | None = None
    total_cost: float = 0.0
    avg_iterations: float | None = None
    cost_known: bool = True
    measures: dict[str, _Mean] = {}


class _Result(msgspec.Struct):
    solver: str = ""


class _ArmRow(msgspec.Struct):
    summary: _Figures
    results: list[_Result] = []
    simulated: bool | None = None  # None: as the run


class _PaidCosts(msgspec.Struct):
    total: float = 0.0


class _Fault(msgspec.Struct):
    reason: str = ""
    cause: str = ""


class _Head(msgspec.Struct):
    """The fields of a summary that a line needs; other fields are skipped unread."""

    run_id: str
    mode: str
    start_time: str = ""
    duration_seconds: float = 0.0
    status: str = "complete"  # as files without it were
    planned: Whole | None = None
    config: _Config = msgspec.field(default_factory=_Config)
    summary: _Figures | None = None
    zero_shot: _ArmRow | None = None
    iterative: _ArmRow | None = None
    arms: dict[str, _ArmRow] = {}
    faults: list[_Fault] = []
    paid: _PaidCosts | None = None
    simulated: bool = False
    generated: str = ""
    damaged_lines: Whole = 0
    measures: list[Measure] = []
    headline: Headline = PASSING
    decision: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_told(self.decision)


_HEAD = msgspec.json.Decoder(_Head)


def row_of_summary(data: bytes, sinks: Mapping[str, str]) -> RunRow:
    """The row of a summary file. Raises msgspec.DecodeError or UnicodeDecodeError for any other file."""
    return _row(_HEAD.decode(data), sinks)


def row_of_log(summary: Summary, name: str) -> RunRow:
    """The row of another tool's log, which goes by the name of its file."""
    started = summary.start_time
    with suppress(ValueError):  # of what is no time
        started = datetime.fromisoformat(started).astimezone().replace(tzinfo=None).isoformat()
    named = replace(summary, run_id=name, start_time=started)
    return _row(msgspec.convert(named, _Head, from_attributes=True), {})


def row_of_journal(journal: Path, sinks: Mapping[str, str]) -> RunRow:
    """The row of an unfinished run, from its journal. Raises JournalError if that is damaged."""
    from koderz_tracker.summary import summarize

    return _row(msgspec.convert(summarize(journal.parent), _Head, from_attributes=True), sinks)


def _row(head: _Head, sinks: Mapping[str, str]) -> RunRow:
    figures = _figures(head)
    marked = {name: arm.simulated for name, arm in head.arms.items() if arm.simulated is not None}
    solvers = {name: arm.results[0].solver for name, arm in head.arms.items() if arm.results}
    arms = tuple(
        structs.replace(
            _arm(name, found, marked.get(name, head.simulated), _average(head, found)),
            solved_by=solvers.get(name, ""),
        )
        for name, found in figures
    )
    planned = sum(arm.judged for arm in arms) if head.planned is None else head.planned
    asked = sum(arm.judged for arm in arms) + len(head.faults)
    return RunRow(
        run_id=head.run_id,
        status=head.status,
        mode=head.mode,
        model=", ".join(head.config.models) or head.config.local_model or "",
        suite=head.generated or head.config.suite,
        started=head.start_time,
        seconds=head.duration_seconds,
        planned=planned,
        faults=len(head.faults),
        cost=head.paid.total if head.paid else sum(arm.cost for arm in arms),
        cost_known=all(found.cost_known for _, found in figures),
        simulated=head.simulated,
        damaged_lines=head.damaged_lines,
        imported=bool(head.config.imported),
        tags=head.config.tags,
        arms=arms,
        sinks=sinks,
        headline=head.headline,
        stopped_early=stopped_early(head.decision, went_on=asked >= planned),
        fault_causes=dict(
            Counter(each.cause or cause_of(each.reason) for each in head.faults).most_common()
        ),
        behind=tuple(name for name, state in sinks.items() if state in ("behind", "down")),
    )


def _figures(head: _Head) -> list[tuple[str, _Figures]]:
    if head.arms:
        return [(name, arm.summary) for name, arm in head.arms.items()]
    if head.summary is not None:
        return [(head.mode, head.summary)]
    both = (("zero-shot", head.zero_shot), ("iterative", head.iterative))
    found = [(name, arm.summary) for name, arm in both if arm is not None]
    if not found:
        raise msgspec.ValidationError("it has neither summary nor zero_shot and iterative nor arms")
    return found


def _arm(solver: str, found: _Figures, simulated: bool, average: Average | None) -> ArmRow:
    n, bounds = found.total_problems, found.success_rate_bounds
    if not n:
        return ArmRow(
            solver, 0, 0, None, None, None, found.total_cost, None, simulated, bounds=bounds
        )
    passed = (
        round((found.success_rate or 0.0) * n / 100) if found.successes is None else found.successes
    )
    interval, method = found.success_rate_interval, found.success_rate_interval_method
    if interval is None and method is None:
        from koderz_tracker.rates import WILSON, wilson  # few files are so old

        low, high = wilson(passed, n)
        interval, method = (100 * low, 100 * high), WILSON
    rate, iterations = 100 * passed / n, found.avg_iterations
    return ArmRow(
        solver,
        n,
        passed,
        rate,
        interval,
        method,
        found.total_cost,
        iterations,
        simulated,
        average,
        bounds=bounds,
    )


def _average(head: _Head, found: _Figures) -> Average | None:
    """The average of the headline measure, if that isn't success."""
    named = head.headline.measure
    mean = found.measures.get(named)
    measure = next((each for each in head.measures if each.name == named), None)
    return Average(measure, mean.mean, mean.interval) if mean and measure else None
