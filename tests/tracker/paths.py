"""Simulated comparisons: differences of two models on drawn tasks, and the evidence after each, for many at once."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koderz_tracker.sequential import bets

Floats = NDArray[Any]
AT_ONCE = 1000


def parting(parts: float, difference: float, tasks: int, paths: int, seed: int = 0) -> Iterator[Floats]:
    """Differences with one sample a task, where a share of tasks parts and B is better by a difference of rates."""
    random = np.random.default_rng(seed)
    for _ in range(0, paths, AT_ONCE):
        drawn = random.random((AT_ONCE, tasks))
        yield (drawn < (parts + difference) / 2) * 1.0 - (drawn > 1 - (parts - difference) / 2)


def sampled(rate: float, difference: float, samples: int, shared: float, tasks: int, paths: int) -> Iterator[Floats]:
    """Differences of means of samples, of models whose chances on a task have a normal factor of difficulty in common.

    `shared` is the variance of that factor; the rest is each sample's own luck. B's rate is higher by `difference`.
    """
    random, normal = np.random.default_rng(1), NormalDist()
    for _ in range(0, paths, AT_ONCE):
        difficulty = random.standard_normal((AT_ONCE, tasks, 1)) * shared**0.5
        means = []
        for own in (rate, rate + difference):
            luck = random.standard_normal((AT_ONCE, tasks, samples)) * (1 - shared) ** 0.5
            means.append((difficulty + luck < normal.inv_cdf(own)).mean(axis=2))
        yield means[1] - means[0]


def most_evidence(differences: Floats, mean: float = 0.0) -> Floats:
    """The largest evidence against a mean that each path has after any of its tasks."""
    stakes, log_weights = bets()
    signed = np.concatenate((stakes / (1 + mean), -stakes / (1 - mean)))
    values, places = np.unique(differences, return_inverse=True)
    factors = 1 + np.multiply.outer(values - mean, signed)
    wealth = np.tile(np.exp(log_weights), (len(differences), 1))
    most: Floats = wealth.sum(axis=1)
    for column in places.reshape(differences.shape).T:
        wealth *= factors[column]
        np.maximum(most, wealth.sum(axis=1), out=most)
    return most
