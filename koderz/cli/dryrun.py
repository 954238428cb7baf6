"""`--dry-run`: prints the plan and its estimated cost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from koderz.analysis.history import history_of
from koderz.cli.console import print_json, say
from koderz.engines.resources import listed_tariff
from koderz.models.tariffs import Tariff
from koderz.plans.arms import asked_models
from koderz.plans.estimate import Estimate, Share, estimate
from koderz.plans.plan import Plan

_UNPRICED = "price unknown; put it into koderz.toml under [prices]"


def show_plan(plan: Plan, *, json: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Prints the plan. No model is asked, and no key is needed."""
    tariffs = {name: listed_tariff(plan, name, environ) for name in asked_models(plan.arms)}
    prices = {name: tariff.price if tariff else None for name, tariff in tariffs.items()}
    guess = estimate(plan, prices, history_of(plan))
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
        f"Calls: {_span(*guess.calls)}{_likely(guess, 'calls')}",
        *(f"  at depth {each.depth}: {_span(*each.calls)}, about {_dollars(each.cost)}" for each in guess.depths),
        f"Tokens in: about {_span(*guess.tokens_in)}{_likely(guess, 'tokens_in')}",
        f"Tokens out: about {_span(*guess.tokens_out)}{_likely(guess, 'tokens_out')}",
        f"Cost: about {_dollars(guess.cost)}{_likely_cost(guess)}",
        *(_share(each) for each in (guess.models if len(guess.models) > 1 else ())),
        *(_basis(guess) if _varies(guess) else ()),
        *plan.suite.outline(plan),
    ]


def _basis(guess: Estimate) -> Iterator[str]:
    """The basis of the likely figures, one line for all arms that share it."""
    for words in dict.fromkeys(guess.basis.values()):
        arms = ", ".join(arm for arm, basis in guess.basis.items() if basis == words)
        yield f"Likely figures of {arms}: {words}"


def _varies(guess: Estimate) -> bool:
    """Whether there are likely figures besides those from the least to the most."""
    said = [_likely(guess, name) for name in ("calls", "tokens_in", "tokens_out")]
    return guess.likely is None or any(said) or bool(_likely_cost(guess))


def _share(share: Share) -> str:
    """The line of one of several models: its calls and cost."""
    told = f"  {share.model} ({', '.join(share.roles)}): {_span(*share.calls)} calls{_likely(share, 'calls')}"
    return f"{told}; about {_dollars(share.cost)}{_likely_cost(share)}"


def _likely(guess: Estimate | Share, name: str) -> str:
    """The likely figure with its range, if it adds to the span before it."""
    if guess.likely is None:
        return ""
    figure, (low, high) = getattr(guess.likely, name), getattr(guess.likely, f"{name}_range")
    if (figure, figure) == getattr(guess, name):
        return ""
    return f"; likely {figure:,}" + (f" ({_span(low, high)})" if low < high else "")


def _likely_cost(guess: Estimate | Share) -> str:
    if guess.likely is None or guess.likely.cost is None or guess.likely.cost_range is None:
        return ""
    low, high = guess.likely.cost_range
    if guess.cost == (low, high):
        return ""
    return f"; likely ${guess.likely.cost:.4f}" + (f" ({_dollars((low, high))})" if low < high else "")


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _dollars(cost: tuple[float, float] | None) -> str:
    if cost is None:
        return "unknown, since a price is"
    low, high = cost
    return f"${low:.4f}" if low == high else f"${low:.4f} to ${high:.4f}"
