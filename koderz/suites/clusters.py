"""Clusters of tasks or items that have passages, texts or the like in common, as `tracker.clusters` takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

_T = TypeVar("_T")


def linked(shares: Mapping[_T, Collection[str]]) -> dict[_T, str]:
    """The cluster of each thing that has a label in common with another one, directly or by way of third ones.

    `shares` are the labels of each; a cluster is named by one of its labels. Things that share nothing are left out.
    """
    parents: dict[str, str] = {}

    def root(label: str) -> str:
        while (parent := parents.setdefault(label, label)) != label:
            parents[label] = parents[parent]
            label = parent
        return label

    for labels in shares.values():
        first, *others = map(root, labels) if labels else [""]
        for other in others:
            parents[root(other)] = root(first)
    found = {thing: root(next(iter(labels))) for thing, labels in shares.items() if labels}
    sizes = Counter(found.values())
    return {thing: cluster for thing, cluster in found.items() if sizes[cluster] > 1}
