"""How long an optimizer searches and whom it asks: the options of every search."""

from __future__ import annotations

from dataclasses import dataclass

from koderz.errors import KoderzError
from koderz.settings.options import option

STALE = 20
"""Proposals in a row that bring nothing new: then a search ends."""

MINIBATCH = 100
"""Items, at most, that a candidate is scored on during a search."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The options of a search for a better prompt."""

    budget_calls: int = option(
        3000,
        "Metric calls of an experiment at most: one candidate on one train or validation item.",
        "N",
        bounds=(1, 10_000_000),
    )
    item_concurrency: int = option(
        4, "Requests in flight at most of one experiment, whatever they are for.", "N", bounds=(1, 1024)
    )
    reasoning_model: str | None = option(
        None,
        "The model that writes prompts. Default: the one that they are for.",
        "MODEL",
        role="reasoning",
        names_models=True,
    )
    reasoning: bool = option(
        True, "Have no model write prompts; only some optimizers can do without.", role="reasoning"
    )
    judge_model: str | None = option(
        None, "The model that judges replies, for metrics that ask one.", "MODEL", role="judge", names_models=True
    )


def minibatch_size(validation: int) -> int:
    """How many of so many validation items a candidate is scored on during a search."""
    return min(MINIBATCH, max(5, validation // 2), validation)


def kept_back(budget: int, validation: int) -> int:
    """Metric calls that a search leaves for the last pass over validation, the initial prompt's minibatch aside."""
    return min(4 * (validation - minibatch_size(validation)), budget // 3)


def require_budget(dataset: str, validation: int, budget: int) -> None:
    """Raises KoderzError where a budget of metric calls is below two passes over so many validation items."""
    if budget < 2 * validation:
        raise KoderzError(
            f"--budget-calls {budget} is below two passes over the {validation} validation items of {dataset}; "
            f"give at least {2 * validation}, or fewer with --validation-items"
        )
