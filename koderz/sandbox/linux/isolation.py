"""The layers that contain a candidate, and which of them this machine allows, found by trying.

A kernel's version or a file under /proc says little: container profiles and security modules refuse
what the kernel could do. So each layer is put on a throw-away child, which then has to be refused
what the layer refuses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from typing import NoReturn

from koderz.sandbox.linux import kernel, landlock, mounts, namespaces, seccomp

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


def available(wanted: Collection[str] = LAYERS) -> frozenset[str]:
    """Those of `wanted` that hold here, and MOUNTS if it does. To be asked in a process without threads."""
    if not kernel.LINUX:
        return frozenset()
    trials: dict[str, Callable[[], object]] = {
        NAMESPACES: lambda: namespaces.enter(keep=os.dup(0), furnish=None),
        LANDLOCK: _reads_are_refused,
        SECCOMP: _forks_are_refused,
    }
    held = {layer for layer in LAYERS if layer in wanted and _holds(trials[layer])}
    return frozenset(held | {MOUNTS} if NAMESPACES in held and _holds(_files_are_gone) else held)


def _holds(trial: Callable[[], object]) -> bool:
    child = os.fork()
    if not child:
        _try(trial)
    return os.waitpid(child, 0)[1] == 0


def _try(trial: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        trial()
        status = 0
    except OSError:
        status = 2
    finally:
        os._exit(status)


def _files_are_gone() -> None:
    namespaces.enter(keep=os.dup(0), furnish=lambda: mounts.confine([]))
    if os.access(sys.prefix, os.F_OK):
        raise OSError("the kernel accepted the mounts and shows what was there before")


def _reads_are_refused() -> None:
    landlock.restrict([])
    try:
        os.close(os.open(sys.prefix, os.O_RDONLY))
    except PermissionError:
        return
    raise OSError("Landlock accepted its rules and refuses nothing")


def _forks_are_refused() -> None:
    kernel.forgo_privileges()
    seccomp.shared().install()
    seccomp.candidates().install()
    try:
        child = os.fork()
    except PermissionError:
        return
    if not child:
        os._exit(0)
    raise OSError("seccomp accepted its filter and refuses nothing")
