"""The options of the suite `browsecomp-plus`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koderz.settings.options import option
from koderz.suites.options import cluster_column


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
    corpus: Path | None = option(None, "The documents that questions are filled up from, as published.", "PATH")
    documents: int | None = option(
        None,
        "Documents of a question. Default: 1000 with --corpus, else those of its row; 100 generated ones.",
        "N",
        bounds=(1, 1_000_000),
    )
    questions: int = option(20, "Generated questions.", "N", bounds=(1, 100_000))
    judge_model: str | None = option(
        None, "The model that judges answers. Default: none, and they have to match exactly.", "MODEL", role="judge"
    )
    keep_private_text: bool = option(
        False, "Record questions, documents, replies and cells as they are, not encrypted and by their digests."
    )
    cluster_column: str | None = cluster_column()
