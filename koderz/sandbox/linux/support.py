"""The layers that this machine allows, found by trying them.

A kernel's version or a file under /proc says little: container profiles and security modules refuse
what the kernel could do. So each layer is put on a throw-away child, which then has to be refused
what the layer refuses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection

from koderz.sandbox.linux import kernel, landlock, mounts, namespaces, seccomp
from koderz.sandbox.linux.isolation import LANDLOCK, LAYERS, MOUNTS, NAMESPACES, SECCOMP
from koderz.sandbox.linux.readable import Readable


def available(wanted: Collection[str] = LAYERS) -> frozenset[str]:
    """The layers among `wanted` that hold here, with MOUNTS if it does. Call it in a process without threads."""
    if not kernel.LINUX:
        return frozenset()
    held: set[str] = set()
    if NAMESPACES in wanted:
        if _holds(_files_are_gone):
            held |= {NAMESPACES, MOUNTS}
        elif _holds(lambda: namespaces.enter(furnish=None)):
            held.add(NAMESPACES)
    trials = {LANDLOCK: _reads_are_refused, SECCOMP: _forks_are_refused}
    return frozenset(
        held | {layer for layer, trial in trials.items() if layer in wanted and _holds(trial)}
    )


def _holds(trial: Callable[[], object]) -> bool:
    child = os.fork()
    if not child:
        status = 1
        try:
            trial()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def _files_are_gone() -> None:
    namespaces.enter(furnish=lambda: mounts.confine(Readable([], {})))
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
    for steps in (seccomp.shared_steps(), seccomp.candidates_steps()):
        seccomp.Filter(steps).install()
    try:
        child = os.fork()
    except PermissionError:
        return
    if not child:
        os._exit(0)
    raise OSError("seccomp accepted its filter and refuses nothing")
