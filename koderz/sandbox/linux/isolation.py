"""The layers that contain a candidate, by name, and what they come to."""

from __future__ import annotations

from collections.abc import Collection

NAMESPACES, LANDLOCK, SECCOMP = "namespaces", "landlock", "seccomp"
LAYERS = (NAMESPACES, LANDLOCK, SECCOMP)
"""From the outermost in. The last two are the base, without which nothing counts as contained."""

MOUNTS = "mounts"
"""A part of the namespaces that some systems refuse though they allow the rest: only readable files are there."""

UNCONTAINED = "uncontained"


def label(layers: Collection[str]) -> str:
    """The isolation level as users and records see it, e.g. `landlock+seccomp`."""
    if not contained(layers):
        return UNCONTAINED
    names = {layer: layer for layer in LAYERS}
    if MOUNTS not in layers:
        names[NAMESPACES] = f"{NAMESPACES} without {MOUNTS}"
    return "+".join(names[layer] for layer in LAYERS if layer in layers)


def contained(layers: Collection[str]) -> bool:
    return {LANDLOCK, SECCOMP} <= set(layers)
