"""The options of the suite `browsecomp-plus`."""

from __future__ import annotations

from dataclasses import dataclass

from koderz.settings.options import option


@dataclass(frozen=True, slots=True)
class ResearchOptions:
    """Which documents a question is asked about, and what is kept of them."""

    documents: int | None = option(
        None, "Documents of a question. Default: 1000 of the corpus, 100 generated ones.", "N", bounds=(1, 1_000_000)
    )
    questions: int = option(20, "Generated questions.", "N", bounds=(1, 100_000))
