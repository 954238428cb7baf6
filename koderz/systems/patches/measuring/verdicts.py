"""Conclusions from blocks: speed-ups with intervals, and whether a patch is certainly good enough or not.

A block gives one number: the logarithm of a ratio of times. The estimate is the median over blocks, its interval two of
their order statistics, which holds whatever the distribution. Looks are few and fixed, and each interval so wide that
all looks together are wrong in at most 4 of 100 cases whose truth lies on the threshold, also where blocks resemble
those before, as the machine's other work makes them (scripts/check_perf_rule).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean, median
from typing import Any, Literal

from koderz.errors import Fault
from koderz.types import NEEDS_REVIEW

Word = Literal["opt", "not", "inconclusive"]
Clock = Literal["cpu", "wall"]

LOOKS = (7, 12, 17, 22, 27, 30)  # numbers of blocks after which a verdict may be reached
FASTER = 1.15  # than base, at least; GSO's 1.2, rounded to one decimal
# times as fast as the human's answer: who is surely faster than that is to be read before it is believed
FAR = 2.0
CONFIDENCE = 0.984  # of each interval
STRAY = math.log(1.05)  # the most that base may be off from itself
_MOST_RESEMBLING = 0.9  # autocorrelation of blocks by which intervals are widened, at most
_EQUAL = 1e-9  # spread of values that are the same but for rounding
# of what is saved within the calls, that the whole leg needn't show
_MOVED_SHARE, _MOVED_SECONDS = 0.2, 0.02
# of base's time in calls and between them, by which the latter may grow
_MOVED_CALL, _MOVED_BETWEEN = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of one workload in one leg, in seconds: of the median call and of all calls."""

    cpu: float
    wall: float
    total: float  # CPU, of all calls
    between: float = 0.0  # CPU from the end of the call before; the input is read then
    hidden: float = 0.0  # of `total`, of processes that ended and that nobody waited for
    # the time on its core in all calls but for that in which the core was idle; 0: not known
    busy: float = 0.0
    beside: float = 0.0  # CPU of a call and of what is between calls, in the mean, beyond `cpu`


@dataclass(frozen=True, slots=True)
class Leg:
    """One process with one tree."""

    cpu: float = 0.0  # seconds, from its start to its end
    wall: float = 0.0
    work: Mapping[str, Timing] = field(default_factory=dict)  # by workload
    wrong: str = ""  # why it doesn't count: what was wrong with an output, or how the process ended
    hack: str = ""  # the trick by which it is wrong
    # that a load or the process itself has brought
    figures: Mapping[str, float] = field(default_factory=dict)
    log: str = ""  # of a server that failed


@dataclass(frozen=True, slots=True)
class Block:
    """Legs run one after the other on the same inputs; `base` and `again` are the same tree."""

    legs: Mapping[str, Leg]  # base, again, human, agent, in the order in which they ran


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for a patch that is good enough."""

    threshold: float = 0.95  # share of the human's speed that has to be exceeded
    clock: Clock = "cpu"
    max_blocks: int = 30
    strict: bool = False  # GSO's rule of points decides
    agreement: float = 0.9  # share of a server's answers that has to be base's


@dataclass(frozen=True, slots=True)
class Speedup:
    """A speed-up with its bounds, which are None if there are too few blocks."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The conclusions from an arm's blocks."""

    opt: Word
    # by what the arm is compared with: base, human; aa: base with itself
    speedups: Mapping[str, Speedup]
    hack: str = ""
    points: Mapping[str, bool] = field(default_factory=dict)  # GSO's opt_base and opt_commit
    # of each block's ratio, as in `speedups`
    logs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)  # what a ratio has to reach
    metric: str = ""  # the figure that decided, where it isn't time
    iso: Mapping[str, Any] = field(default_factory=dict)  # ISO-Bench's rule of points
    autocorrelation: float = 0.0  # of blocks, by which intervals are wider
    # by leg: the seconds beside a call that count with it
    beside: Mapping[str, float] = field(default_factory=dict)

    @property
    def strays(self) -> bool:
        """Whether two measurements of the base differ by more than `STRAY` allows."""
        return abs(math.log(self.speedups["aa"].value)) > STRAY


def review_of(finding: Finding) -> str:
    """The reason why a person should read a patch before its result is trusted; empty if there is none.

    The human knew the code and went on until it was worth a commit. What is surely twice as fast as that has found what
    the human missed, or knows what it shouldn't, such as its inputs; by the clock alone the two can't be told apart.
    """
    human = finding.speedups.get("human")
    if finding.hack or human is None or human.low is None or human.low <= FAR:
        return ""
    return f"{NEEDS_REVIEW}: surely more than {FAR:g} times as fast as the human's answer"


