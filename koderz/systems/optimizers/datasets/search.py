"""The options of every search: its length, and the models that it asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz.settings.options import option
from koderz.types import JUDGE, MAIN, Expected

if TYPE_CHECKING:
    from koderz.systems.optimizers.datasets.payload import Dataset

STALE = 20
"""The number of proposals in a row without anything new that ends a search."""

MINIBATCH = 100
"""The most items on which a candidate is scored during a search."""


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
        True, "Search without a model that writes prompts, where the optimizer can.", role="reasoning"
    )
    judge_model: str | None = option(
        None, "The model that judges replies, for metrics that ask one.", "MODEL", role="judge", names_models=True
    )


_CHARS_A_TOKEN = 4
_REPLY_TOKENS = (10, 300)  # of an answer
_REQUEST_TOKENS = (500, 4000)  # of a request for prompts
_WRITTEN_TOKENS = (100, 1000)  # of its reply


def minibatch_size(validation: int) -> int:
    """The number of validation items on which a candidate is scored during a search."""
    return min(MINIBATCH, max(5, validation // 2), validation)


def kept_back(budget: int, validation: int) -> int:
    """The metric calls reserved for the last pass over validation, without the initial prompt's minibatch."""
    return min(4 * (validation - minibatch_size(validation)), budget // 3)


def require_budget(dataset: str, validation: int, budget: int) -> None:
    """Raises KoderzError if a budget of metric calls is below two passes over the validation items."""
    if budget < 2 * validation:
        raise KoderzError(
            f"--budget-calls {budget} is below two passes over the {validation} validation items of {dataset}; "
            f"give at least {2 * validation}, or fewer with --validation-items"
        )


def expected_calls(dataset: Dataset, options: SearchOptions, *, is_baseline: bool) -> list[Expected]:
    """The calls of one experiment; those of a search range from the last pass alone to the whole budget."""
    characters = sum(len(str(each["content"])) for each in dataset.messages)
    an_item = (characters + sum(len(item.text) for item in dataset.test) / len(dataset.test)) / _CHARS_A_TOKEN
    test, validation = len(dataset.test), len(dataset.validation)
    items = (test, test) if is_baseline else (validation, options.budget_calls + test)
    found = [_calls(MAIN, items, (an_item, an_item if is_baseline else 4 * an_item), _REPLY_TOKENS)]
    if not is_baseline and options.reasoning:
        writer = "reasoning" if options.reasoning_model else MAIN
        candidates = options.budget_calls / minibatch_size(validation)
        found.append(_calls(writer, (0, candidates), _REQUEST_TOKENS, _WRITTEN_TOKENS))
    if dataset.metric.asks_judge:
        found.append(_calls(JUDGE, items, (an_item, 2 * an_item), _REPLY_TOKENS))
    return found


def _calls(
    role: str, calls: tuple[float, float], tokens_in: tuple[float, float], tokens_out: tuple[float, float]
) -> Expected:
    """A number of calls, with the tokens of each."""
    least, most = calls
    likely = most * sum(tokens_in) / 2, most * sum(tokens_out) / 2  # a search spends its budget
    return Expected(
        role,
        calls,
        (least * tokens_in[0], most * tokens_in[1]),
        (least * tokens_out[0], most * tokens_out[1]),
        usual=(most, *likely),
    )
