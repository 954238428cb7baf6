"""`--dry-run`: the plan and what it may cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from koderz.cli.console import print_json, say
from koderz.engines.resources import listed_tariff
from koderz.models.prices import Tariff
from koderz.plans.arms import asked_models
from koderz.plans.estimate import Estimate, estimate
from koderz.plans.plan import Plan

_UNPRICED = "price unknown; put it into koderz.toml under [prices]"


def show_plan(plan: Plan, *, json: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Prints the plan. No model is asked, and no key is needed."""
    tariffs = {name: listed_tariff(plan, name, environ) for name in asked_models(plan.arms)}
    guess = estimate(plan, {name: tariff.price if tariff else None for name, tariff in tariffs.items()})
    if json:
        document = {
            "config": plan.record.config,
            "planned": plan.record.planned,
            "prices": {  # US dollars a million tokens, and how they are known; null where they aren't
                name: tariff and {"input": tariff.price.input, "output": tariff.price.output, "origin": tariff.origin}
                for name, tariff in tariffs.items()
            },
            "estimate": guess,
        }
        print_json(document)
        return
    for line in _lines(plan, guess, tariffs):
        say(line)


def _lines(plan: Plan, guess: Estimate, tariffs: Mapping[str, Tariff | None]) -> list[str]:
    config: Mapping[str, Any] = plan.record.config
    tasks = plan.tasks
    named = tasks[0].id if len(tasks) == 1 else f"{tasks[0].id} … {tasks[-1].id}"
    return [
        "PLAN (nothing is asked, nothing is written)",
        f"Suite: {plan.suite.name} ({plan.suite.source})",
        f"Problems: {len(tasks)} ({named})",
        f"Mode: {plan.record.mode}; samples: {plan.record.samples}; temperature: {config['temperature']:g}",
        *(f"Model: {name}: {tariff or _UNPRICED}" for name, tariff in tariffs.items()),
        f"Experiments: {guess.experiments}",
        f"Calls: {_span(*guess.calls)}",
        *(f"  at depth {each.depth}: {_span(*each.calls)}, about {_dollars(each.cost)}" for each in guess.depths),
        f"Tokens in: about {_span(*guess.tokens_in)}",
        f"Tokens out: about {_span(*guess.tokens_out)}",
        f"Cost: about {_dollars(guess.cost)}",
        *getattr(plan.suite, "outline", lambda _: ())(plan),
    ]


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _dollars(cost: tuple[float, float] | None) -> str:
    if cost is None:
        return "unknown, since a price is"
    low, high = cost
    return f"${low:.4f}" if low == high else f"${low:.4f} to ${high:.4f}"
