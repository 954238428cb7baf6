"""The options of OOLONG's suites."""

from __future__ import annotations

from dataclasses import dataclass

from koderz.settings.options import option
from koderz.suites.options import cluster_column
from koderz.suites.tokens import wrong_lengths


@dataclass(frozen=True, slots=True)
class OolongOptions:
    """The choice of rows of a published file, or of generated ones."""

    oolong_datasets: tuple[str, ...] = option(
        (), "Only rows of these data sets, such as trec_coarse. Default: all.", "NAME", listed=True
    )
    context_lengths: tuple[str, ...] = option(
        (),
        "Only rows of these lengths in tokens, such as 131072 or 128K. Default: all; of generated ones 4096.",
        "TOKENS",
        listed=True,
        check=wrong_lengths,
    )
    tasks_per_length: int = option(10, "Generated questions of each length.", "N", bounds=(1, 100_000))
    questions_per_text: int = option(
        1,
        "Generated questions about one text: cheaper where prompts are cached, but answers about one text resemble "
        "each other. The published rows have 12 to 25.",
        "N",
        bounds=(1, 1000),
        unrecorded=12,
    )
    cluster_column: str | None = cluster_column()
