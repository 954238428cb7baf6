"""Decisions of runs that stop once their arms are told apart, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from koderz_tracker.decisions import Told, each_of, stopped_early, went_on
from koderz_tracker.records import PASSES

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
        yield from _caveats(each)
    if stopped_early(summary.decision) and went_on(summary):
        yield "It was decided there; the rest was run afterwards."
    elif found:
        yield f"{'Stopped there' if stopped_early(summary.decision) else 'Ended there'}: {_money(summary, found)}."


def sentence(decision: Told, *, lower_is_better: bool = False, named: bool = False) -> str:
    """The decision as one sentence. Without `named` the arms are called A and B."""
    a, b = (decision["a"], decision["b"]) if named else ("A", "B")
    on = f"on {decision['tasks']} of {decision['planned']} tasks"
    if decision["interval"] is None or decision["difference"] is None:
        return f"Not shown: no task is counted of {decision['planned']}, and {_WHY.get(decision['outcome'], '')}."
    low, high = decision["interval"]
    sure = f"{100 * (1 - decision['alpha']):.4g} %, valid at any stop"
    unit = "points" if decision["measure"] == PASSES else f"in {decision['measure']}"
    means = f"{_mean(decision, 'b_mean')} against {_mean(decision, 'a_mean')}"
    if decision["outcome"] == "shown":
        b_wins = (decision["difference"] > 0) != lower_is_better
        best, other, rates = (b, a, means) if b_wins else (a, b, " against ".join(means.split(" against ")[::-1]))
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
        if each["outcome"] == "shown" and (each["difference"] < 0) != _is_lower_better(summary, each)
    ]


def _is_lower_better(summary: Summary, decision: Told) -> bool:
    return any(each.name == decision["measure"] and each.direction == "lower" for each in summary.measures)


def _caveats(decision: Told) -> Iterator[str]:
    left_out = decision.get("left_out") or {}
    if left_out:
        names = ", ".join(f"{count} since {arm} could not be judged" for arm, count in left_out.items())
        yield f"Left out after a retry: {names}."
    if not decision.get("holds", True):
        yield "If all pairs left out spoke against it, the difference would not be shown."


def _money(summary: Summary, found: Sequence[Told]) -> str:
    cap = summary.config.get("max_cost")
    spent = summary.paid.get("total", 0.0)
    of = f" of {_dollars(cap)}" if cap is not None else ""
    saved = sum(each["cost_saved"] for each in found)
    if not spent and cap is None:
        left = sum(each["planned"] - each["tasks"] for each in found)
        return f"{left} tasks saved, which cost nothing" if left else "nothing saved"
    return f"{_dollars(spent)}{of} spent, about {_dollars(saved)} saved"


def _dollars(value: float) -> str:
    return f"${value:.2f}" if value >= 0.1 or not value else f"${value:.4f}"


def _mean(decision: Told, side: str) -> str:
    return _number(decision[side]) if decision["measure"] == PASSES else f"{decision[side]:.4g}"


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 0.05 else f"{value:.2g}"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '−'}{_number(abs(value))}"
