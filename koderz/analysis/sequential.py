"""Comparisons that hold at any stop: of runs that stopped once decided, and of complete runs as if they had."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

from koderz.analysis.blocks import Block, Text
from koderz.analysis.intervals import Interval
from koderz.analysis.pairs import Matched, Side, match
from koderz.errors import KoderzError
from koderz_tracker.breakdown import bounds_of
from koderz_tracker.outline import Told, each_of, stopped_early, went_on
from koderz_tracker.rates import SHARE
from koderz_tracker.records import PASSES, Measure
from koderz_tracker.results import members, method_in
from koderz_tracker.sequential import EVIDENCE, SEQUENCE, ConfidenceSequence, weights_of
from koderz_tracker.stopping import OpenDecision, StoppingRule, path_of

if TYPE_CHECKING:
    from koderz_tracker.summary import Summary


_WHY = {
    "futile": "what is left would show a difference with a chance below 5 %, so it stopped",
    "money": "the cost cap is reached",
    "tasks": "no task is left",
}


def decision_lines(summary: Summary) -> Iterator[str]:
    """Each decision of a run as a sentence, what it rests on, and what was spent and saved."""
    found = each_of(summary.decision)
    several = len(found) > 1
    if found and not several:
        yield f"A: {found[0]['a']}; B: {found[0]['b']}"
    for each in found:
        yield sentence(each, lower_is_better=_is_lower_better(summary, each), named=several)
        left_out = each.get("left_out") or {}
        if left_out:
            names = ", ".join(
                f"{count} since {arm} could not be judged" for arm, count in left_out.items()
            )
            yield f"Left out after a retry: {names}."
        if each.get("interval_bounds"):
            yield "The interval holds whatever they would have been."
            if each["outcome"] != "shown" and each["e_value"] >= 1 / each["alpha"]:
                yield "Without them a difference would be shown; they could turn it."
        if not each.get("holds", True):
            yield "If all pairs left out spoke against it, the difference would not be shown."
    if stopped_early(summary.decision) and went_on(summary):
        yield "It was decided there; the rest was run afterwards."
    elif found:
        cap = summary.config.get("max_cost")
        spent = summary.paid.get("total", 0.0)
        of = f" of {_dollars(cap)}" if cap is not None else ""
        saved = sum(each["cost_saved"] for each in found)
        if not spent and cap is None:
            # A pair that was left out was asked for, and saves nothing.
            left = sum(
                each["planned"] - each["tasks"] - sum((each.get("left_out") or {}).values())
                for each in found
            )
            money = f"{left} tasks saved, which cost nothing" if left > 0 else "nothing saved"
        else:
            money = f"{_dollars(spent)}{of} spent, about {_dollars(saved)} saved"
        yield f"{'Stopped there' if stopped_early(summary.decision) else 'Ended there'}: {money}."


def sentence(decision: Told, *, lower_is_better: bool = False, named: bool = False) -> str:
    """The decision as one sentence. Without `named` the arms are called A and B."""
    a, b = (decision["a"], decision["b"]) if named else ("A", "B")
    on = f"on {decision['tasks']} of {decision['planned']} tasks"
    if decision["interval"] is None or decision["difference"] is None:
        return f"Not shown: no task is counted of {decision['planned']}, and {_WHY.get(decision['outcome'], '')}."
    low, high = _interval(decision)
    sure = f"{100 * (1 - decision['alpha']):.4g} %, valid at any stop"
    unit = "points" if decision["measure"] == PASSES else f"in {decision['measure']}"
    means = f"{_mean(decision, 'b_mean')} against {_mean(decision, 'a_mean')}"
    if decision["outcome"] == "shown":
        b_wins = _is_higher(decision) != lower_is_better
        best, other, rates = (
            (b, a, means) if b_wins else (a, b, " against ".join(means.split(" against ")[::-1]))
        )
        rates = rates if decision["measure"] != PASSES else f"{rates} %"
        ends = sorted((abs(low), abs(high)))
        return f"{best} beats {other} by {_number(ends[0])} to {_number(ends[1])} {unit} ({sure}): {rates} {on}."
    between = f"{b} − {a} is between {_signed(low)} and {_signed(high)} {unit} ({sure}), {on}"
    if decision["outcome"] == "similar":
        return f"Similar within {_number(decision['margin'])} {unit}: {between}."
    return f"Not shown: {between}; {_WHY[decision['outcome']]}."


def regressions(summary: Summary) -> list[str]:
    """The arms that are shown to be worse than the one they were compared with."""
    return [
        each["b"]
        for each in each_of(summary.decision)
        if each["outcome"] == "shown" and _is_higher(each) == _is_lower_better(summary, each)
    ]


def _interval(decision: Told) -> Interval:
    """The interval of a decision, whatever the pairs left out would have been."""
    low, high = decision.get("interval_bounds") or decision["interval"]
    return low, high


def _is_higher(decision: Told) -> bool:
    """Whether B is higher, in a decision that shows a difference: its interval is on one side of 0."""
    return sum(_interval(decision)) > 0


def _is_lower_better(summary: Summary, decision: Told) -> bool:
    return any(
        each.name == decision["measure"] and each.direction == "lower" for each in summary.measures
    )


def _dollars(value: float) -> str:
    return f"${value:.2f}" if value >= 0.1 or not value else f"${value:.4f}"


def _mean(decision: Told, side: str) -> str:
    return _number(decision[side]) if decision["measure"] == PASSES else f"{decision[side]:.4g}"


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 0.05 else f"{value:.2g}"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '−'}{_number(abs(value))}"


def why_none(matched: Matched) -> str:
    """The reason for having no evidence between two sides; empty if there is some."""
    if not matched.paired:
        return "none: a run stopped once it was decided, and there is no task in common"
    bounds = _bounds(matched.measure)
    if bounds is None:
        return "none: a run stopped once it was decided, and a measure without bounds has none that holds then"
    if _is_outside(matched, bounds):
        return f"none: a run stopped once it was decided, and a {matched.measure.name} lies outside of its bounds"
    return "" if _kept(matched) else "none: no task in common lies in the settled part of the order"


def _is_outside(matched: Matched, bounds: Interval) -> bool:
    """Whether a value on the tasks in common lies outside of the measure's bounds."""
    every = (
        value for side in (matched.a, matched.b) for task in matched.tasks for value in side[task]
    )
    return not all(bounds[0] <= value <= bounds[1] for value in every)


