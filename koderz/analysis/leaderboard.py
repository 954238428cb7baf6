"""Many runs in one table: by success rate, with intervals, and which of the differences are more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from koderz.analysis.inference import METHODS, is_shown, p_of
from koderz.analysis.intervals import Interval
from koderz.analysis.pairs import Side, match
from koderz.analysis.statistics import ALPHA, FEWEST_TASKS, holm
from koderz.errors import KoderzError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The test of one arm against another."""

    a: str
    b: str
    pairs: int  # tasks in common; 0: unpaired
    method: str
    p_value: float
    p_holm: float  # corrected for the number of tests
    significant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One arm of one run. Rates are per cent, costs US dollars."""

    side: Side
    success_rate: float
    interval: Interval | None  # 95 %
    level_with_best: bool  # no test tells it from the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """Best first."""

    standings: Sequence[Standing]
    pairwise: Sequence[Pair] = field(repr=False)
    alpha: float
    notes: Sequence[str]

    def _repr_html_(self) -> str:
        from koderz.analysis.blocks import as_html
        from koderz.analysis.comparison_view import leaderboard_blocks

        return as_html(leaderboard_blocks(self))


def leaderboard(sides: Sequence[Side], alpha: float = ALPHA) -> Leaderboard:
    """Ranks arms and tests each against each, Holm-corrected. Raises KoderzError where none has results."""
    judged = [side for side in sides if side.results]
    if not judged:
        raise KoderzError("none of these runs has results yet")
    best_first = sorted(judged, key=lambda side: (-side.figures.rate, side.figures.avg_cost, side.label))
    pairwise = _pairwise(best_first, alpha)
    behind = {pair.b for pair in pairwise if pair.significant and pair.a == best_first[0].label}
    return Leaderboard(
        standings=[
            Standing(
                side=side,
                success_rate=side.figures.rate,
                interval=side.figures.success_rate_interval,
                level_with_best=side.label not in behind,
            )
            for side in best_first
        ],
        pairwise=pairwise,
        alpha=alpha,
        notes=_notes(sides, pairwise),
    )


def _pairwise(sides: Sequence[Side], alpha: float) -> list[Pair]:
    tested = [(a, b, match(a, b)) for a, b in combinations(sides, 2)]
    p_values = [p for _, _, matched in tested if (p := p_of(matched)) is not None]
    return [
        Pair(
            a=a.label,
            b=b.label,
            pairs=len(matched.tasks),
            method=METHODS[matched.kind],
            p_value=p,
            p_holm=corrected,
            significant=is_shown(matched, corrected, alpha),
        )
        for (a, b, matched), p, corrected in zip(tested, p_values, holm(p_values), strict=True)
    ]


def _notes(sides: Sequence[Side], pairwise: Sequence[Pair]) -> list[str]:
    notes = [f"{side.label} has no results." for side in sides if not side.results]
    notes += [f"{side.label} {side.run.progress}." for side in sides if side.run.is_going or side.run.is_cut_short]
    notes += [f"{side.label} has {side.faults} faults; they count neither way." for side in sides if side.faults]
    if any(not pair.pairs for pair in pairwise):
        notes.append("Some have no task in common; those are tested unpaired.")
    elif len(own := {frozenset(side.by_task()) for side in sides if side.results}) > 1:
        common = len(frozenset.intersection(*own))
        notes.append(f"Rates are over each run's own tasks, tests over those in common; {common} are common to all.")
    if any(0 < pair.pairs < FEWEST_TASKS for pair in pairwise):
        notes.append(f"Fewer than {FEWEST_TASKS} tasks in common show nothing.")
    if any(side.run.simulated for side in sides):
        notes.append("SIMULATED model: these figures say nothing about any real one.")
    return notes


def row_of(side: Side) -> Mapping[str, Any]:
    """What a side comes to, for JSON."""
    figures, run = side.figures, side.run
    return {
        "run_id": run.run_id,
        "path": str(run.path),
        "model": side.model,
        "mode": run.mode,
        "solver": side.arm,
        "status": run.status,
        "simulated": run.simulated,
        "total_problems": figures.total_problems,
        "successes": figures.successes,
        "success_rate": figures.success_rate,
        "success_rate_interval": figures.success_rate_interval,
        "success_rate_interval_method": figures.success_rate_interval_method,
        "total_cost": figures.total_cost,
        "avg_cost": figures.avg_cost,
        "cost_per_success": figures.cost_per_success,
        "cost_known": figures.cost_known,
        "avg_iterations": figures.avg_iterations,
        "avg_latency": figures.avg_latency,
        "faults": side.faults,
        "planned": run.planned,
    }