def is_noise(finding: Finding, arm: str, count: int) -> bool:
    """Whether base differs too much from itself for a verdict after so many blocks, the last of them."""
    if finding.metric and count < LOOKS[0]:  # fewer --rounds than anything could be decided by
        return False
    return finding.strays and (arm == "baseline" or finding.opt == "inconclusive")


def require_sound(leg: Leg, what: str) -> None:
    """Raises Fault if a leg of the task's own code fails, since the task can't be measured then."""
    if leg.wrong:
        raise Fault(f"base_failed: {what}: {leg.wrong}", cause="base_failed")


def is_look(count: int, max_blocks: int) -> bool:
    """Whether a verdict may be reached after so many blocks."""
    return count in LOOKS or count == max_blocks


@cache
def rank_of(count: int) -> int:
    """The rank, from either end, of the order statistics that hold the median with `CONFIDENCE`; 0 for too few."""
    tail, rank = 0.0, 0
    while True:
        tail += math.comb(count, rank) / 2**count
        if 1 - 2 * tail < CONFIDENCE:
            return rank
        rank += 1


def estimate(logs: Sequence[float], off: float = 0.0, factor: float = 1.0) -> Speedup:
    """The median of logarithms as a ratio, with its `interval` widened by `off` on either side."""
    value, bounds = math.exp(median(logs)), interval(logs, factor)
    if bounds is None:
        return Speedup(value)
    return Speedup(value, math.exp(bounds[0] - off), math.exp(bounds[1] + off))


def interval(values: Sequence[float], factor: float = 1.0) -> tuple[float, float] | None:
    """Two order statistics around the median, moved away from it by `factor`; None for too few values."""
    ordered, rank = sorted(values), rank_of(len(values))
    if not rank:
        return None
    middle = median(ordered)
    return middle - factor * (middle - ordered[rank - 1]), middle + factor * (
        ordered[-rank] - middle
    )


def autocorrelation(series: Iterable[Sequence[float]]) -> float:
    """The highest autocorrelation at lag 1 of any series, from 0 to 0.9.

    Each is corrected for its bias, of which r is too small by (1 + 3 rho) / n in the mean (Kendall, Biometrika 41,
    1954). So few values tell little of it; that the highest counts makes up for that.
    """
    found = [0.0]
    for values in series:
        if (n := len(values)) < LOOKS[0]:
            continue
        middle = fmean(values)
        off = [value - middle for value in values]
        squares = math.fsum(each * each for each in off)
        if math.sqrt(squares / n) > _EQUAL:
            r = math.fsum(map(operator.mul, off, off[1:])) / squares
            found.append((r + 1 / n) / (1 - 3 / n))
    return min(_MOST_RESEMBLING, max(found))


def widening(rho: float) -> float:
    """The widening of an interval of a mean or median at an autocorrelation of rho, decaying as in AR(1).

    sqrt((1 + rho) / (1 - rho)), by the variance of a mean of many values.
    """
    return math.sqrt((1 + rho) / (1 - rho))


def estimates(logs: Mapping[str, Sequence[float]], rho: float) -> dict[str, Speedup]:
    """The estimate of each series; an arm's is widened by base's distance from itself, `aa`."""
    factor, off = widening(rho), abs(median(logs["aa"]))
    return {
        name: estimate(each, 0.0 if name == "aa" else off, factor) for name, each in logs.items()
    }


def found(blocks: Sequence[Block], arm: str, rule: Rule) -> Finding:
    """The finding on the blocks of an arm: `baseline`, `human` or `agent`."""
    logs = {
        "aa": [_geometric(block, _time("base", rule), _time("again", rule)) for block in blocks]
    }
    if arm == "baseline":
        rho = autocorrelation(logs.values())
        finding = Finding("inconclusive", estimates(logs, rho), logs=logs, autocorrelation=rho)
        return replace(finding, opt="not" if finding.strays else "opt")
    beside = {leg: _beside(blocks, leg) for leg in dict.fromkeys(("human", arm))}
    after = _time(arm, rule, beside[arm])
    limits = {"base": FASTER}
    logs["base"] = [_geometric(block, _before(rule), after) for block in blocks]
    if arm == "agent":
        human = _time("human", rule, beside["human"])
        logs["human"] = [_harmonic(block, human, after) for block in blocks]
        limits["human"] = math.nextafter(rule.threshold, math.inf)
    rho = autocorrelation(logs.values())
    speedups = estimates(logs, rho)
    points = _points(blocks, arm, rule, beside)
    word = word_of([(speedups[name], least) for name, least in limits.items()])
    if rule.strict:
        word = "opt" if all(points.values()) else "not"
    moved = _moved(blocks, arm)
    hack = "moved" if moved == "surely" else _hidden(blocks, arm, word, widening(rho))
    if hack or moved:
        points = dict.fromkeys(points, False)
        # What moves its work in most blocks gains nothing by leaving it in some; nor does noise make a cheat.
        word = "not" if hack or word == "not" else "inconclusive"
    seconds = {
        leg: median(sum(more(block, name) for name in block.legs[leg].work) for block in blocks)
        for leg, more in beside.items()
        if more
    }
    return Finding(word, speedups, hack, points, logs, limits, autocorrelation=rho, beside=seconds)


