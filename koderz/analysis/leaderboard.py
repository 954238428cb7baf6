"""Many runs in one table: success rates with intervals, and the differences that are more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from koderz.analysis.blocks import Block, Table, Text, as_html
from koderz.analysis.completion import Completion, at_worst, completion_of
from koderz.analysis.inference import is_shown, method_of, p_of
from koderz.analysis.measures import SUCCESS, interval_text, named_average, shown
from koderz.analysis.notes import unread_note
from koderz.analysis.pairs import UNEQUAL, Side, match, unequal_resources
from koderz.analysis.runs import rate_of
from koderz.analysis.statistics import ALPHA, FEWEST_TASKS, holm, p_text
from koderz.errors import KoderzError
from koderz_tracker.breakdown import Mean
from koderz_tracker.records import Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The test of one arm against another; `a` is the better one."""

    a: str
    b: str
    pairs: int  # tasks in common; 0: unpaired
    method: str
    p_value: float
    p_holm: float  # corrected for the number of tests
    significant: bool  # whether p_holm shows a difference, on enough tasks, that no faults could turn
    completion: Completion | None = None  # what faults could make of the difference; None: none is on these tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One arm of one run."""

    side: Side
    mean: Mean  # of the measure, over its results; of success a fraction
    level_with_best: bool  # no test tells it from the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """Arms by one measure, best first."""

    measure: Measure
    standings: Sequence[Standing]
    pairwise: Sequence[Pair] = field(repr=False)
    alpha: float
    notes: Sequence[str]
    unequal_resources: Sequence[str] = ()  # of which arms had different amounts on the same tasks

    def _repr_html_(self) -> str:
        return as_html(leaderboard_blocks(self))


def leaderboard(
    sides: Sequence[Side], alpha: float = ALPHA, measure: Measure = SUCCESS, *, exact: bool = False
) -> Leaderboard:
    """Ranks arms and tests each against each, Holm-corrected. Raises KoderzError where none has results."""
    judged = [(side, mean) for side in sides if (mean := side.mean(measure))]
    if not judged:
        raise KoderzError("none of these runs has results yet")
    sign = -1 if measure.direction == "higher" else 1
    judged.sort(key=lambda each: (sign * each[1].mean, each[0].figures.avg_cost, each[0].label))
    best_first = [side for side, _ in judged]
    pairwise = _pairwise(best_first, alpha, measure, exact=exact)
    behind = {pair.b for pair in pairwise if pair.significant and pair.a == best_first[0].label}
    return Leaderboard(
        measure=measure,
        standings=[Standing(side=side, mean=mean, level_with_best=side.label not in behind) for side, mean in judged],
        pairwise=pairwise,
        alpha=alpha,
        notes=[*_left_out(sides, best_first, measure), *_notes(sides, pairwise)],
        unequal_resources=unequal_resources(best_first),
    )


def _pairwise(sides: Sequence[Side], alpha: float, measure: Measure, *, exact: bool) -> list[Pair]:
    every = ((a, b, match(a, b, measure)) for a, b in combinations(sides, 2))
    found = [(one, p) for one in every if (p := p_of(one[2], exact=exact)) is not None]
    tested, p_values = [one for one, _ in found], [p for _, p in found]
    adjusted = holm(p_values)
    seen = [is_shown(one[2], p, alpha) for one, p in zip(tested, adjusted, strict=True)]
    completions = [completion_of(*one, p, exact=exact) for one, p in found]
    completions = at_worst([*zip(completions, p_values, seen, strict=True)], alpha)
    return [
        Pair(
            a=a.label,
            b=b.label,
            pairs=len(matched.tasks),
            method=method_of(matched, exact=exact),
            p_value=p,
            p_holm=corrected,
            significant=is_seen and not (completion and completion.could_turn),
            completion=completion,
        )
        for (a, b, matched), p, corrected, is_seen, completion in zip(
            tested, p_values, adjusted, seen, completions, strict=True
        )
    ]


def _left_out(sides: Sequence[Side], ranked: Sequence[Side], measure: Measure) -> list[str]:
    without = [side.label for side in sides if side.results and side not in ranked]
    return [f"Left out, since they have no {measure.name}: {', '.join(without)}."] if without else []


