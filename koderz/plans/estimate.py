"""What a plan may cost, before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from koderz.models import Price
from koderz.plans.plan import Plan
from tracker.messages import text_of

_CHARS_A_TOKEN = 4
_REPLY_TOKENS = 400  # of a usual answer to a function-sized task


@dataclass(frozen=True, slots=True)
class Estimate:
    """From: every first attempt passes. To: none ever does. Replies are reckoned at 400 tokens."""

    experiments: int
    calls: tuple[int, int]
    tokens_in: tuple[int, int]
    tokens_out: tuple[int, int]
    cost: tuple[float, float] | None  # US dollars; None: a price is unknown


def estimate(plan: Plan, prices: Mapping[str, Price | None]) -> Estimate:
    """What the plan may come to. `prices` are those of the models that it asks, by name."""
    spans = [_solver_span(plan, solver.name, prices) for solver in plan.solvers]
    total = [(sum(low), sum(high)) for low, high in (zip(*column, strict=True) for column in zip(*spans, strict=True))]
    calls, tokens_in, tokens_out, cost = total
    known = all(price is not None for price in prices.values())
    return Estimate(
        plan.record.planned,
        (int(calls[0]), int(calls[1])),
        (int(tokens_in[0]), int(tokens_in[1])),
        (int(tokens_out[0]), int(tokens_out[1])),
        cost if known else None,
    )


_Span = tuple[float, float]


def _solver_span(plan: Plan, solver: str, prices: Mapping[str, Price | None]) -> tuple[_Span, _Span, _Span, _Span]:
    """Calls, tokens in, tokens out and cost of one solver on all tasks and samples."""
    settings, samples = plan.settings, plan.record.samples
    prompt = sum(len(text_of(m)) for task in plan.tasks for m in task.messages) / _CHARS_A_TOKEN * samples
    n = len(plan.tasks) * samples
    most = 1 if solver == "zero-shot" else settings.max_iterations
    seen = min(settings.history, most - 1)  # attempts that a late prompt repeats, with their feedback
    calls = (float(n), float(n * most))
    tokens_in = (prompt, prompt * most + n * most * seen * _REPLY_TOKENS * 1.5)
    tokens_out = (float(n * _REPLY_TOKENS), float(n * most * _REPLY_TOKENS))
    price = prices.get(settings.local_model or "") or Price(0, 0)
    cost = tuple((i * price.input + o * price.output) / 1e6 for i, o in zip(tokens_in, tokens_out, strict=True))
    return _with_frontier(plan, solver, prices, calls, tokens_in, tokens_out, (cost[0], cost[1]))


def _with_frontier(
    plan: Plan, solver: str, prices: Mapping[str, Price | None], calls: _Span, tin: _Span, tout: _Span, cost: _Span
) -> tuple[_Span, _Span, _Span, _Span]:
    """The same with specifications and reviews."""
    settings, n = plan.settings, len(plan.tasks) * plan.record.samples
    if solver != "iterative":
        return calls, tin, tout, cost
    unspecified = n - len(plan.record.details.get("specs", {})) * plan.record.samples
    reviews = (settings.max_iterations - 1) // settings.checkpoint_interval
    for model, low, high, size in (
        (settings.effective_spec_model, unspecified, unspecified, 300),
        (settings.effective_checkpoint_model, 0, n * reviews, 300 + settings.checkpoint_interval * 600),
    ):
        if model:
            price = prices.get(model) or Price(0, 0)
            each = (size * price.input + _REPLY_TOKENS * price.output) / 1e6
            calls = (calls[0] + low, calls[1] + high)
            tin = (tin[0] + low * size, tin[1] + high * size)
            tout = (tout[0] + low * _REPLY_TOKENS, tout[1] + high * _REPLY_TOKENS)
            cost = (cost[0] + low * each, cost[1] + high * each)
    return calls, tin, tout, cost
