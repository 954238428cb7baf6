"""Results drawn from worlds whose truth is known: questions about texts, and searches for prompts. All are seeded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from koderz.systems.optimizers.analysis.gains import Gain, claim, gain_of

if TYPE_CHECKING:
    import numpy as np

Passes = Mapping[str, list[bool]]
"""By task, one sample each."""


def passes_in_clusters(
    draws: int, *, clusters: int = 25, size: int = 12, rate: float = 0.5, icc: float = 0.3, uneven: bool = False
) -> Iterator[tuple[Passes, Passes, Mapping[str, str]]]:
    """Two arms that are equally good, on the same tasks, with the cluster of each task.

    Each cluster has a rate of its own for each arm, drawn from a beta distribution, so that outcomes within a cluster
    have that correlation. `uneven`: clusters have 1 to twice as many tasks.
    """
    import numpy as np

    rng = np.random.default_rng(20260131)
    weight = 1 / icc - 1
    for _ in range(draws):
        sizes = rng.integers(1, 2 * size, size=clusters) if uneven else np.full(clusters, size)
        of = {f"T/{n}": f"text {c}" for n, c in enumerate(np.repeat(np.arange(clusters), sizes))}
        arms = []
        for _arm in range(2):
            rates = np.repeat(rng.beta(rate * weight, (1 - rate) * weight, size=clusters), sizes)
            passed = (rng.random(len(rates)) < rates).tolist()
            arms.append({task: [value] for task, value in zip(of, passed, strict=True)})
        yield arms[0], arms[1], of


Searches = list[dict[str, float]]
"""The scores of the winner of each search on the test items."""


def searches_of_equals(
    draws: int, *, seeds: int, items: int = 150, spread: float = 0.05, unchanged: float = 0.0
) -> Iterator[tuple[Searches, Searches, Searches]]:
    """The initial prompt, and two optimizers that find prompts of the same distribution, as good as it on average.

    `spread` is the standard deviation of prompts' true rates, `unchanged` the share of searches that find none and so
    have the initial prompt's own scores.
    """
    import numpy as np

    rng = np.random.default_rng(20260131)
    names = [f"item {n}" for n in range(items)]
    for _ in range(draws):
        easiness = 0.1 + 0.8 * rng.beta(2, 2, size=items)
        initial = _scores(names, rng, easiness)
        arms = []
        for _arm in range(2):
            found = [_scores(names, rng, easiness + spread * rng.standard_normal()) for _ in range(seeds)]
            arms.append([initial if rng.random() < unchanged else scores for scores in found])
        yield [initial], arms[0], arms[1]


def said(found: Gain | None) -> str:
    """What is claimed of an optimizer beside the initial prompt, or beside another one, by this gain alone."""
    assert found
    return claim(found, found.p, found.together(1, found.p), "helps", "hurts")


def false_claims(draws: int, *, seeds: int, spread: float = 0.05, unchanged: float = 0.0) -> tuple[float, float]:
    """How often `helps` or `hurts`, and `beats`, are claimed where neither is so, as fractions."""
    claims = [
        (said(gain_of(initial, a, is_fixed=True)), said(gain_of(b, a)))
        for initial, a, b in searches_of_equals(draws, seeds=seeds, spread=spread, unchanged=unchanged)
    ]
    return fmean(helps != "no evidence" for helps, _ in claims), fmean(beats != "no evidence" for _, beats in claims)


def _scores(names: list[str], rng: np.random.Generator, rates: np.ndarray) -> dict[str, float]:
    return dict(zip(names, (rng.random(len(names)) < rates).astype(float).tolist(), strict=True))
