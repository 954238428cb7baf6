"""`--dry-run`: the plan and what it may cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from koderz.cli.console import print_json, say
from koderz.estimate import Estimate, estimate
from koderz.models import Price
from koderz.opening import asked_models, listed_price
from koderz.plan import Plan


def show_plan(plan: Plan, *, json: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Prints the plan. No model is asked, and no key is needed."""
    prices = {name: listed_price(plan, name, environ) for name in asked_models(plan.settings)}
    guess = estimate(plan, prices)
    if json:
        document = {"config": plan.record.config, "planned": plan.record.planned, "estimate": guess}
        print_json(document)
        return
    for line in _lines(plan, guess, prices):
        say(line)


def _lines(plan: Plan, guess: Estimate, prices: Mapping[str, Price | None]) -> list[str]:
    config: Mapping[str, Any] = plan.record.config
    tasks = plan.tasks
    named = tasks[0].id if len(tasks) == 1 else f"{tasks[0].id} … {tasks[-1].id}"
    return [
        "PLAN (nothing is asked, nothing is written)",
        f"Suite: {plan.suite.name} ({plan.suite.source})",
        f"Problems: {len(tasks)} ({named})",
        f"Mode: {plan.record.mode}; samples: {plan.record.samples}; temperature: {config['temperature']:g}",
        *(f"Model: {name}: {_price(price)}" for name, price in prices.items()),
        f"Experiments: {guess.experiments}",
        f"Calls: {_span(*guess.calls)}",
        f"Tokens in: about {_span(*guess.tokens_in)}",
        f"Tokens out: about {_span(*guess.tokens_out)}",
        f"Cost: about {_dollars(guess.cost)}",
    ]


def _price(price: Price | None) -> str:
    if price is None:
        return "price unknown; put it into koderz.toml under [prices]"
    if price.input == price.output == 0:
        return "free"
    return f"${price.input:g} in, ${price.output:g} out, a million tokens"


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _dollars(cost: tuple[float, float] | None) -> str:
    if cost is None:
        return "unknown, since a price is"
    low, high = cost
    return f"${low:.4f}" if low == high else f"${low:.4f} to ${high:.4f}"
