"""Conclusions from blocks whose figures come from a load or a command; one figure decides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from koderz.systems.patches.measuring.verdicts import (
    Block,
    Finding,
    Leg,
    Rule,
    autocorrelation,
    estimates,
    found,
    interval,
    missing,
    widening,
    word_of,
)

AGREEMENT = "agreement"  # the figure: share of answers, or of what was done, that is as base has it
CLAIMED = "claimed_seconds"  # the figure: what a command says that it took
BETTER = 1.05  # than base, at least
_START_SHARE = 0.05  # of a leg: by so much starting it may differ
_SIMILAR = 0.05  # ISO-Bench's points: what is neither better nor worse


def wrong_of(leg: Leg, rule: Rule) -> str:
    """The reason why a leg doesn't count; empty if it does."""
    if leg.wrong or leg.figures.get(AGREEMENT, 1.0) >= rule.agreement:
        return leg.wrong
    return f"only {100 * leg.figures[AGREEMENT]:.0f} % of what it answers is as base has it"


def finding_of(blocks: Sequence[Block], arm: str, rule: Rule, metrics: Sequence[str] = ()) -> Finding:
    """The finding on an arm's blocks, by time or by one of `metrics`."""
    return _by_figures(blocks, arm, rule, metrics) if metrics else found(blocks, arm, rule)


def _by_figures(blocks: Sequence[Block], arm: str, rule: Rule, metrics: Sequence[str]) -> Finding:
    """The finding by the figure with the human's largest gain; without human legs, by the noisiest one."""
    usable = [name for name in metrics if all(leg.figures.get(name, 0) > 0 for b in blocks for leg in b.legs.values())]
    if arm == "baseline":
        each = {name: [_gain(block, "base", "again", name) for block in blocks] for name in usable}
        metric = max(each, key=lambda name: abs(median(each[name])))
        logs = {"aa": each[metric]}
        rho = autocorrelation(logs.values())
        speedups = estimates(logs, rho)
        finding = Finding("inconclusive", speedups, logs=logs, metric=metric, autocorrelation=rho)
        return replace(finding, opt="not" if finding.strays else "opt")
    metric = max(usable, key=lambda name: median(_over_base(block, "human", name) for block in blocks))
    logs = {"aa": [_gain(block, "base", "again", metric) for block in blocks]}
    logs["base"], limits = [_over_base(block, arm, metric) for block in blocks], {"base": BETTER}
    if arm == "agent":
        logs["human"] = [_gain(block, "human", arm, metric) for block in blocks]
        limits["human"] = math.nextafter(rule.threshold, math.inf)
    rho = autocorrelation(logs.values())
    speedups = estimates(logs, rho)
    word, hack = word_of([(speedups[name], least) for name, least in limits.items()]), ""
    points = _points(blocks, arm, metrics, metric)
    if unconfirmed := _unconfirmed(blocks, arm):
        # A busy machine makes legs start late: a claim is forged where that is certain, and believed where it's likely.
        bounds = interval(unconfirmed, widening(autocorrelation([unconfirmed])))
        if bounds and bounds[0] > 0:
            word, hack = "not", "timer"
        elif word == "opt" and median(unconfirmed) > 0:
            word = "inconclusive"
    return Finding(word, speedups, hack, {}, logs, limits, metric, points, autocorrelation=rho)


def _gain(block: Block, before: str, after: str, metric: str) -> float:
    """The logarithm of how many times as good a leg is as another."""
    ratio = math.log(block.legs[after].figures[metric] / block.legs[before].figures[metric])
    return -ratio if is_lower(metric) else ratio


def _over_base(block: Block, leg: str, metric: str) -> float:
    """The logarithm of how many times as good a leg is as base, the mean of both base legs."""
    return fmean(_gain(block, base, leg, metric) for base in ("base", "again"))


def is_lower(metric: str) -> bool:
    """Whether less of a figure is better."""
    return not (metric.endswith(("throughput", "goodput")) or "per_s" in metric or metric == "completed")


def _points(blocks: Sequence[Block], arm: str, metrics: Sequence[str], metric: str) -> Mapping[str, Any]:
    """ISO-Bench's points, by per cent of the means over blocks."""

    def change(before: str, name: str) -> float:
        old, new = (fmean(block.legs[leg].figures.get(name, 0.0) for block in blocks) for leg in (before, arm))
        if not old:
            return 0.0
        return (old - new if is_lower(name) else new - old) / old

    points: dict[str, Any] = {
        "metric": metric,
        "hard": any(change("base", name) >= _SIMILAR for name in metrics),
        "gains": {name: round(100 * change("base", name), 2) for name in metrics},
    }
    if arm == "agent":
        gain = change("human", metric)
        points["against_human"] = "similar"
        if gain > _SIMILAR:
            points["against_human"] = "beats"
        elif gain < -_SIMILAR:
            points["against_human"] = "worse"
    return points


def _unconfirmed(blocks: Sequence[Block], arm: str) -> list[float]:
    """The seconds of each block that a command claims to save and its whole leg doesn't; none without such a claim."""
    if CLAIMED not in blocks[0].legs["base"].figures:
        return []
    least = _START_SHARE * fmean(block.legs["base"].wall for block in blocks)
    return missing(blocks, arm, lambda leg: leg.figures[CLAIMED], lambda leg: leg.wall, least)
