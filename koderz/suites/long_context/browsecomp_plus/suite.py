"""The suite `browsecomp-plus`, and `research-generated`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from koderz.errors import KoderzError
from koderz.suites.long_context.browsecomp_plus.documents import Sought
from koderz.suites.long_context.browsecomp_plus.generated import LEAST, GeneratedResearch
from koderz.suites.long_context.browsecomp_plus.options import ResearchOptions
from koderz.suites.long_context.browsecomp_plus.scoring import metrics_of
from koderz.suites.long_context.browsecomp_plus.simulated import PLAYER
from koderz.suites.long_context.contexts import MODES, NEEDS, LongContextSuite, Recipe
from koderz.types import Measure, Task

_MEASURES = (
    Measure("score", "higher", "share", two_valued=True),
    Measure("exact_match", "higher", "share", two_valued=True),
    Measure("citation_precision", "higher", "share"),
    Measure("citation_recall", "higher", "share"),
)
_GENERATED = 100  # documents


def browsecomp_plus(dataset: Path | None, options: ResearchOptions, *, seed: int = 0) -> LongContextSuite:
    """BrowseComp-Plus' encrypted rows (--dataset), or generated questions about documents of a made-up world."""
    if dataset is None:
        return _generated(options, seed)
    raise KoderzError("browsecomp-plus has generated questions only, so far; leave --dataset out")


browsecomp_plus.modes = MODES  # type: ignore[attr-defined]


def _generated(options: ResearchOptions, seed: int) -> LongContextSuite:
    count = options.documents or _GENERATED
    if count < LEAST:
        raise KoderzError(f"--documents: a made-up world has {LEAST} documents or more, not {count}")
    recipes = [GeneratedResearch(seed, count, number) for number in range(options.questions)]
    tasks: list[Task[Recipe]] = [
        Task(
            f"research-generated/{recipe.number}",
            payload=recipe,
            needs=NEEDS,
            digest=recipe.digest,
            groups={"documents": str(count), "hops": str(recipe.hops)},
        )
        for recipe in recipes
    ]
    source = f"generated: questions of 2 to 4 hops about {count} documents of a made-up world, seed {seed}"
    return LongContextSuite("research-generated", source, tasks, _exact_match, PLAYER, _MEASURES)


def _exact_match(_task: Task[Recipe], sought: Sought, reply: str) -> tuple[float, Mapping[str, float]]:
    metrics = metrics_of(sought, reply)
    return metrics["exact_match"], metrics
