"""Estimates of a plan's calls, tokens and cost, before anything is spent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from koderz.models import Price
from koderz.plans.arms import Arm
from koderz.plans.plan import Plan
from koderz.types import JUDGE, MAIN, Expected, Task
from koderz_tracker.messages import text_of
from koderz_tracker.results import clusters_in, members
from koderz_tracker.stopping import tasks_needed

_CHARS_A_TOKEN = 4
_DIFFERENCE, _PARTS, _CHANCES = 0.1, 0.2, (0.5, 0.9)  # of a comparison whose length is foreseen
_VERDICT_TOKENS = 200  # of what a judge that is a model usually says

NOT_TRIED = "since no run like this has finished here"
"""The end of a basis that no earlier run is part of."""

Span = tuple[float, float]
"""The least and the most: if every first attempt passes, and if none ever does."""

_NONE: Span = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Depth:
    """The calls of one recursion depth and their cost, from the least to the most."""

    depth: int
    calls: tuple[int, int]
    cost: tuple[float, float] | None


class Figure(NamedTuple):
    """A likely figure, and the range that should hold it four times in five."""

    low: float
    likely: float
    high: float

    def __add__(self, other: tuple[float, ...]) -> Figure:  # type: ignore[override]
        low, likely, high = other
        return Figure(self.low + low, self.likely + likely, self.high + high)


class Amount(NamedTuple):
    """The likely calls, tokens and cost of one model."""

    calls: Figure
    tokens_in: Figure
    tokens_out: Figure
    cost: Figure  # US dollars

    def __add__(self, other: tuple[Figure, ...]) -> Amount:  # type: ignore[override]
        return Amount(*(mine + others for mine, others in zip(self, other, strict=True)))


_FREE = Amount(*[Figure(0, 0, 0)] * 4)


@dataclass(frozen=True, slots=True)
class Likely:
    """The likely figures, each with the range that four in five such runs should stay within."""

    calls: int
    tokens_in: int
    tokens_out: int
    cost: float | None  # US dollars; None: a price is unknown
    calls_range: tuple[int, int]
    tokens_in_range: tuple[int, int]
    tokens_out_range: tuple[int, int]
    cost_range: tuple[float, float] | None

    @classmethod
    def of(cls, amount: Amount, *, priced: bool) -> Likely:
        """The figures of an amount, rounded for people."""
        cost = amount.cost if priced else None
        return cls(
            calls=_rounded(amount.calls.likely),
            tokens_in=_rounded(amount.tokens_in.likely),
            tokens_out=_rounded(amount.tokens_out.likely),
            cost=cost and cost.likely,
            calls_range=(_rounded(amount.calls.low), _rounded(amount.calls.high)),
            tokens_in_range=(_rounded(amount.tokens_in.low), _rounded(amount.tokens_in.high)),
            tokens_out_range=(_rounded(amount.tokens_out.low), _rounded(amount.tokens_out.high)),
            cost_range=cost and (cost.low, cost.high),
        )


@dataclass(frozen=True, slots=True)
class Share:
    """One model's share of a plan, from the least to the most, with the likely figures."""

    model: str
    roles: tuple[str, ...]
    calls: tuple[int, int]
    tokens_in: tuple[int, int]
    tokens_out: tuple[int, int]
    cost: tuple[float, float] | None
    likely: Likely | None


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one arm, as needed to predict their cost."""

    arm: Arm
    samples: Mapping[str, int]  # by task
    prices: Mapping[str, Price]  # by model
    tokens_in: Mapping[str, Span]  # by model, from the least to the most


class Consumption(NamedTuple):
    """The predicted amounts for an arm's cells, by model, and what the prediction is based on."""

    amounts: Mapping[str, Amount]
    basis: str


History = Callable[[Cells], Consumption | None]
"""Predicts the cost of cells from earlier runs; None if nothing is known of such cells."""


@dataclass(slots=True)
class _Sum:
    """The sums for one model over the cells of one arm, or of all."""

    roles: dict[str, None] = field(default_factory=dict)
    calls: Span = (0.0, 0.0)
    tokens_in: Span = (0.0, 0.0)
    tokens_out: Span = (0.0, 0.0)
    cost: Span = (0.0, 0.0)
    usual: Amount | None = _FREE  # as solvers declare it

    def add(self, role: str, spans: tuple[Span, Span, Span, Span], usual: Amount | None) -> None:
        self.roles[role] = None
        self.calls, self.tokens_in, self.tokens_out, self.cost = map(
            _sum, (self.calls, self.tokens_in, self.tokens_out, self.cost), spans
        )
        self.usual = self.usual + usual if self.usual and usual else None


