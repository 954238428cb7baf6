"""The options of the suites of OOLONG and BrowseComp-Plus, and of the solver `rlm`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koderz.settings.options import option
from koderz.suites.options import cluster_column
from koderz.suites.tokens import wrong_lengths
from koderz.systems.long_context.wasm.cells import SessionOptions


@dataclass(frozen=True, slots=True)
class ResearchOptions:
    """The choice of documents for a question, and of how texts are recorded."""

    browsecomp_canary: str | None = option(
        None,
        "What the rows of --dataset are encrypted with; on no record, and later sessions take it from the variable.",
        "TEXT",
        flags=("--canary",),
        is_secret=True,
    )
    corpus: Path | None = option(
        None, "The documents that questions are filled up from, as published.", "PATH"
    )
    documents: int | None = option(
        None,
        "Documents of a question. Default: 1000 with --corpus, else those of its row; 100 generated ones.",
        "N",
        bounds=(1, 1_000_000),
    )
    questions: int = option(20, "Generated questions.", "N", bounds=(1, 100_000))
    judge_model: str | None = option(
        None,
        "The model that judges answers. Default: none, and they have to match exactly.",
        "MODEL",
        role="judge",
    )
    keep_private_text: bool = option(
        False,
        "Record questions, documents, replies and cells as they are, not encrypted and by their digests.",
    )
    cluster_column: str | None = cluster_column()


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
    tasks_per_length: int = option(
        10, "Generated questions of each length.", "N", bounds=(1, 100_000)
    )
    questions_per_text: int = option(
        1,
        "Generated questions about one text: cheaper where prompts are cached, but answers about one text resemble "
        "each other. The published rows have 12 to 25.",
        "N",
        bounds=(1, 1000),
        unrecorded=12,
    )
    cluster_column: str | None = cluster_column()


@dataclass(frozen=True, slots=True)
class RlmOptions(SessionOptions):
    """The options of the solver `rlm`."""

    max_depth: int = option(
        3,
        "Depth of the recursion: 0 no sub-calls, 1 plain ones, above that models with sessions.",
        "N",
        bounds=(0, 16),
    )
    max_turns: int = option(30, "Maximum turns of a model in its session.", "N", bounds=(1, 1000))
    sub_model: str | None = option(
        None,
        "The model that answers sub-calls, at --base-url where that is given.",
        "MODEL",
        role="sub",
    )
    max_concurrent_subcalls: int = option(
        4, "Maximum sub-calls in flight in one experiment, over all depths.", "N", bounds=(1, 1000)
    )
    task_timeout: float | None = option(
        None,
        "Time after which a task is answered with what there is.",
        "SECONDS",
        bounds=(0.1, 1e6),
    )
    max_errors: int | None = option(
        None, "Cells that may fail in a row before a model has to answer.", "N", bounds=(1, 1000)
    )