def _notes(sides: Sequence[Side], pairwise: Sequence[Pair]) -> list[str]:
    notes = [f"{side.label} has no results." for side in sides if not side.results]
    notes += [f"{side.label} {side.run.progress}." for side in sides if side.run.is_going or side.run.is_cut_short]
    notes += [
        f"{side.label} {side.run.early}; its averages are {asked}."
        for side in sides
        if not (side.run.is_going or side.run.is_cut_short) and (asked := side.run.asked_of(side.arm))
    ]
    notes += [
        f"{side.label} has {side.faults} faults, which count neither way: {side.figures.bounds_text or 'apart'}."
        for side in sides
        if side.faults
    ]
    notes += [
        f"In {side.label} {note}."
        for side in sides
        if (note := side.figures.truncated.note(side.figures.total_problems))
    ]
    if note := unread_note([(side.label, side.figures.unread) for side in sides]):
        notes.append(note)
    if any(side.run.until_decided for side in sides):
        notes.append(
            "Runs that stop once they are decided are tested along their recorded order, by what holds at any stop; "
            "without a task in common, or of a measure without bounds, nothing is claimed of them."
        )
    if any(not pair.pairs for pair in pairwise):
        notes.append("Some have no task in common; those are tested unpaired.")
    elif len(own := {frozenset(side.by_task()) for side in sides if side.results}) > 1:
        common = len(frozenset.intersection(*own))
        notes.append(f"Rates are over each run's own tasks, tests over those in common; {common} are common to all.")
    if any(0 < pair.pairs < FEWEST_TASKS for pair in pairwise):
        notes.append(f"Fewer than {FEWEST_TASKS} tasks in common show nothing.")
    if names := sorted({side.run.generated for side in sides} - {""}):
        notes.append(f"GENERATED data, {', '.join(names)}: these figures don't belong beside published ones.")
    if any(side.simulated for side in sides):
        notes.append("SIMULATED model: these figures say nothing about any real one.")
    return notes


_FIGURES = (
    "total_problems successes success_rate success_rate_interval success_rate_interval_method "
    "success_rate_bounds total_cost avg_cost cost_per_success cost_known avg_iterations avg_latency "
    "pass_at_k pass_hat_k unread tokens_reasoning truncated"
)


def row_of(side: Side) -> Mapping[str, Any]:
    """The figures of a side as JSON."""
    figures, run = side.figures, side.run
    return {
        "run_id": run.run_id,
        "path": str(run.path),
        "model": side.model,
        "mode": run.mode,
        "solver": side.solver,
        "arm": side.arm,
        "status": run.status,
        "simulated": side.simulated,
        **{name: getattr(figures, name) for name in _FIGURES.split()},
        "measures": figures.measures,
        "faults": side.faults,
        "planned": run.planned,
    }


def _against_first(board: Leaderboard, standing: Standing) -> str:
    first, own = board.standings[0].side.label, standing.side.label
    if not any((pair.a, pair.b) == (first, own) for pair in board.pairwise):
        return "no claim"  # of a run that stopped once it was decided
    return "level" if standing.level_with_best else "worse"


def leaderboard_blocks(board: Leaderboard) -> Iterator[Block]:
    """The blocks of a leaderboard: standings, then the tests that tell some of them apart."""
    success = board.measure.name == SUCCESS.name
    head = "Success rate" if success else named_average(board.measure)
    head += f" ({UNEQUAL})" if board.unequal_resources else ""
    yield Table(
        ["", "Run", "Model", "Arm", head, "95% interval", "Avg cost", "Avg iter.", "Verdict"],
        [
            [
                str(rank),
                standing.side.run.name,
                standing.side.model,
                standing.side.arm,
                rate_of(standing.side.figures) if success else shown(standing.mean.mean, board.measure),
                interval_text(standing.mean.interval, board.measure),
                f"${standing.side.figures.avg_cost:.5f}",
                f"{standing.side.figures.avg_iterations:.1f}",
                "" if rank == 1 else _against_first(board, standing),
            ]
            for rank, standing in enumerate(board.standings, start=1)
        ],
        optional=["Avg iter.", "Avg cost", "95% interval", "Model"],
    )
    if any(_against_first(board, standing) == "level" for standing in board.standings[1:]):
        yield Text("level: no significant difference from the first")
    if methods := {standing.mean.interval_method for standing in board.standings if standing.mean.interval_method}:
        yield Text(f"Intervals: {' or '.join(sorted(methods))}.")
    yield Text(
        f"{len(board.pairwise)} test{'s' * (len(board.pairwise) != 1)}, two-sided, Holm-corrected, at {board.alpha:g}:"
    )
    told = [pair for pair in board.pairwise if pair.significant]
    yield from [Text(f"{pair.a} is better than {pair.b}: {p_text(pair.p_holm)} ({pair.method})") for pair in told] or [
        Text("no significant difference")
    ]
    for pair in board.pairwise:
        if pair.completion and pair.completion.could_turn:
            faults = pair.completion.named(pair.a, pair.b)
            yield Text(
                f"no claim that {pair.a} is better than {pair.b} ({p_text(pair.p_holm)}): {faults} could turn it"
            )
    for phrase in board.unequal_resources:
        yield Text(f"Unequal resources: {phrase}")
    for note in board.notes:
        yield Text(f"note: {note}")
