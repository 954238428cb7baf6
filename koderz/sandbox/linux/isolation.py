"""The layers that contain a candidate, by name, and the isolation level that they add up to."""

from __future__ import annotations

from collections.abc import Collection

NAMESPACES, LANDLOCK, SECCOMP = "namespaces", "landlock", "seccomp"
LAYERS = (NAMESPACES, LANDLOCK, SECCOMP)
"""The layers from the outermost in. Without the last two, nothing counts as contained."""

MOUNTS = "mounts"
"""A part of the namespaces that some systems refuse alone: a file tree with readable files only."""

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
