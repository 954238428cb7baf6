"""Many runs in one table: success rates with intervals that hold together, sets of ranks, tiers, and differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from koderz.analysis.blocks import Block, Table, Text, as_html
from koderz.analysis.completion import Completion, at_worst, completion_of
from koderz.analysis.inference import flips_of, is_shown, means_of, method_of, p_of
from koderz.analysis.measures import SUCCESS, interval_text, named_average, shown
from koderz.analysis.notes import unread_note
from koderz.analysis.pairs import UNEQUAL, Matched, Side, match, shared_replies, unequal_resources
from koderz.analysis.runs import rate_of
from koderz.analysis.statistics import ALPHA, FEWEST_TASKS, holm, mid_p, p_text
from koderz.errors import KoderzError
from koderz_tracker.breakdown import Mean
from koderz_tracker.records import Measure
from koderz_tracker.results import untold


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The test of one arm against another; `a` is the better one on what is compared."""

    a: str
    b: str
    pairs: int  # tasks in common; 0: unpaired
    method: str
    p_value: float
    # tasks that only A passes; None of other measures, and where nothing is paired
    a_only: float | None
    b_only: float | None
    # McNemar's mid-p, uncorrected, as published tables have it; None where it doesn't apply
    p_mid: float | None
    p_holm: float  # corrected for the number of tests
    # whether p_holm shows a difference, on enough tasks, that no faults could turn
    significant: bool
    # what faults could make of the difference; None: none is on these tasks
    completion: Completion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One arm of one run."""

    side: Side
    mean: Mean  # of the measure, over its results; of success a fraction
    level_with_best: bool  # no test tells it from the first
    # the same mean with an interval that holds together with those of all other standings
    together: Mean
    # the first and the last that it may have; those of all standings hold together
    ranks: tuple[int, int]
    tier: int  # from 1; each arm of a later tier is shown to be worse than one of the tier before


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
    """Ranks arms and tests each against each, Holm-corrected.

    Raises KoderzError where none has results, or where one of a model's is made of replies of another of the same arm.
    """
    judged = [(side, mean) for side in sides if (mean := side.mean(measure))]
    for a, b in combinations([side for side, _ in judged], 2):
        if (a.model, a.arm) == (b.model, b.arm) and (shared := sum(shared_replies(a, b).values())):
            replies = f"{shared} {'replies' if shared > 1 else 'reply'}"
            raise KoderzError(
                f"{a.label} and {b.label} share {replies}, which a leaderboard would count twice; name one of them"
            )
    together = {side: side.mean(measure, together=len(judged)) for side, _ in judged}
    if not judged:
        raise KoderzError("none of these runs has results yet")
    sign = -1 if measure.direction == "higher" else 1
    judged.sort(key=lambda each: (sign * each[1].mean, each[0].figures.avg_cost, each[0].label))
    best_first = [side for side, _ in judged]
    pairwise = _pairwise(best_first, alpha, measure, exact=exact)
    shown = {(pair.a, pair.b) for pair in pairwise if pair.significant}
    ranks = rank_sets([side.label for side in best_first], shown)
    tiers = tiers_of([side.label for side in best_first], shown)
    without = [side.label for side in sides if side.results and side not in best_first]
    left_out = (
        [f"Left out, since they have no {measure.name}: {', '.join(without)}."] if without else []
    )
    return Leaderboard(
        measure=measure,
        standings=[
            Standing(
                side=side,
                mean=mean,
                level_with_best=(best_first[0].label, side.label) not in shown,
                together=together[side] or mean,
                ranks=ranks[side.label],
                tier=tiers[side.label],
            )
            for side, mean in judged
        ],
        pairwise=pairwise,
        alpha=alpha,
        notes=[*left_out, *_notes(sides, pairwise)],
        unequal_resources=unequal_resources(best_first),
    )


def rank_sets(
    names: Sequence[str], shown: Collection[tuple[str, str]]
) -> dict[str, tuple[int, int]]:
    """The first and the last rank that each may have, from the pairs of a better and a worse one that are shown.

    If no false pair is among these, which Holm's procedure promises, all sets hold the true ranks. Source: M. Mogstad,
    J. P. Romano, A. M. Shaikh & D. Wilhelm, "Inference for ranks with applications to mobility across neighbourhoods
    and academic achievement across countries", Rev. Econ. Stud. 91 (2024), 476-518, section 3.
    """
    better, worse = Counter(b for _, b in shown), Counter(a for a, _ in shown)
    return {name: (1 + better[name], len(names) - worse[name]) for name in names}


def tiers_of(names: Sequence[str], shown: Collection[tuple[str, str]]) -> dict[str, int]:
    """The tier of each, from 1: those that none is shown to be better than, then those of what is left, and so on."""
    found: dict[str, int] = {}
    while left := [name for name in names if name not in found]:
        behind = {b for a, b in shown if a in left and b in left}
        # Tests on unlike tasks may go round in a circle, which is one tier.
        first = [name for name in left if name not in behind] or left
        found |= dict.fromkeys(first, max(found.values(), default=0) + 1)
    return found


def _pairwise(sides: Sequence[Side], alpha: float, measure: Measure, *, exact: bool) -> list[Pair]:
    found = []
    for a, b in combinations(sides, 2):
        matched = match(a, b, measure)
        p, means = p_of(matched, exact=exact), means_of(matched)
        if p is not None and means is not None:
            # On the tasks in common the one with the lower average on its own tasks may be the better one.
            is_turned = (
                means[1] > means[0] if measure.direction == "higher" else means[1] < means[0]
            )
            found.append(((b, a, matched) if is_turned else (a, b, matched), p))
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
            **_flips_of(matched),
            p_holm=corrected,
            significant=is_seen and not (completion and completion.could_turn),
            completion=completion,
        )
        for (a, b, matched), p, corrected, is_seen, completion in zip(
            tested, p_values, adjusted, seen, completions, strict=True
        )
    ]


def _flips_of(matched: Matched) -> dict[str, float | None]:
    """The tasks that one side alone passes, and McNemar's mid-p of them.

    Source: M. W. Fagerland, S. Lydersen & P. Laake, "The McNemar test for binary matched-pairs data: mid-p and
    asymptotic are better than exact conditional", BMC Medical Research Methodology 13 (2013), 91.
    """
    if matched.measure.name != SUCCESS.name or matched.kind != "single":
        return {"a_only": None, "b_only": None, "p_mid": None}
    a_only, b_only = flips_of(*matched.means())
    return {"a_only": a_only, "b_only": b_only, "p_mid": mid_p(a_only, b_only)}


def _notes(sides: Sequence[Side], pairwise: Sequence[Pair]) -> list[str]:
    notes = [f"{side.label} has no results." for side in sides if not side.results]
    notes += [
        f"{side.label} {side.run.progress}."
        for side in sides
        if side.run.is_going or side.run.is_cut_short
    ]
    notes += [
        f"{side.label} {side.run.early}; its averages are {asked}."
        for side in sides
        if not (side.run.is_going or side.run.is_cut_short)
        and (asked := side.run.asked_of(side.arm))
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
        notes.append(
            f"Rates are over each run's own tasks, tests over those in common; {common} are common to all."
        )
    if any(0 < pair.pairs < FEWEST_TASKS for pair in pairwise):
        notes.append(f"Fewer than {FEWEST_TASKS} tasks in common show nothing.")
    if names := sorted({side.run.generated for side in sides} - {""}):
        notes.append(
            f"GENERATED data, {', '.join(names)}: these figures don't belong beside published ones."
        )
    if any(side.simulated for side in sides):
        notes.append("SIMULATED model: these figures say nothing about any real one.")
    return notes


_FIGURES = (
    "total_problems successes success_rate success_rate_interval success_rate_interval_method "
    "success_rate_bounds total_cost avg_cost cost_per_success cost_known avg_iterations avg_latency "
    "pass_at_k pass_hat_k unread tokens_reasoning truncated reused_calls saved_cost"
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


def _ranks_text(ranks: tuple[int, int]) -> str:
    return str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]} to {ranks[1]}"


def _against_first(board: Leaderboard, standing: Standing) -> str:
    first, own = board.standings[0].side.label, standing.side.label
    if not any({pair.a, pair.b} == {first, own} for pair in board.pairwise):
        return "no claim"  # of a run that stopped once it was decided
    return "level" if standing.level_with_best else "worse"


def standings_table(board: Leaderboard) -> Table:
    """The standings, best first. A narrow terminal does without their runs where models and arms tell them apart."""
    success = board.measure.name == SUCCESS.name
    head = "Success rate" if success else named_average(board.measure)
    head += f" ({UNEQUAL})" if board.unequal_resources else ""
    named = {(standing.side.model, standing.side.arm) for standing in board.standings}
    return Table(
        [
            *(f"Rank of {len(board.standings)}", "Tier", "Model", "Arm"),
            *(head, "95% interval", "Avg cost", "Avg iter.", "Verdict", "Run"),
        ],
        [
            [
                _ranks_text(standing.ranks),
                str(standing.tier),
                standing.side.model,
                standing.side.arm,
                rate_of(standing.side.figures)
                if success
                else shown(standing.mean.mean, board.measure),
                interval_text(standing.together.interval, board.measure),
                ""
                if "cost" in untold(standing.side.results)
                else f"${standing.side.figures.avg_cost:.5f}",
                "" if (tries := standing.side.figures.avg_iterations) is None else f"{tries:.1f}",
                "" if standing is board.standings[0] else _against_first(board, standing),
                standing.side.run.name,
            ]
            for standing in board.standings
        ],
        optional=[
            "Avg iter.",
            "Avg cost",
            *["Run"] * (len(named) == len(board.standings)),
            "95% interval",
            "Tier",
        ],
    )


def leaderboard_blocks(board: Leaderboard) -> Iterator[Block]:
    """The blocks of a leaderboard: standings, then the tests that tell some of them apart."""
    yield standings_table(board)
    if any(_against_first(board, standing) == "level" for standing in board.standings[1:]):
        yield Text("level: no significant difference from the first")
    count = len(board.standings)
    if count > 1:
        yield Text(
            "Ranks and tiers follow from the differences that are shown, and all hold together with "
            f"{1 - board.alpha:.0%}. Within a tier rows stand by their averages, which shows no difference."
        )
    if methods := {
        one.together.interval_method for one in board.standings if one.together.interval_method
    }:
        every = (
            f"; each of {100 - 5 / count:.4g}%, so that all {count} hold with 95%"
            if count > 1
            else ""
        )
        yield Text(f"Intervals: {' or '.join(sorted(methods))}{every}.")
    yield Text(
        f"{len(board.pairwise)} test{'s' * (len(board.pairwise) != 1)}, two-sided, Holm-corrected, at {board.alpha:g}:"
    )
    told = [pair for pair in board.pairwise if pair.significant]
    yield from [
        Text(f"{pair.a} is better than {pair.b}: {p_text(pair.p_holm)} ({pair.method})")
        for pair in told
    ] or [Text("no significant difference")]
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
