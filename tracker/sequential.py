"""Evidence about a mean that may be looked at after every value, and the confidence sequence that belongs to it.

The values lie between -1 and 1, one for each task (or cluster of tasks), in an order that was drawn before they were
known. The evidence against a mean m is the wealth of fixed bets: E(m) is the average over bets s of the product of
1 + b w (D - m), with b = s / (1 + m) for s above 0 and b = s / (1 - m) below, so that no factor is below 0. The weight
w is 1 for a task, and for a cluster its number of tasks over that of the largest one planned: with the mean of the
cluster as D, w D is its sum over the largest size, and m is the mean over tasks, not over clusters. If the mean
is m, E(m) is a non-negative martingale that begins at 1, and ever reaches 1 / alpha with a probability of at most alpha
(J. Ville, 1939). The bets are uniform on (-1, 1): with one sample a task, E(0) is 2^n B(1 + a, 1 + b), n = a + b, of
the tasks that only A and only B passed, which is McNemar's conditional test made sequential.

Sources: I. Waudby-Smith & A. Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 86 (2024), 1-27;
of the mixture of bets: T. Cover, "Universal portfolios", Math. Finance 1 (1991), 1-29; F. Orabona & K.-S. Jun, "Tight
concentrations and confidence sequences from the regret of universal portfolio", IEEE Trans. Inf. Theory 70 (2024).

Runs that stop once they are decided have such intervals, along the recorded order of tasks. One for a number of tasks
that was fixed beforehand is wrong where the tasks decided on their number, also of a run that went on to its end, since
it went on because of what was seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import repeat
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from koderz_tracker.basis import UntilDecided
from koderz_tracker.rates import SHARE, Interval, pass_hat_k
from koderz_tracker.records import Fault, Plan
from koderz_tracker.results import ChanceEstimate, Clusters, Result, count_of, members, method_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


SEQUENCE = "betting confidence sequence, valid at any stop"
EVIDENCE = "e-value of fixed bets, valid at any stop"
# Gauss-Legendre nodes on each side of 0: exact up to 127 tasks that part, and near enough far beyond
_NODES = 64
_CLOSE = 1e-13
_STEPS = 100


class EvidencePoint(NamedTuple):
    """The evidence after a number of values."""

    tasks: int
    e_value: float  # against a mean of 0
    low: float
    high: float


class Evidence:
    """The evidence of the values added so far."""

    def __init__(
        self, values: Iterable[float] = (), weights: Iterable[float] | None = None
    ) -> None:
        """`weights`: as many as there are values; by default all are 1."""
        self._counts: dict[tuple[float, float], int] = {}  # by value and weight
        self._at_zero: float | None = 0.0
        self.total = 0
        self._sum = self._weight = 0.0
        for value, weight in zip(values, weights or repeat(1.0)):  # noqa: B905 one is endless
            self.add(value, weight=weight)

    def add(self, value: float, count: int = 1, *, weight: float = 1.0) -> None:
        """Adds a value so many times. ValueError if it isn't between -1 and 1, or its weight not above 0 and to 1."""
        if not -1 <= value <= 1:
            raise ValueError(f"{value!r} is not between -1 and 1")
        if not 0 < weight <= 1:
            raise ValueError(f"the weight {weight!r} is not above 0 and at most 1")
        key = value, weight
        self._counts[key] = self._counts.get(key, 0) + count
        self.total += count
        self._weight += weight * count
        self._sum += weight * value * count
        if value and count:
            self._at_zero = None

    def copy(self) -> Evidence:
        """The same evidence, to add to."""
        found = Evidence()
        for (value, weight), count in self._counts.items():
            found.add(value, count, weight=weight)
        return found

    @property
    def parted(self) -> tuple[float, float]:
        """The tasks that only A and only B passed, or as many as have the first two moments of the weighted values."""
        square = sum(
            count * (weight * value) ** 2 for (value, weight), count in self._counts.items()
        )
        return max(0.0, (square - self._sum) / 2), max(0.0, (square + self._sum) / 2)

    @property
    def mean(self) -> float:
        """The weighted mean of the values; 0 if there are none."""
        return self._sum / self._weight if self.total else 0.0

    @property
    def e_value(self) -> float:
        """The evidence against a mean of 0."""
        return as_e_value(self.log_e())

    def log_e(self, mean: float = 0.0) -> float:
        """The logarithm of the evidence against a mean, which lies between -1 and 1."""
        if mean or self._at_zero is None:
            height = self._wealth(mean)
            if mean:
                return height
            self._at_zero = height
        return self._at_zero

    def excludes(self, mean: float, alpha: float) -> bool:
        """Whether a mean has evidence of 1 / alpha or more against it."""
        return self.log_e(mean) >= -math.log(alpha)

    def log_half(self, mean: float, *, upper: bool) -> float:
        """The logarithm of the wealth of half of the bets, at its weight: those that win where the mean lies higher.

        Or lower, with `upper`: it is the half against means above. It only grows as values rise (fall), which the
        evidence doesn't, so that it bounds the evidence of any values that are at least (at most) these.
        """
        return _joined(self._bets_on(mean)[0][_half(upper=upper)])[0]

    def interval(self, alpha: float) -> Interval:
        """All means with evidence below 1 / alpha against them."""
        return self.limit(alpha, upper=False), self.limit(alpha, upper=True)

    def limit(self, alpha: float, *, upper: bool, by_half: bool = False) -> float:
        """One end of the interval. The evidence is log-convex in the mean and at most 1 at that of the values.

        `by_half`: the end by the evidence of `log_half` alone.
        """
        goal = -math.log(alpha)
        inside, outside = self.mean, (1.0 if upper else -1.0)
        if not self.total or abs(inside - outside) < _CLOSE:
            return outside
        at = (inside + outside) / 2
        # Newton's method within a bracket: `inside` has less evidence against it than the goal, `outside` as much or
        # more. A step that would leave the bracket gives way to its middle.
        for _ in range(_STEPS):
            height, slope = self._wealth_and_slope(
                at, _half(upper=upper) if by_half else slice(None)
            )
            inside, outside = (at, outside) if height < goal else (inside, at)
            step = at - (height - goal) / slope if slope else math.inf
            following = (
                step
                if min(inside, outside) < step < max(inside, outside)
                else (inside + outside) / 2
            )
            if abs(following - at) < _CLOSE:
                break
            at = following
        return outside

    def _wealth(self, mean: float) -> float:
        """The logarithm of the evidence against a mean."""
        return _joined(self._bets_on(mean)[0])[0]

    def _wealth_and_slope(self, mean: float, which: slice) -> tuple[float, float]:
        """The logarithm of the evidence of some of the bets against a mean, and its slope there."""
        import numpy as np

        logs, factors, counts = self._bets_on(mean)
        height, shares = _joined(logs[which])
        stay = 1 - np.multiply.outer(bets()[0], [weight for _, weight in self._counts])
        # of the factor 1 - s w + s w (1 + D) / (1 + m), and likewise on the other side
        slopes = [
            sign * (1 - stay / factor) @ counts / (1 - sign * mean)
            for sign, factor in zip((-1, 1), factors, strict=True)
        ]
        return height, float(shares @ np.concatenate(slopes)[which] / shares.sum())

    def _bets_on(
        self, mean: float
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], NDArray[Any]], NDArray[Any]]:
        """The logarithms of all bets' weighted wealth against a mean, their factors for each value, and its counts."""
        import numpy as np

        stakes, log_weights = bets()
        values, weights = np.array([*self._counts], float).reshape(-1, 2).T
        counts = np.fromiter(self._counts.values(), float, len(self._counts))
        # What a bet multiplies its wealth by for each value: bets that win where values lie above the mean, and below.
        up = 1 + np.multiply.outer(stakes, weights * (values - mean) / (1 + mean))
        down = 1 - np.multiply.outer(stakes, weights * (values - mean) / (1 - mean))
        return (
            log_weights + np.concatenate((np.log(up) @ counts, np.log(down) @ counts)),
            (up, down),
            counts,
        )


