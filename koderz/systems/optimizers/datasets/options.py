"""The options of the suite `datasets`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from koderz.errors import KoderzError
from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE, SENDS
from koderz.systems.optimizers.datasets import BASELINE, OPTIMIZERS
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
        4,
        "Requests in flight at most of one experiment, whatever they are for.",
        "N",
        bounds=(1, 1024),
    )
    reasoning_model: str | None = option(
        None,
        "The model that writes prompts. Default: the one that they are for.",
        "MODEL",
        role="reasoning",
        names_models=True,
    )
    reasoning: bool = option(
        True,
        "Search without a model that writes prompts, where the optimizer can.",
        role="reasoning",
    )
    judge_model: str | None = option(
        None,
        "The model that judges replies, for metrics that ask one.",
        "MODEL",
        role="judge",
        names_models=True,
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


def expected_calls(
    dataset: Dataset, options: SearchOptions, *, is_baseline: bool
) -> list[Expected]:
    """The calls of one experiment; those of a search range from the last pass alone to the whole budget."""
    characters = sum(len(str(each["content"])) for each in dataset.messages)
    an_item = (
        characters + sum(len(item.text) for item in dataset.test) / len(dataset.test)
    ) / _CHARS_A_TOKEN
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
    role: str,
    calls: tuple[float, float],
    tokens_in: tuple[float, float],
    tokens_out: tuple[float, float],
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


METRICS = (
    "number",
    "exact_match",
    "f1",
    "choice",
    "label",
    "rougeL",
    "levenshtein_ratio",
    "judge",
    "opik",
)


def _wrong_places(words: Iterable[str]) -> str:
    unnamed = [word for word in words if not all(word.partition("=")[::2])]
    return f"write NAME=PATH, not {unnamed[0]!r}" if unnamed else ""


def _wrong_metric(name: str | None) -> str:
    fine = name is None or name in METRICS or all(name.rpartition(":")[::2])
    return "" if fine else f"there are {', '.join(METRICS)}, and FILE:NAME"


@dataclass(frozen=True, slots=True)
class DatasetOptions(SearchOptions):
    """The optimizers that are compared, the choice of items, their scoring, and the initial prompt."""

    optimizers: tuple[str, ...] = option(
        (),
        f"The optimizers; also gepa, or FILE:NAME. Default: {', '.join(OPTIMIZERS)}. {BASELINE} is always there.",
        "NAME",
        listed=True,
        panel="Optimizers",
        common=True,
        reader="no solver",
        risk=lambda names: RUNS_CODE if any(":" in name for name in names) else "",
    )
    optimizer_params: Path | None = option(
        None,
        'Parameters by optimizer, as JSON: {"few_shot": {"max_examples": 4}}.',
        "FILE",
        panel="Optimizers",
        common=True,
        reader="no solver",
    )

    demo_datasets: tuple[str, ...] = option(
        (),
        "The datasets. Default: those of the published ones that are found.",
        "NAME",
        listed=True,
    )
    dataset: tuple[str, ...] = option(
        (),
        "Where a dataset lies: a file, or a folder of train, validation and test; repeatable. A new name is one's own.",
        "NAME=PATH",
        listed=True,
        check=_wrong_places,
        names_files=True,
        instead=True,
    )
    data_seed: int = option(
        42, "Seed of the shuffle that items are cut from.", "N", bounds=(0, 2**31 - 1)
    )
    train_items: int | None = option(
        None, "Items of train. Default: the dataset's own.", "N", bounds=(1, 1_000_000)
    )
    validation_items: int | None = option(
        None, "Items of validation, likewise.", "N", bounds=(1, 1_000_000)
    )
    test_items: int | None = option(None, "Items of test, likewise.", "N", bounds=(1, 1_000_000))
    test_mode: bool = option(False, "Five items a split: fast, and no comparison.")
    on_leak: Literal["drop", "refuse", "keep"] = option(
        "drop",
        "What becomes of items whose text stands in another split: drop, refuse or keep.",
        "WORD",
    )
    metric: str | None = option(
        None,
        f"How replies are scored: {', '.join(METRICS)} (as the original does) or FILE:NAME. Default: the dataset's.",
        "NAME",
        check=_wrong_metric,
        risk=lambda name: RUNS_CODE if ":" in name else "",
    )
    input_columns: tuple[str, ...] = option(
        (),
        "A column of one's own dataset that a prompt may show; repeatable.",
        "NAME",
        flags=("--input-column",),
    )
    output_column: str | None = option(
        None, "The column of one's own dataset that holds what is right.", "NAME"
    )
    cluster_column: str | None = option(
        None,
        "The column that says which items belong together, such as their text. Default: of one's own cluster, if any.",
        "NAME",
    )
    initial_prompt: Path | None = option(
        None,
        "What a search begins with: a text, which is the instruction, or JSON messages with {column} placeholders.",
        "FILE",
        risk=SENDS,
    )
    closed_book: bool = option(False, "Leave the passages out of hotpot_300's questions.")
    format_line: bool = option(True, "Don't say in the prompt what the metric looks for.")