def gain_by_other_clock(
    blocks: Sequence[Block], arm: str, rule: Rule
) -> tuple[Clock, Speedup] | None:
    """The clock that doesn't decide, with its gain over base; None unless it alone is sure of a gain."""
    other: Clock = "wall" if rule.clock == "cpu" else "cpu"
    gain, gain_by_other = (
        found(blocks, arm, replace(rule, clock=clock)).speedups["base"]
        for clock in (rule.clock, other)
    )
    is_alone = (gain.low or 0.0) < FASTER <= (gain_by_other.low or 0.0)
    return (other, gain_by_other) if is_alone else None


def word_of(bounds: Sequence[tuple[Speedup, float]]) -> Word:
    """`opt` if each estimate is certainly at least its bound, `not` if one is certainly below."""
    if all(each.low is not None and each.low >= least for each, least in bounds):
        return "opt"
    if any(each.high is not None and each.high < least for each, least in bounds):
        return "not"
    return "inconclusive"


_Beside = Callable[[Block, str], float]
"""The seconds that a leg takes outside the calls of a workload, beyond base's."""


def _time(arm: str, rule: Rule, beside: _Beside | None = None) -> Callable[[Block, str], float]:
    """A function for the seconds of a call, with the outside time that counts."""

    def of(block: Block, name: str) -> float:
        seconds: float = getattr(block.legs[arm].work[name], rule.clock)
        return seconds + (beside(block, name) if beside else 0.0)

    return of


def _beside(blocks: Sequence[Block], arm: str) -> _Beside | None:
    """The outside time that counts: what the leg certainly takes more than base. None if there is none.

    Either between the median calls, or beyond the median call in the mean, where few calls do the work of many.
    """

    def growth(kind: str, block: Block, name: str, leg: str = arm) -> float:
        seconds: dict[str, float] = {
            each: getattr(block.legs[each].work[name], kind) for each in ("base", "again", leg)
        }
        return seconds[leg] - (
            seconds["base"] if leg == "again" else (seconds["base"] + seconds["again"]) / 2
        )

    def is_sure(kind: str) -> bool:
        grown, off = (
            [
                math.fsum(growth(kind, block, name, leg) for name in block.legs[leg].work)
                for block in blocks
            ]
            for leg in (arm, "again")
        )
        bounds = interval(grown, widening(autocorrelation([grown])))
        return bounds is not None and bounds[0] > abs(median(off))

    if not (kinds := [kind for kind in ("between", "beside") if is_sure(kind)]):
        return None
    return lambda block, name: max(0.0, *(growth(kind, block, name) for kind in kinds))


def _before(rule: Rule) -> Callable[[Block, str], float]:
    """A function for base's time, the mean of both its legs."""
    base, again = _time("base", rule), _time("again", rule)
    return lambda block, name: math.sqrt(base(block, name) * again(block, name))


def _geometric(
    block: Block, before: Callable[[Block, str], float], after: Callable[[Block, str], float]
) -> float:
    """The logarithm of the geometric mean over workloads."""
    return fmean(
        math.log(before(block, name) / after(block, name)) for name in block.legs["base"].work
    )


def _harmonic(
    block: Block, before: Callable[[Block, str], float], after: Callable[[Block, str], float]
) -> float:
    """The logarithm of the harmonic mean over workloads."""
    return -math.log(
        fmean(after(block, name) / before(block, name) for name in block.legs["base"].work)
    )


GAIN_OVER_BASE, SHARE_OF_HUMAN = 1.2, 0.95
"""GSO's rule: the required gain over base, and the share of the human's speed that has to be exceeded."""


def is_faster_than_base(base: float, patch: float, geometric: float) -> bool:
    """GSO's `opt_base`, by mean times and the geometric mean of the tests' speed-ups.

    That mean is rounded to one decimal as GSO does it, by numpy: 1.15 becomes 1.2, and not 1.1 as by Python.
    """
    import numpy as np

    return bool(base > patch and round(np.float64(geometric), 1) >= GAIN_OVER_BASE)


def is_as_fast_as_human(harmonic: float) -> bool:
    """GSO's `opt_commit` of a patch that is faster than base, by the harmonic mean of its speed-ups over the human."""
    return bool(harmonic > SHARE_OF_HUMAN)


