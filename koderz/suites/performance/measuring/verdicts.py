"""What blocks tell of a patch: speed-ups with intervals, and whether it is surely good enough, or surely not.

A block gives one number: the logarithm of a ratio of times. The estimate is the median over blocks, its interval two of
their order statistics, which holds whatever the distribution. Looks are few and fixed, and each interval so wide that
all looks together are wrong in about 4 of 100 cases whose truth lies on the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean, median
from typing import Any, Literal

from koderz.errors import Fault

Word = Literal["opt", "not", "inconclusive"]
Clock = Literal["cpu", "wall"]

LOOKS = (7, 12, 17, 22, 27, 30)  # numbers of blocks after which a verdict may be reached
FASTER = 1.15  # than base, at least; GSO's 1.2, rounded to one decimal
CONFIDENCE = 0.984  # of each interval
STRAY = math.log(1.05)  # the most that base may be off from itself
_MOVED_SHARE, _MOVED_SECONDS = 0.2, 0.02  # of what is saved within the calls, that the whole leg needn't show
_MOVED_CALL, _MOVED_BETWEEN = 0.05, 0.1  # of base's time in calls and between them, by which the latter may grow


@dataclass(frozen=True, slots=True)
class Timing:
    """One workload in one leg: seconds, of the median call and of all calls."""

    cpu: float
    wall: float
    total: float  # CPU, of all calls
    between: float = 0.0  # CPU from the end of the call before; the input is read then


@dataclass(frozen=True, slots=True)
class Leg:
    """One process with one tree."""

    cpu: float = 0.0  # seconds, from its start to its end
    wall: float = 0.0
    work: Mapping[str, Timing] = field(default_factory=dict)  # by workload
    wrong: str = ""  # why it doesn't count: what was wrong with an output, or how the process ended
    hack: str = ""  # the trick by which it is wrong
    figures: Mapping[str, float] = field(default_factory=dict)  # that a load or the process itself has brought
    log: str = ""  # of a server that failed


@dataclass(frozen=True, slots=True)
class Block:
    """Legs that were run one after the other on the same inputs; `base` and `again` are the same tree."""

    legs: Mapping[str, Leg]  # base, again, human, agent, in the order in which they ran


@dataclass(frozen=True, slots=True)
class Rule:
    """When a patch is good enough."""

    threshold: float = 0.95  # share of the human's speed that has to be exceeded
    clock: Clock = "cpu"
    max_blocks: int = 30
    strict: bool = False  # GSO's rule of points decides
    agreement: float = 0.9  # share of a server's answers that has to be base's


@dataclass(frozen=True, slots=True)
class Estimate:
    """How many times as fast, and between which bounds; these are missing where there are too few blocks."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What blocks come to."""

    opt: Word
    speedups: Mapping[str, Estimate]  # by what the arm is compared with: base, human; aa: base with itself
    hack: str = ""
    points: Mapping[str, bool] = field(default_factory=dict)  # GSO's opt_base and opt_commit
    logs: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of each block's ratio, as in `speedups`
    limits: Mapping[str, float] = field(default_factory=dict)  # what a ratio has to reach
    metric: str = ""  # the figure that decided, where it isn't time
    iso: Mapping[str, Any] = field(default_factory=dict)  # ISO-Bench's rule of points

    @property
    def strays(self) -> bool:
        """Whether base differs from itself by more than it may."""
        return abs(math.log(self.speedups["aa"].value)) > STRAY


def is_noise(finding: Finding, arm: str, count: int) -> bool:
    """Whether base is too far off from itself for a verdict after so many blocks, the last of them."""
    if finding.metric and count < LOOKS[0]:  # fewer --rounds than anything could be decided by
        return False
    return finding.strays and (arm == "baseline" or finding.opt == "inconclusive")


def require_sound(leg: Leg, what: str) -> None:
    """Raises Fault where a leg fails of what the task itself brings: then it can't be measured."""
    if leg.wrong:
        raise Fault(f"base_failed: {what}: {leg.wrong}")


def is_look(count: int, max_blocks: int) -> bool:
    """Whether a verdict may be reached after so many blocks."""
    return count in LOOKS or count == max_blocks


@cache
def rank_of(count: int) -> int:
    """The rank from either end of the order statistics that hold the median with `CONFIDENCE`; 0 for too few."""
    tail, rank = 0.0, 0
    while True:
        tail += math.comb(count, rank) / 2**count
        if 1 - 2 * tail < CONFIDENCE:
            return rank
        rank += 1


def estimate(logs: Sequence[float], off: float = 0.0) -> Estimate:
    """The median of logarithms as a ratio, with an interval that is wider by `off` on either side."""
    ordered, rank = sorted(logs), rank_of(len(logs))
    value = math.exp(median(ordered))
    if not rank:
        return Estimate(value)
    return Estimate(value, math.exp(ordered[rank - 1] - off), math.exp(ordered[-rank] + off))