class _Wealth:
    """The wealth of all bets against one mean, which takes each value once."""

    def __init__(self, mean: float, logs: NDArray[Any]) -> None:
        import numpy as np

        stakes, _ = bets()
        self._mean, self._logs = mean, logs
        self._signed = np.concatenate((stakes / (1 + mean), -stakes / (1 - mean)))

    def add(self, value: float, count: int, weight: float) -> float:
        """Takes in a value so many times; returns the logarithm of the evidence since."""
        import numpy as np

        self._logs = self._logs + count * np.log1p(self._signed * (weight * (value - self._mean)))
        return _joined(self._logs)[0]


class ConfidenceSequence(Evidence):
    """Evidence that remembers the largest e-value so far, and the intersection of the intervals so far."""

    def __init__(
        self, alpha: float, values: Iterable[float] = (), weights: Iterable[float] | None = None
    ) -> None:
        self.alpha = alpha
        self.low, self.high = -1.0, 1.0
        self._largest = 0.0
        self._at: dict[float, _Wealth] = {}  # against no difference, and against both ends
        super().__init__(values, weights)

    def add(self, value: float, count: int = 1, *, weight: float = 1.0) -> None:
        if not self._at:
            self._at[0.0] = _Wealth(0.0, bets()[1])
        super().add(value, count, weight=weight)
        goal = -math.log(self.alpha)
        found = {mean: each.add(value, count, weight) for mean, each in self._at.items()}
        self._largest = max(self._largest, found[0.0])
        # An end of the running intersection moves only once the evidence against it reaches 1 / alpha, so that few
        # values cost a search for a new end.
        if self.mean > self.low and found.get(self.low, goal) >= goal:
            self.low = min(max(self.low, self.limit(self.alpha, upper=False)), self.high)
        if self.mean < self.high and found.get(self.high, goal) >= goal:
            self.high = max(min(self.high, self.limit(self.alpha, upper=True)), self.low)
        for mean in {self.low, self.high} - {*self._at, -1.0, 1.0}:
            self._at[mean] = _Wealth(mean, self._bets_on(mean)[0])
        for mean in {*self._at} - {0.0, self.low, self.high}:
            del self._at[mean]

    @property
    def p_value(self) -> float:
        """The p-value that the mean is 0, valid at any stop: 1 over the largest e-value so far, at most 1."""
        return math.exp(-self._largest)


