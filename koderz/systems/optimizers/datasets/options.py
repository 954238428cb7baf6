"""The options of the suite `datasets`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE, SENDS
from koderz.systems.optimizers.datasets.search import SearchOptions

METRICS = ("number", "exact_match", "f1", "choice", "label", "rougeL", "levenshtein_ratio", "judge", "opik")


def _wrong_places(words: Iterable[str]) -> str:
    unnamed = [word for word in words if not all(word.partition("=")[::2])]
    return f"write NAME=PATH, not {unnamed[0]!r}" if unnamed else ""


def _wrong_metric(name: str | None) -> str:
    fine = name is None or name in METRICS or all(name.rpartition(":")[::2])
    return "" if fine else f"there are {', '.join(METRICS)}, and FILE:NAME"


@dataclass(frozen=True, slots=True)
class DatasetOptions(SearchOptions):
    """The choice of items, their scoring, and the initial prompt."""

    demo_datasets: tuple[str, ...] = option(
        (), "The datasets. Default: those of the published ones that are found.", "NAME", listed=True
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
    data_seed: int = option(42, "Seed of the shuffle that items are cut from.", "N", bounds=(0, 2**31 - 1))
    train_items: int | None = option(None, "Items of train. Default: the dataset's own.", "N", bounds=(1, 1_000_000))
    validation_items: int | None = option(None, "Items of validation, likewise.", "N", bounds=(1, 1_000_000))
    test_items: int | None = option(None, "Items of test, likewise.", "N", bounds=(1, 1_000_000))
    test_mode: bool = option(False, "Five items a split: fast, and no comparison.")
    on_leak: Literal["drop", "refuse", "keep"] = option(
        "drop", "What becomes of items whose text stands in another split: drop, refuse or keep.", "WORD"
    )
    metric: str | None = option(
        None,
        f"How replies are scored: {', '.join(METRICS)} (as the original does) or FILE:NAME. Default: the dataset's.",
        "NAME",
        check=_wrong_metric,
        risk=lambda name: RUNS_CODE if ":" in name else "",
    )
    input_columns: tuple[str, ...] = option(
        (), "A column of one's own dataset that a prompt may show; repeatable.", "NAME", flags=("--input-column",)
    )
    output_column: str | None = option(None, "The column of one's own dataset that holds what is right.", "NAME")
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