@dataclass(frozen=True, slots=True)
class Ending:
    """A moment by which a run that stops once it is decided has been decided, with a chance."""

    chance: float
    # tasks, or clusters of tasks, which may be more than there are; None: more than 20,000
    tasks: int | None
    # US dollars, a range; None: a price is unknown, or it takes more than there are
    cost: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The length of a run that stops once it is decided, if B is better by a difference and the two part so often."""

    difference: float  # as a share of tasks, or of the range of the measure
    parts: float  # share of tasks that exactly one of them passes
    planned: int  # tasks, or clusters of tasks
    unit: str
    measure: str
    a: str  # the arm that others are compared with
    compared: int  # the others
    endings: tuple[Ending, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a plan, from the least to the most."""

    experiments: int
    calls: tuple[int, int]
    tokens_in: tuple[int, int]
    tokens_out: tuple[int, int]
    cost: tuple[float, float] | None  # US dollars; None: a price is unknown
    depths: tuple[Depth, ...] = ()  # of a recursion, if there is any
    likely: Likely | None = None  # None: of an arm nothing is known
    # how that is known, or that it isn't, by arm
    basis: Mapping[str, str] = field(default_factory=dict)
    models: tuple[Share, ...] = ()
    decision: Foreseen | None = None  # of a run that stops once it is decided


def estimate(
    plan: Plan, prices: Mapping[str, Price | None], history: History = lambda _: None
) -> Estimate:
    """Estimates a plan from the expectations of its solvers, and from earlier runs for the likely figures.

    `prices` are those of the models that it asks, by name; `history` knows what runs before it took.
    """
    calls: dict[int, Span] = {}
    costs: dict[int, Span] = {}
    # by arm and model
    sums: dict[str, dict[str, _Sum]] = {arm.name: defaultdict(_Sum) for arm in plan.arms}
    for arm, samples, expected in expected_calls(plan):
        model = arm.models.get(expected.role) or arm.models[expected.instead]
        price = prices.get(model) or Price(0, 0)
        # Each call counts with its share of tokens, since length decides the price.
        spans = zip(expected.calls, expected.tokens_in, expected.tokens_out, strict=True)
        least, most = (
            samples * max(1.0, calls) * price.cost(asked / max(1.0, calls), told / max(1.0, calls))
            for calls, asked, told in spans
        )
        cost = least, most
        asked, told, made = (
            _times(samples, s) for s in (expected.tokens_in, expected.tokens_out, expected.calls)
        )
        calls[expected.depth] = _sum(calls.get(expected.depth, _NONE), made)
        costs[expected.depth] = _sum(costs.get(expected.depth, _NONE), cost)
        usual = _usual(expected, samples, price)
        sums[arm.name][model].add(expected.role, (made, asked, told, cost), usual)
    known = all(price is not None for price in prices.values())
    total = reduce(_sum, costs.values(), _NONE) if known else None
    likely, basis = _likely(plan, prices, sums, history)
    shares = [*_shares(sums, likely, priced=known)]
    depths = [
        Depth(depth, _whole(calls[depth]), costs[depth] if known else None)
        for depth in sorted(calls)
    ]
    whole = (
        None
        if likely is None
        else Likely.of(reduce(Amount.__add__, likely.values(), _FREE), priced=known)
    )
    every = [each for models in sums.values() for each in models.values()]
    return Estimate(
        plan.record.planned,
        _whole(reduce(_sum, calls.values(), _NONE)),
        _whole(reduce(_sum, [each.tokens_in for each in every], _NONE)),
        _whole(reduce(_sum, [each.tokens_out for each in every], _NONE)),
        total,
        tuple(depths) if len(depths) > 1 else (),
        whole,
        basis,
        tuple(shares),
        _foreseen(plan, (whole and whole.cost_range) or total),
    )


def _foreseen(plan: Plan, cost: Span | None) -> Foreseen | None:
    """The likely length of a run that stops once it is decided, and what it costs by then; None for other runs."""
    about = plan.record.until_decided
    if about is None:
        return None
    clusters = clusters_in(plan.record)
    planned = len(members(about.order, clusters))
    compared = len(plan.arms) - 1
    needed = tasks_needed(_PARTS, _DIFFERENCE, about.alpha / compared, chances=_CHANCES)
    endings = []
    for chance, tasks in zip(_CHANCES, needed, strict=True):
        tasks = tasks and max(tasks, about.fewest)
        is_within = tasks is not None and tasks <= planned
        endings.append(
            Ending(
                chance,
                tasks,
                _times(tasks / planned, cost) if tasks and is_within and cost else None,
            )
        )
    unit = "clusters of tasks" if len(about.order) > planned else "tasks"
    return Foreseen(
        _DIFFERENCE, _PARTS, planned, unit, about.measure, about.arm, compared, tuple(endings)
    )


