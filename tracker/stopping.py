"""The rule by which a comparison stops: when a difference is shown, both are similar, or what is left is futile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import repeat
from math import ceil, log, log1p
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from koderz_tracker.rates import Interval
from koderz_tracker.sequential import Evidence, EvidencePoint

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

Outcome = Literal["shown", "similar", "futile", "money", "tasks"]
FEWEST = 6
# of looks at futility: in tasks, and as a share of the plan
_FIRST_LOOK, _LEAST_STEP, _STEP = 20, 10, 0.05
_DRAWS, _AT_ONCE = 1000, 100
_FUTILE = 0.05
_POINTS = 500  # of a path
_ALMOST = 1e-9
_PRIOR = 0.5  # of each of the three rates: A only, B only, neither


class StoppingRule(NamedTuple):
    """The settings of a comparison that stops. Values are B less A, between -1 and 1."""

    planned: int  # tasks
    alpha: float = 0.05
    margin: float | None = None  # within which both are similar; None: never
    fewest: int = FEWEST  # tasks before anything is claimed
    seed: int = 0


class OpenDecision:
    """A decision that is still open: add values until there is an outcome.

    Where outcomes are missing, whatever is claimed holds at the worst that they could be. The evidence of the values
    as they would have been is at least that of half of the bets on the lowest values, and of the other half on the
    highest ones; so claims are as rarely false as without any missing.
    """

    def __init__(self, rule: StoppingRule) -> None:
        self.rule = rule
        self.values: list[float] = []  # of what was judged
        self.weights: list[float] = []  # of these
        self.evidence = Evidence()  # of these
        # of the lowest and highest values; None: all is judged
        self.extremes: tuple[Evidence, Evidence] | None = None
        self._missing = 0  # values, of tasks of which nothing was judged

    def add(
        self,
        value: float | None,
        ends: Interval | None = None,
        *,
        weight: float = 1.0,
        judged: float | None = None,
    ) -> Outcome | None:
        """Adds the difference on one more task; returns the outcome if that decides. Nothing else ends a trial.

        `ends`: where outcomes are missing, the lowest and highest difference there may be; `value` is that of the rest.
        `weight`, and that of what was `judged` of it: of a cluster, as `Evidence` has it.
        """
        if ends and self.extremes is None:
            self.extremes = Evidence(self.values, self.weights), Evidence(self.values, self.weights)
        if self.extremes:
            for extreme, end in zip(self.extremes, ends or (value, value), strict=True):
                assert end is not None, "a value that is missing has ends"
                extreme.add(end, weight=weight)
        if value is None:
            self._missing += 1
            return None  # a task of which nothing was judged makes no claim
        self.values.append(value)
        self.weights.append(weight if judged is None else judged)
        self.evidence.add(value, weight=self.weights[-1])
        rule, evidence, count = self.rule, self.evidence, len(self.values)
        if count < rule.fewest:
            return None
        if self.log_e >= -log(rule.alpha):
            return "shown"
        if self.is_similar:
            return "similar"
        step = max(_LEAST_STEP, ceil(_STEP * rule.planned))
        if _FIRST_LOOK <= count < rule.planned and (count - _FIRST_LOOK) % step == 0:
            left = rule._replace(planned=rule.planned - self._missing)
            return "futile" if is_futile(evidence, left) else None
        return None

    @property
    def log_e(self) -> float:
        """The logarithm of the evidence for a difference, whatever is missing."""
        if self.extremes is None:
            return self.evidence.log_e()
        lowest, highest = self.extremes
        return max(lowest.log_half(0.0, upper=False), highest.log_half(0.0, upper=True))

    @property
    def is_similar(self) -> bool:
        """Whether the difference is shown to lie within the margin, whatever is missing."""
        if self.extremes is None or self.rule.margin is None:
            return _is_similar(self.evidence, self.rule)
        (lowest, highest), goal, margin = self.extremes, -log(self.rule.alpha), self.rule.margin
        return (
            lowest.log_half(-margin, upper=False) >= goal
            and highest.log_half(margin, upper=True) >= goal
        )

    @property
    def interval(self) -> Interval:
        """The interval of the difference, whatever is missing."""
        alpha = self.rule.alpha
        if self.extremes is None:
            return self.evidence.interval(alpha)
        lowest, highest = self.extremes
        return lowest.limit(alpha, upper=False, by_half=True), highest.limit(
            alpha, upper=True, by_half=True
        )


@dataclass(frozen=True)
class PairsDecision:
    """The decision on differences, one a task, between -1 and 1."""

    outcome: Outcome
    tasks: int  # that were counted
    difference: float  # their mean; its size is biased outward by stopping, the interval isn't
    interval: Interval  # of confidence 1 - alpha, valid at any stop
    e_value: float  # against no difference
    alpha: float
    values: Sequence[float]  # the counted differences

    @cached_property
    def path(self) -> list[EvidencePoint]:
        """The evidence and the interval after each counted task, thinned to 500 points."""
        return path_of(self.values, self.alpha)


def decide_pairs(
    differences: Iterable[float],
    *,
    alpha: float = 0.05,
    margin: float | None = None,
    planned: int | None = None,
    seed: int = 0,
) -> PairsDecision:
    """Decides on differences B less A, one a task, in an order drawn before they were known; each between -1 and 1.

    `planned` is the number of tasks that there are, by default as many as are given; `margin` the difference up to
    which both are similar; `seed` that of the draws which tell whether what is left is futile. The result counts the
    differences up to the decision. Raises ValueError for values out of bounds.
    """
    given = [float(value) for value in differences]
    if not 0 < alpha < 1:
        raise ValueError(f"alpha lies between 0 and 1, and {alpha!r} doesn't")
    if margin is not None and not 0 < margin < 1:
        raise ValueError(f"the margin lies between 0 and 1, and {margin!r} doesn't")
    trial = OpenDecision(StoppingRule(max(planned or 0, len(given)), alpha, margin, seed=seed))
    outcome = next((found for value in given if (found := trial.add(value))), None)
    evidence = trial.evidence
    return PairsDecision(
        outcome or "tasks",
        evidence.total,
        evidence.mean,
        evidence.interval(alpha),
        evidence.e_value,
        alpha,
        tuple(trial.values),
    )


def path_of(
    values: Sequence[float], alpha: float, weights: Iterable[float] | None = None
) -> list[EvidencePoint]:
    """The evidence and the interval after each value, thinned to 500 points, of which the last is one."""
    evidence, points = Evidence(), []
    every = max(1, ceil(len(values) / _POINTS))
    for count, (value, weight) in enumerate(
        zip(values, weights or repeat(1.0), strict=False), start=1
    ):
        evidence.add(value, weight=weight)
        if (len(values) - count) % every == 0:
            points.append(EvidencePoint(count, evidence.e_value, *evidence.interval(alpha)))
    return points


def is_futile(evidence: Evidence, rule: StoppingRule) -> bool:
    """Whether the tasks that are left decide with a predictive chance below 5 %.

    The rates of tasks that only A passes, only B, and neither or both are drawn from their posterior (Dirichlet, from
    counts + 1/2), and the tasks that are left from these. Values between count by their first two moments: a value D as
    (D^2 + D) / 2 of a task that only B passes and (D^2 - D) / 2 of one that only A does. To stop so claims nothing.
    """
    from numpy.random import default_rng

    left = rule.planned - evidence.total
    random = default_rng([rule.seed, evidence.total])
    enough = round(_FUTILE * _DRAWS)
    decided = 0
    for drawn in range(_AT_ONCE, _DRAWS + 1, _AT_ONCE):
        decided += _decided(evidence, rule, left, random)
        if decided >= enough:
            return False
        if decided + _DRAWS - drawn < enough:
            return True
    return True


def _decided(evidence: Evidence, rule: StoppingRule, left: int, random: Generator) -> int:
    """Of some drawn endings of a comparison, the number that decide it."""
    a, b = evidence.parted
    # Gamma draws over their sum are a draw from the Dirichlet distribution.
    gammas = random.standard_gamma(
        [a + _PRIOR, b + _PRIOR, evidence.total - a - b + _PRIOR], (_AT_ONCE, 3)
    )
    walks = _walks(gammas / gammas.sum(axis=1, keepdims=True), left, random)
    shows = walks.crossings(rule.alpha, a, b) >= 0
    found = int(shows.sum())
    if rule.margin is not None:
        ends = zip(walks.parted[~shows], walks.apart[~shows], strict=True)
        found += sum(
            _ends_similar(evidence, rule, left, int(n), int(apart[n - 1]) if n else 0)
            for n, apart in ends
        )
    return found


def _ends_similar(
    evidence: Evidence, rule: StoppingRule, left: int, parted: int, apart: int
) -> bool:
    ended = evidence.copy()
    for value, count in (
        (1.0, (parted + apart) // 2),
        (-1.0, (parted - apart) // 2),
        (0.0, left - parted),
    ):
        ended.add(value, count)
    return _is_similar(ended, rule)


def _is_similar(evidence: Evidence, rule: StoppingRule) -> bool:
    return (
        rule.margin is not None
        and abs(evidence.mean) < rule.margin
        and evidence.excludes(rule.margin, rule.alpha)
        and evidence.excludes(-rule.margin, rule.alpha)
    )


def tasks_needed(
    parts: float,
    difference: float,
    alpha: float = 0.05,
    *,
    chances: Sequence[float] = (0.5, 0.9),
    most: int = 20_000,
) -> list[int | None]:
    """The tasks after which a difference is shown with each of these chances; None: not by `most`.

    `parts` is the share of tasks that exactly one of A and B passes, `difference` how much oftener B does.
    """
    import numpy as np

    # after each number that parts
    shown = np.cumsum(_first_shown((parts + difference) / 2 / parts, alpha, most))
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, most + 1)))))

    def chance(tasks: int) -> float:
        # Each task parts with the chance `parts`, so that the number of those that do is binomial.
        flips = np.arange(tasks + 1)
        of_them = (
            logs[tasks]
            - logs[flips]
            - logs[tasks - flips]
            + flips * log(parts)
            + (tasks - flips) * log1p(-parts)
        )
        return float(np.exp(of_them) @ shown[np.minimum(flips, len(shown) - 1)])

    return [
        bisect_left(range(most), wanted, key=chance) if chance(most) >= wanted else None
        for wanted in chances
    ]


def _first_shown(up: float, alpha: float, most: int) -> NDArray[Any]:
    """The chance that a difference is first shown by the n-th task that parts, for each n from 0, B passing with `up`.

    Ends where it is shown almost surely.
    """
    import numpy as np

    limits = limits_of_flips(alpha, most)
    found, leads, wide = [0.0], np.ones(1), 0  # of B, from -wide to wide
    # A random walk of B's lead between two barriers: each task that parts moves it by one, and what reaches the limit
    # for so many tasks is shown there and leaves the walk.
    while len(found) <= most and sum(found) < 1 - _ALMOST:
        limit = int(limits[len(found)])
        leads = np.pad(leads * up, (2, 0)) + np.pad(leads * (1 - up), (0, 2))
        wide += 1
        cut = max(0, wide - limit + 1)
        found.append(float(leads[:cut].sum() + leads[len(leads) - cut :].sum()))
        leads, wide = leads[cut : len(leads) - cut], wide - cut
    return np.asarray(found)


class _Walks(NamedTuple):
    """Drawn endings of a comparison, a row each: the tasks that part, one after the other."""

    # by how many of them B leads, after each; beyond the first `parted` it means nothing
    apart: NDArray[Any]
    parted: NDArray[Any]  # their number

    def crossings(self, alpha: float, a: float = 0.0, b: float = 0.0) -> NDArray[Any]:
        """The index of the parting task at which each first shows a difference, after counts a and b; -1: none does."""
        import numpy as np

        longest = self.apart.shape[1]
        begun = ceil(a + b)
        limits = limits_of_flips(alpha, 1 << (begun + longest + 1).bit_length())
        apart = self.apart + (b - a) if b != a else self.apart
        crosses = np.abs(apart) >= limits[begun + 1 : begun + longest + 1]
        crosses &= np.arange(longest) < self.parted[:, None]
        return np.where(crosses.any(axis=1), crosses.argmax(axis=1), -1)


def _walks(rates: NDArray[Any], tasks: int, random: Generator) -> _Walks:
    """Draws an ending of so many tasks for each row of rates: of tasks that only A passes, only B, and the others."""
    import numpy as np

    parts = rates[:, 0] + rates[:, 1]
    parted = random.binomial(tasks, np.minimum(parts, 1.0))
    longest = max(1, int(parted.max()))
    ups = random.random((len(rates), longest), dtype="float32") < (rates[:, 1] / parts)[
        :, None
    ].astype("float32")
    return _Walks(
        2 * np.cumsum(ups, axis=1, dtype="int32") - np.arange(1, longest + 1, dtype="int32"), parted
    )


@cache
def limits_of_flips(alpha: float, most: int) -> NDArray[Any]:
    """For each number of tasks that part, up to `most`, by how many one side has to lead to be shown the better.

    From E(0) in closed form; more than there are tasks where none is enough.
    """
    from numpy import asarray

    logs = [0.0]
    for number in range(1, most + 2):
        logs.append(logs[-1] + log(number))
    found, lead = [], 1
    for flips in range(most + 1):
        lead = max(lead - 1, flips % 2)
        while lead <= flips and _log_e(flips, lead, logs) < -log(alpha):
            lead += 2
        found.append(lead)
    return asarray(found)


def _log_e(flips: int, lead: int, logs: Sequence[float]) -> float:
    return flips * log(2) + logs[(flips - lead) // 2] + logs[(flips + lead) // 2] - logs[flips + 1]