def as_e_value(log: float) -> float:
    """The e-value with this logarithm, as far as a float goes."""
    return math.exp(min(log, 700.0))


def sequence(
    values: Sequence[float],
    bounds: Interval = (0.0, 1.0),
    alpha: float = 0.05,
    weights: Sequence[float] | None = None,
) -> Interval | None:
    """The confidence sequence of a mean, at its end: values between bounds, one a task, in their drawn order.

    `weights`: of the means of clusters, as `Evidence` has them. None for no values, and for values outside of the
    bounds.
    """
    low, high = bounds
    if not values or not all(low <= value <= high for value in values):
        return None
    running = ConfidenceSequence(
        alpha, (2 * (value - low) / (high - low) - 1 for value in values), weights
    )
    half = (high - low) / 2
    return low + half * (1 + running.low), low + half * (1 + running.high)


def _joined(logs: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """The logarithm of the sum of exponentials, and these, relative to the largest."""
    import numpy as np

    largest = float(logs.max())
    shares = np.exp(logs - largest)
    return largest + math.log(float(shares.sum())), shares


def _half(*, upper: bool) -> slice:
    """Of all bets, those against means above, or against means below."""
    return slice(_NODES, None) if upper else slice(_NODES)


@cache
def bets() -> tuple[NDArray[Any], NDArray[Any]]:
    """The stakes of the bets, between 0 and 1, and the logarithms of the weights of both signs' bets."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (1 + nodes) / 2, np.tile(np.log(weights / weights.sum() / 2), 2)


UNBOUNDED = "none: without bounds nothing holds at any stop"
NO_NUMPY = "none: it takes numpy, which isn't installed"
STOPS = "none: the run stops once it is decided, and this takes a number of tasks fixed beforehand"


def until_decided_in(plan: Plan) -> UntilDecided | None:
    """The way in which a run stops, as its summary has it: with the samples of each task, where it isn't one."""
    about = plan.until_decided
    if about is None or (plan.cells is None and plan.samples == 1):
        return about
    samples: dict[str, dict[str, int]] = {arm.name: {} for arm in plan.arms}
    if plan.cells is None:
        samples = {name: dict.fromkeys(about.order, plan.samples) for name in samples}
    for cell in plan.cells or ():
        samples[cell.arm][cell.task] = cell.samples
    return replace(about, samples=samples)


class SettledOrder(list[str]):
    """Tasks in their drawn order, as far as they are settled."""

    def __init__(self, tasks: Iterable[str], largest: int = 0) -> None:
        """`largest`: the tasks of the largest cluster that was planned, as in `UntilDecided`."""
        super().__init__(tasks)
        self.largest = largest


def settled_order(
    about: UntilDecided, arm: str, results: Iterable[Result], faulted: Iterable[str]
) -> SettledOrder:
    """The longest prefix of the order whose tasks have ended in an arm with all of their samples.

    Tasks that the arm doesn't ask are left out. `faulted` has the task of each fault.
    """
    ended = Counter(result.problem_id for result in results) + Counter(faulted)
    found = SettledOrder([], about.largest)
    for task in about.order:
        planned = about.samples.get(arm, {}).get(task, 0) if about.samples else 1
        if ended[task] < planned:
            break
        if planned:
            found.append(task)
    return found


def settled_orders(
    plan: Plan, results: Sequence[Result], faults: Sequence[Fault]
) -> dict[str, SettledOrder]:
    """The settled tasks of each arm, in the order of a run that stops once it is decided; empty for other runs."""
    about = until_decided_in(plan)
    if about is None:
        return {}
    return {
        arm.name: settled_order(
            about,
            arm.name,
            (result for result in results if result.arm == arm.name),
            (fault.problem_id for fault in faults if fault.arm == arm.name),
        )
        for arm in plan.arms
    }


def weights_of(units: Sequence[Sequence[str]], order: Sequence[str]) -> list[float]:
    """The number of tasks of each unit over that of the largest one that was planned, or that there is."""
    planned = order.largest if isinstance(order, SettledOrder) else 0
    largest = max([planned, *map(len, units)], default=1)
    return [len(unit) / largest for unit in units]


def interval_along(
    order: Sequence[str],
    values: Mapping[str, Sequence[float]],
    clusters: Clusters,
    bounds: Interval | None,
    *,
    together: int = 1,
) -> tuple[Interval | None, str]:
    """The confidence sequence of a mean at its end, and its method; without an interval, why.

    `values` by task, of which those in `order` count, the mean of each; a cluster counts as one value, which weighs as
    much as it has tasks. It is one of so many that hold `together` with 95 %.
    """
    if bounds is None:
        return None, UNBOUNDED
    kept = [task for task in order if task in values]
    units = members(kept, clusters)
    means = [fmean(value for task in unit for value in values[task]) for unit in units]
    try:
        found = sequence(means, bounds, 0.05 / together, weights=weights_of(units, order))
    except ImportError:
        return None, NO_NUMPY
    return (found, method_in(SEQUENCE, count_of(kept, clusters))) if found else (None, UNBOUNDED)


def chances_along(
    order: Sequence[str],
    passes: Mapping[str, Sequence[bool]],
    clusters: Clusters,
    found: Mapping[str, ChanceEstimate],
) -> dict[str, ChanceEstimate]:
    """pass^k with its confidence sequences in place of its intervals."""
    along = {}
    for name, estimate in found.items():
        k = int(name.removeprefix("pass^"))
        chances = {task: [pass_hat_k(len(own), sum(own), k)] for task, own in passes.items()}
        along[name] = ChanceEstimate(
            estimate.value, *interval_along(order, chances, clusters, SHARE)
        )
    return along


def rate_along(
    order: Sequence[str], passes: Mapping[str, Sequence[bool]], clusters: Clusters
) -> tuple[Interval | None, str]:
    """The confidence sequence of a success rate in per cent, and its method; without an interval, why."""
    interval, method = interval_along(order, passes, clusters, SHARE)
    return interval and (100 * interval[0], 100 * interval[1]), method


def without_intervals(value: Any) -> Any:
    """A part of the summary of a run that stops once it is decided: as it is, but for all intervals in it."""
    if isinstance(value, Mapping):
        return {name: _barred(str(name), each) for name, each in value.items()}
    return [without_intervals(each) for each in value] if isinstance(value, list | tuple) else value


def _barred(name: str, value: Any) -> Any:
    if name.endswith("interval_method"):
        return STOPS
    return None if name.endswith("interval") else without_intervals(value)