def _points(
    blocks: Sequence[Block], arm: str, rule: Rule, beside: Mapping[str, _Beside | None]
) -> dict[str, bool]:
    """GSO's rule, applied to the means over blocks."""
    names = list(blocks[0].legs["base"].work)

    def means(leg: str) -> list[float]:
        time = _time(leg, rule, beside.get(leg))
        return [fmean(time(block, name) for block in blocks) for name in names]

    base, patch = means("base"), means(arm)
    geometric = math.exp(fmean(math.log(a / b) for a, b in zip(base, patch, strict=True)))
    points = {"opt_base": is_faster_than_base(fmean(base), fmean(patch), geometric)}
    if arm == "agent":
        harmonic = 1 / fmean(b / a for a, b in zip(means("human"), patch, strict=True))
        points["opt_commit"] = points["opt_base"] and is_as_fast_as_human(harmonic)
    return points


def _moved(blocks: Sequence[Block], arm: str) -> Literal["", "likely", "surely"]:
    """Whether time saved within calls is spent before them, or elsewhere in the process.

    Surely where it is so of the median and of an interval around it. Too few blocks for one are sure by the median.
    """

    def total(leg: Leg) -> float:
        return sum(timing.total for timing in leg.work.values())

    def call(leg: Leg) -> float:
        return sum(timing.cpu for timing in leg.work.values())

    def between(leg: Leg) -> float:
        return sum(timing.between for timing in leg.work.values())

    bases = [block.legs["base"] for block in blocks]
    least = median(_MOVED_CALL * call(base) + _MOVED_BETWEEN * between(base) for base in bases)
    parts: tuple[tuple[Callable[[Leg], float], Callable[[Leg], float], float], ...] = (
        (total, lambda leg: leg.cpu, _MOVED_SECONDS),
        (call, lambda leg: call(leg) + between(leg), least),
    )
    likely = [each for each in parts if _is_missing(blocks, arm, *each)]
    for each in likely:
        beyond = missing(blocks, arm, *each)
        bounds = interval(beyond, widening(autocorrelation([beyond])))
        if bounds is None or bounds[0] > 0:
            return "surely"
    return "likely" if likely else ""


def _hidden(blocks: Sequence[Block], arm: str, word: Word, factor: float) -> str:
    """`hidden` if processes work that no process clock sees, and the saving isn't real.

    Where the kernel counts them they are part of the time that decides, and a patch that is `opt` all the same hides
    nothing. Elsewhere their core tells: it is as busy as before.
    """

    def total(leg: Leg) -> float:
        return sum(timing.total for timing in leg.work.values())

    def seen(leg: Leg) -> float:
        return sum(timing.total - timing.hidden for timing in leg.work.values())

    def busy(leg: Leg) -> float:
        return sum(timing.busy for timing in leg.work.values())

    is_known = all(
        timing.busy
        for block in blocks
        for leg in block.legs.values()
        for timing in leg.work.values()
    )
    is_counted = word != "opt" and _is_surely_missing(blocks, arm, seen, total, factor)
    return (
        "hidden"
        if is_counted or (is_known and _is_surely_missing(blocks, arm, total, busy, factor))
        else ""
    )


def _saved(block: Block, arm: str, of: Callable[[Leg], float]) -> float:
    """The seconds that an arm takes less than base, the mean of both base legs."""
    return (of(block.legs["base"]) + of(block.legs["again"])) / 2 - of(block.legs[arm])


def _is_surely_missing(
    blocks: Sequence[Block],
    arm: str,
    part: Callable[[Leg], float],
    whole: Callable[[Leg], float],
    factor: float,
) -> bool:
    """Whether too much of the saving in a part of a leg is certainly missing in the whole."""
    bounds = interval(missing(blocks, arm, part, whole, _MOVED_SECONDS), factor)
    return bounds is not None and bounds[0] > 0


def missing(
    blocks: Sequence[Block],
    arm: str,
    part: Callable[[Leg], float],
    whole: Callable[[Leg], float],
    least: float,
) -> list[float]:
    """The seconds of each block that an arm saves in a part of a leg and not in the whole, beyond what is allowed."""

    def of(block: Block) -> float:
        within = _saved(block, arm, part)
        if within <= 0:
            return 0.0
        return within - _saved(block, arm, whole) - max(_MOVED_SHARE * within, least)

    return [*map(of, blocks)]


def _is_missing(
    blocks: Sequence[Block],
    arm: str,
    part: Callable[[Leg], float],
    whole: Callable[[Leg], float],
    least: float,
) -> bool:
    """Whether what an arm saves in a part of a leg isn't saved in the whole, by more than `least` seconds, and by more
    than base is off from itself there.
    """

    within = median(_saved(block, arm, part) for block in blocks)
    missing = median(_saved(block, arm, part) - _saved(block, arm, whole) for block in blocks)
    noise = median(abs(whole(block.legs["base"]) - whole(block.legs["again"])) for block in blocks)
    return missing > max(_MOVED_SHARE * within, least, noise)