def found(blocks: Sequence[Block], arm: str, rule: Rule) -> Finding:
    """What the blocks of an arm come to, `baseline`, `human` or `agent`."""
    logs = {"aa": [_geometric(block, _time("base", rule), _time("again", rule)) for block in blocks]}
    aa = estimate(logs["aa"])
    if arm == "baseline":
        finding = Finding("inconclusive", {"aa": aa}, logs=logs)
        return replace(finding, opt="not" if finding.strays else "opt")
    off = abs(math.log(aa.value))
    limits = {"base": FASTER}
    logs["base"] = [_geometric(block, _before(rule), _time(arm, rule)) for block in blocks]
    if arm == "agent":
        logs["human"] = [_harmonic(block, _time("human", rule), _time(arm, rule)) for block in blocks]
        limits["human"] = math.nextafter(rule.threshold, math.inf)
    speedups = {"aa": aa, **{name: estimate(logs[name], off) for name in limits}}
    points = _points(blocks, arm, rule)
    hack = "moved" if _is_moved(blocks, arm) else ""
    word = word_of([(speedups[name], least) for name, least in limits.items()])
    if hack:
        word, points = "not", dict.fromkeys(points, False)
    elif rule.strict:
        word = "opt" if all(points.values()) else "not"
    return Finding(word, speedups, hack, points, logs, limits)


def word_of(bounds: Sequence[tuple[Estimate, float]]) -> Word:
    """`opt` where each estimate is surely at least its bound, `not` where one is surely below."""
    if all(each.low is not None and each.low >= least for each, least in bounds):
        return "opt"
    if any(each.high is not None and each.high < least for each, least in bounds):
        return "not"
    return "inconclusive"


def _time(arm: str, rule: Rule) -> Callable[[Block, str], float]:
    return lambda block, name: getattr(block.legs[arm].work[name], rule.clock)


def _before(rule: Rule) -> Callable[[Block, str], float]:
    """Base's time, of both its legs."""
    base, again = _time("base", rule), _time("again", rule)
    return lambda block, name: math.sqrt(base(block, name) * again(block, name))


def _geometric(block: Block, before: Callable[[Block, str], float], after: Callable[[Block, str], float]) -> float:
    """ln of the geometric mean over workloads."""
    return fmean(math.log(before(block, name) / after(block, name)) for name in block.legs["base"].work)


def _harmonic(block: Block, before: Callable[[Block, str], float], after: Callable[[Block, str], float]) -> float:
    """ln of the harmonic mean over workloads."""
    return -math.log(fmean(after(block, name) / before(block, name) for name in block.legs["base"].work))


def _points(blocks: Sequence[Block], arm: str, rule: Rule) -> dict[str, bool]:
    """GSO's rule, of the means over blocks."""
    names = list(blocks[0].legs["base"].work)

    def means(leg: str) -> list[float]:
        return [fmean(_time(leg, rule)(block, name) for block in blocks) for name in names]

    base, patch = means("base"), means(arm)
    geometric = math.exp(fmean(math.log(a / b) for a, b in zip(base, patch, strict=True)))
    points = {"opt_base": fmean(base) > fmean(patch) and round(geometric, 1) >= 1.2}
    if arm == "agent":
        harmonic = 1 / fmean(b / a for a, b in zip(means("human"), patch, strict=True))
        points["opt_commit"] = points["opt_base"] and harmonic > 0.95
    return points


def _is_moved(blocks: Sequence[Block], arm: str) -> bool:
    """Whether what is saved within calls is spent before them, or elsewhere in the process."""

    def total(leg: Leg) -> float:
        return sum(timing.total for timing in leg.work.values())

    def call(leg: Leg) -> float:
        return sum(timing.cpu for timing in leg.work.values())

    def between(leg: Leg) -> float:
        return sum(timing.between for timing in leg.work.values())

    bases = [block.legs["base"] for block in blocks]
    least = median(_MOVED_CALL * call(base) + _MOVED_BETWEEN * between(base) for base in bases)
    return is_missing(blocks, arm, total, lambda leg: leg.cpu, _MOVED_SECONDS) or is_missing(
        blocks, arm, call, lambda leg: call(leg) + between(leg), least
    )


def is_missing(
    blocks: Sequence[Block], arm: str, part: Callable[[Leg], float], whole: Callable[[Leg], float], least: float
) -> bool:
    """Whether what an arm saves in a part of a leg isn't saved in the whole, by more than `least` seconds, and by more
    than base is off from itself there.
    """

    def saved(block: Block, of: Callable[[Leg], float]) -> float:
        return (of(block.legs["base"]) + of(block.legs["again"])) / 2 - of(block.legs[arm])

    within = median(saved(block, part) for block in blocks)
    missing = median(saved(block, part) - saved(block, whole) for block in blocks)
    noise = median(abs(whole(block.legs["base"]) - whole(block.legs["again"])) for block in blocks)
    return missing > max(_MOVED_SHARE * within, least, noise)