def method_of(matched: Matched) -> str:
    """The name of the evidence between two sides, or why there is none."""
    return why_none(matched) or method_in(f"{EVIDENCE}, paired by task", matched.cluster_count)


def interval_method_of(matched: Matched) -> str:
    """The name of the confidence sequence of the difference, or why there is none."""
    return why_none(matched) or method_in(f"{SEQUENCE}, paired by task", matched.cluster_count)


def p_of(matched: Matched) -> float | None:
    """The p-value that A and B are alike: 1 over the largest e-value so far, at most 1. None without evidence."""
    return None if why_none(matched) else _along(*_differences(matched), 0.05).p_value


def interval_of(matched: Matched, alpha: float) -> Interval | None:
    """The intersection of the intervals of the difference so far, in the measure's unit. None without evidence."""
    bounds = _bounds(matched.measure)
    if bounds is None or why_none(matched):
        return None
    found, scale = _along(*_differences(matched), alpha), bounds[1] - bounds[0]
    return scale * found.low, scale * found.high


@lru_cache(maxsize=256)
def _along(
    differences: tuple[float, ...], weights: tuple[float, ...], alpha: float
) -> ConfidenceSequence:
    return ConfidenceSequence(alpha, differences, weights)


def _bounds(measure: Measure) -> Interval | None:
    return SHARE if measure.name == PASSES or measure.two_valued else bounds_of(measure)


def _differences(matched: Matched) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """B less A in the order of the tasks, between -1 and 1: one a task, or one a cluster of them; and their weights."""
    low, high = _bounds(matched.measure) or (0.0, 1.0)
    kept = _kept(matched)
    found = {
        task: (fmean(matched.b[task]) - fmean(matched.a[task])) / (high - low) for task in kept
    }
    units = members(kept, matched.clusters)
    means = (fmean(found[task] for task in unit) for unit in units)
    # rounding apart it is within
    limited = tuple(max(-1.0, min(1.0, difference)) for difference in means)
    return limited, tuple(weights_of(units, matched.order or ()))


def _kept(matched: Matched) -> list[str]:
    """The tasks in common within the settled part of the order."""
    return [task for task in matched.order or () if task in matched.a and task in matched.b]


