"""What a plan may cost, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from koderz.models import Price
from koderz.plans.arms import Arm
from koderz.plans.plan import Plan
from koderz.suites import judge_asks
from koderz.types import JUDGE, MAIN, Expected, Task
from tracker.messages import text_of

_CHARS_A_TOKEN = 4
_VERDICT_TOKENS = 200  # of what a judge that is a model usually says

Span = tuple[float, float]
"""From: every first attempt passes. To: none ever does."""

_NONE: Span = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Depth:
    """What the calls of one depth may come to."""

    depth: int
    calls: tuple[int, int]
    cost: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan may come to, from the least to the most."""

    experiments: int
    calls: tuple[int, int]
    tokens_in: tuple[int, int]
    tokens_out: tuple[int, int]
    cost: tuple[float, float] | None  # US dollars; None: a price is unknown
    depths: tuple[Depth, ...] = ()  # of a recursion, if there is any


def estimate(plan: Plan, prices: Mapping[str, Price | None]) -> Estimate:
    """What the plan may come to, by what its solvers expect. `prices` are those of the models that it asks, by name."""
    tokens_in = tokens_out = (0.0, 0.0)
    calls: dict[int, Span] = {}
    costs: dict[int, Span] = {}
    for arm, samples, expected in _expected(plan):
        price = prices.get(arm.models.get(expected.role) or arm.models[expected.instead]) or Price(0, 0)
        asked, told = _times(samples, expected.tokens_in), _times(samples, expected.tokens_out)
        cost = _cost(price, samples, expected)
        calls[expected.depth] = _sum(calls.get(expected.depth, _NONE), _times(samples, expected.calls))
        costs[expected.depth] = _sum(costs.get(expected.depth, _NONE), cost)
        tokens_in, tokens_out = _sum(tokens_in, asked), _sum(tokens_out, told)
    known = all(price is not None for price in prices.values())
    depths = [Depth(depth, _whole(calls[depth]), costs[depth] if known else None) for depth in sorted(calls)]
    return Estimate(
        plan.record.planned,
        _whole(reduce(_sum, calls.values(), _NONE)),
        _whole(tokens_in),
        _whole(tokens_out),
        reduce(_sum, costs.values(), _NONE) if known else None,
        tuple(depths) if len(depths) > 1 else (),
    )


def _cost(price: Price, samples: int, expected: Expected) -> Span:
    """US dollars. Each call is reckoned with its share of the tokens, since the length of one decides its price."""
    spans = zip(expected.calls, expected.tokens_in, expected.tokens_out, strict=True)
    least, most = (
        samples * max(1.0, calls) * price.cost(asked / max(1.0, calls), told / max(1.0, calls))
        for calls, asked, told in spans
    )
    return least, most


def _expected(plan: Plan) -> Iterator[tuple[Arm, int, Expected]]:
    """The calls of each cell that the solver of its arm expects, by role, and those of a judge that is a model."""
    asks = judge_asks(plan.suite)
    own: Callable[..., Sequence[Expected]] | None = getattr(plan.suite, "expected", None)
    for task, arm, samples in plan.cells():
        for expected in own(task, arm.solver, plan.settings) if own else arm.solver.expected(_tokens(task), task.id):
            if expected.role in arm.models or expected.instead in arm.models:
                yield arm, samples, expected
            if expected.role == MAIN and asks and JUDGE in arm.models:  # each answer is judged once
                yield arm, samples, _judged(plan.suite, task, expected)


def _judged(suite: object, task: Task, answers: Expected) -> Expected:
    """The calls of a judge that is a model: one an answer, which it is shown, unless the suite says how many."""
    a_verdict = getattr(suite, "judge_calls", 1)
    calls = _times(a_verdict, answers.calls)
    shown = _sum(_times(a_verdict, answers.tokens_out), (calls[0] * _tokens(task), calls[1] * _tokens(task)))
    return Expected(JUDGE, calls, shown, _times(_VERDICT_TOKENS, calls))


def _tokens(task: Task) -> float:
    """Of its first messages, and of what they stand for."""
    return task.tokens + sum(len(text_of(message)) for message in task.messages) / _CHARS_A_TOKEN


def _times(factor: float, span: Span) -> Span:
    return factor * span[0], factor * span[1]


def _sum(a: Span, b: Span) -> Span:
    return a[0] + b[0], a[1] + b[1]


def _whole(span: Span) -> tuple[int, int]:
    return int(span[0]), int(span[1])
