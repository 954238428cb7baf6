"""The options of the suite `ruler`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koderz.settings.options import one_of, option
from koderz.suites.options import cluster_column
from koderz.suites.tokens import wrong_lengths
from koderz.systems.long_context.ruler.niah import KINDS, PLACES
from koderz.systems.long_context.ruler.tasks import ALL


@dataclass(frozen=True, slots=True)
class RulerOptions:
    """The choice of rows, and their material."""

    ruler_tasks: tuple[str, ...] = option(
        ("niah_single_1", "niah_multikey_2", "vt", "cwe", "fwe"),
        f"Tasks of the benchmark: {', '.join(ALL)}.",
        "NAME",
        listed=True,
        check=one_of(ALL),
    )
    context_lengths: tuple[str, ...] = option(
        ("4096",),
        "Lengths in tokens, such as 4096, 128K or 1M.",
        "TOKENS",
        listed=True,
        check=wrong_lengths,
    )
    tasks_per_length: int = option(10, "Rows of each task and length.", "N", bounds=(1, 100_000))
    tokenizer: str = option(
        "chars/4", "What counts tokens: chars/4 (characters / 4), or a tokenizer.json.", "FILE"
    )
    haystack: Path | None = option(
        None,
        "The text of the essay tasks: plain, or JSON with a field text. Default: made-up prose.",
        "FILE",
    )
    qa_data: Path | None = option(
        None, "SQuAD's dev-v2.0.json for qa_1, or HotpotQA's file for qa_2.", "FILE"
    )
    needle_positions: tuple[str, ...] = option(
        tuple(PLACES),
        f"Where needles of the task needles lie: {', '.join(PLACES)}.",
        "PLACE",
        listed=True,
        check=one_of(PLACES),
    )
    needle_types: tuple[str, ...] = option(
        tuple(KINDS),
        f"What they are: {', '.join(KINDS)}.",
        "TYPE",
        listed=True,
        check=one_of(KINDS),
    )
    cluster_column: str | None = cluster_column()