def as_if_stopped(
    a: Side, b: Side, measure: Measure, alpha: float, seed: int = 0
) -> dict[str, Any]:
    """The decision on two complete arms as if they had been asked task by task: where, and what it would have saved.

    In the order that one of the runs has on record, else in one shuffled by `seed`. Raises KoderzError for runs that
    aren't complete, that share no task, and for a measure without bounds.
    """
    for run in (a.run, b.run):
        if run.is_going or run.is_cut_short:
            raise KoderzError(f"--sequential looks at complete runs, and {run.name} {run.progress}")
        if run.early and not went_on(run):
            raise KoderzError(
                f"--sequential looks at complete runs, and {run.name} {run.early}; compare it without"
            )
    matched = match(a, b, measure)
    bounds = _bounds(measure)
    if bounds is None:
        raise KoderzError(
            f"--sequential: {measure.name} has no bounds, and a decision at any stop needs some"
        )
    for side, values in ((a, matched.a), (b, matched.b)):
        if not values:
            raise KoderzError(f"--sequential: {side.label} has no result with a {measure.name}")
    if matched.order is not None:
        tasks = matched.order
    else:
        groups = members(sorted(matched.tasks), matched.clusters)
        random.Random(seed).shuffle(groups)  # noqa: S311 repeatable on purpose
        tasks = [task for group in groups for task in group]
    units = members(
        [task for task in tasks if task in matched.a and task in matched.b], matched.clusters
    )
    if not units:
        raise KoderzError(f"--sequential: {a.label} and {b.label} have no task in common")
    if _is_outside(matched, bounds):
        raise KoderzError(
            f"--sequential: a {measure.name} lies outside of its bounds, {bounds[0]:g} to {bounds[1]:g}"
        )
    rule = StoppingRule(len(units), alpha, seed=seed)
    deciding, counted, outcome = OpenDecision(rule), list[str](), None
    for unit, weight in zip(units, weights_of(units, tasks), strict=True):
        counted += unit
        differences = [
            (fmean(matched.b[task]) - fmean(matched.a[task])) / (bounds[1] - bounds[0])
            for task in unit
        ]
        if outcome := deciding.add(fmean(differences), weight=weight):
            break
    told = _told(a, b, matched, deciding, counted, outcome or "tasks", bounds)
    return {**told, "order": "shuffled" if matched.order is None else "recorded", "seed": seed}


def _told(
    a: Side,
    b: Side,
    matched: Matched,
    deciding: OpenDecision,
    counted: Sequence[str],
    outcome: str,
    bounds: Interval,
) -> dict[str, Any]:
    evidence, alpha = deciding.evidence, deciding.rule.alpha
    is_rate = matched.measure.name == PASSES
    scale, of_means = (100.0, 100.0) if is_rate else (bounds[1] - bounds[0], 1.0)
    low, high = evidence.interval(alpha)
    costs = [_cost(side, counted) for side in (a, b)]
    every = [_cost(side, matched.tasks) for side in (a, b)]
    return {
        "outcome": outcome,
        "a": a.label,
        "b": b.label,
        "tasks": len(counted),
        "planned": len(matched.tasks),
        "a_mean": of_means * fmean(fmean(matched.a[task]) for task in counted),
        "b_mean": of_means * fmean(fmean(matched.b[task]) for task in counted),
        "difference": scale * evidence.mean,
        "interval": (scale * low, scale * high),
        "interval_method": SEQUENCE,
        "e_value": evidence.e_value,
        "alpha": alpha,
        "margin": None,
        "measure": matched.measure.name,
        "cost": math.fsum(costs),
        "cost_saved": math.fsum(every) - math.fsum(costs),
        "path": [
            (p.tasks, p.e_value, scale * p.low, scale * p.high)
            for p in path_of(deciding.values, alpha, deciding.weights)
        ],
    }


def told_blocks(decision: Mapping[str, Any], measure: Measure) -> Iterator[Block]:
    """The blocks of a decision on complete runs."""
    yield Text(f"A (baseline)  {decision['a']}")
    yield Text(f"B (candidate) {decision['b']}")
    yield Text(sentence(decision, lower_is_better=measure.direction == "lower"))
    left = decision["planned"] - decision["tasks"]
    saved = f" and ${decision['cost_saved']:.4f}" if decision["cost_saved"] else ""
    ordered = (
        "in the order on record"
        if decision["order"] == "recorded"
        else f"shuffled by seed {decision['seed']}"
    )
    end = (
        f"stopped there, and saved {left} of {decision['planned']} tasks{saved}"
        if left
        else "gone to the end"
    )
    yield Text(f"Asked task by task, {ordered}, it would have {end}.")


def title_of(decision: Mapping[str, Any]) -> str:
    """The decision in a few words."""
    return f"{decision['outcome']} after {decision['tasks']} of {decision['planned']} tasks"


def _cost(side: Side, tasks: Sequence[str]) -> float:
    by_task = side.by_task()
    return math.fsum(result.cost for task in tasks for result in by_task.get(task, ()))