def _likely(
    plan: Plan,
    prices: Mapping[str, Price | None],
    sums: Mapping[str, Mapping[str, _Sum]],
    history: History,
) -> tuple[dict[str, Amount] | None, dict[str, str]]:
    """The likely amounts by model (None if unknown for some arm), and their basis by arm."""
    priced = {model: price or Price(0, 0) for model, price in prices.items()}
    samples: dict[str, dict[str, int]] = defaultdict(dict)
    for task, arm, count in plan.cells():
        samples[arm.name][task.id] = samples[arm.name].get(task.id, 0) + count
    total: dict[str, Amount] = {}
    basis: dict[str, str] = {}
    complete = True
    for arm in plan.arms:
        if not (mine := sums[arm.name]):
            continue
        taken = history(
            Cells(
                arm,
                samples[arm.name],
                priced,
                {model: each.tokens_in for model, each in mine.items()},
            )
        )
        usual = {model: each.usual for model, each in mine.items() if each.usual}
        amounts = {**usual, **(taken.amounts if taken else {})}
        if taken and len(amounts) == len(mine):
            basis[arm.name] = taken.basis
        elif len(amounts) == len(mine):
            basis[arm.name] = f"from half to double what is usual for it, {NOT_TRIED}"
        else:
            basis[arm.name] = f"unknown, {NOT_TRIED}"
            complete = False
        for model, amount in amounts.items():
            total[model] = total.get(model, _FREE) + amount
    return (total if complete else None), basis


def _shares(
    sums: Mapping[str, Mapping[str, _Sum]], likely: Mapping[str, Amount] | None, *, priced: bool
) -> Iterator[Share]:
    """The shares of the plan's models."""
    for model in dict.fromkeys(model for models in sums.values() for model in models):
        mine = [models[model] for models in sums.values() if model in models]
        calls, asked, told, cost = (
            reduce(_sum, [getattr(each, name) for each in mine], _NONE)
            for name in ("calls", "tokens_in", "tokens_out", "cost")
        )
        yield Share(
            model,
            tuple(dict.fromkeys(role for each in mine for role in each.roles)),
            _whole(calls),
            _whole(asked),
            _whole(told),
            cost if priced else None,
            None if likely is None else Likely.of(likely.get(model, _FREE), priced=priced),
        )


def _usual(expected: Expected, samples: int, price: Price) -> Amount | None:
    """A solver's own likely figures, from half to double of each. None if it gives none for what may vary."""
    spans = (expected.calls, expected.tokens_in, expected.tokens_out)
    if expected.usual is None and any(least < most for least, most in spans):
        return None
    usual = expected.usual or tuple(least for least, _ in spans)
    figures = [
        Figure(max(least, min(value, most) / 2), value, min(max(most, value), 2 * value))
        for value, (least, most) in zip(usual, spans, strict=True)
    ]
    made, asked, told = (Figure(*(samples * each for each in figure)) for figure in figures)
    middle = max(1.0, made.likely) * price.cost(
        asked.likely / max(1.0, made.likely), told.likely / max(1.0, made.likely)
    )
    every = asked.likely + told.likely or 1.0
    low, high = (asked.low + told.low) / every, (asked.high + told.high) / every
    return Amount(made, asked, told, Figure(middle * low, middle, middle * high))


def expected_calls(plan: Plan) -> Iterator[tuple[Arm, int, Expected]]:
    """The expected calls of each cell: its solver's, by role, and those of a judge that is a model."""
    for task, arm, samples in plan.cells():
        own = plan.suite.expected(task, arm.solver, plan.settings)
        for expected in arm.solver.expected(_tokens(task), task.id) if own is None else own:
            if expected.role in arm.models or expected.instead in arm.models:
                yield arm, samples, expected
            if (
                own is None
                and plan.suite.asks_judge
                and (expected.role, JUDGE in arm.models) == (MAIN, True)
            ):
                # A judge that is a model: one call for each answer, unless the suite declares another number.
                a_verdict = plan.suite.judge_calls
                calls = _times(a_verdict, expected.calls)
                shown = _sum(
                    _times(a_verdict, expected.tokens_out),
                    (calls[0] * _tokens(task), calls[1] * _tokens(task)),
                )
                usual = None
                if expected.usual:
                    made = a_verdict * expected.usual[0]
                    usual = (
                        made,
                        a_verdict * expected.usual[2] + made * _tokens(task),
                        made * _VERDICT_TOKENS,
                    )
                yield (
                    arm,
                    samples,
                    Expected(JUDGE, calls, shown, _times(_VERDICT_TOKENS, calls), usual=usual),
                )


def _tokens(task: Task) -> float:
    """The tokens of a task's first messages, including texts that they refer to."""
    return task.tokens + sum(len(text_of(message)) for message in task.messages) / _CHARS_A_TOKEN


def _times(factor: float, span: Span) -> Span:
    return factor * span[0], factor * span[1]


def _sum(a: Span, b: Span) -> Span:
    return a[0] + b[0], a[1] + b[1]


def _whole(span: Span) -> tuple[int, int]:
    return int(span[0]), int(span[1])


def _rounded(value: float) -> int:
    """Rounds down as `_whole`, but tolerates the rounding errors of sums of means."""
    return int(value + 1e-6)
