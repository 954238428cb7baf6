"""The process that candidates are forked from: warm, contained, and ignorant.

It is started as an interpreter of its own, so its memory has never held a test, a key or a program:
what a candidate is to run reaches the candidate alone, after the fork. `launch` starts it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from koderz.sandbox import candidate, kernel, landlock, limits, namespaces, reading, rungs, seccomp

ORDER = struct.Struct("<dQ")  # CPU seconds, bytes of memory; the candidate's socket comes with it
ENDING = struct.Struct("<idQ?")  # wait status, CPU seconds, largest resident bytes, out of CPU?
END = b"."

_SOCKET = 3  # the candidate's only descriptor beside the standard three
_PRELOADED = """
    abc array bisect cmath collections contextlib copy ctypes dataclasses datetime decimal enum fractions
    functools hashlib heapq itertools math operator queue random re statistics string textwrap threading
    time typing
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """What holds every candidate of this zygote."""

    layers: frozenset[str]
    addresses: int  # bytes of address space the warm interpreter takes
    filter: seccomp.Filter | None  # what each candidate binds itself to
    printed: candidate.Printed


def main(arguments: Sequence[str]) -> NoReturn:
    """`arguments`: the control descriptor, the layers wanted, `name=folder` of each package allowed."""
    control = socket.socket(fileno=int(arguments[0]))
    packages = {name: Path(folder) for name, _, folder in (part.partition("=") for part in arguments[2:])}
    _forget_surroundings()
    _preload(packages)
    cell = _contain(control, arguments[1].split(","), packages)
    gc.collect()
    gc.freeze()  # no collection in a candidate looks at, and so copies, what was there before it
    control.sendall(json.dumps(sorted(cell.layers)).encode() + b"\n")
    while True:
        _one_candidate(control, cell)


def _forget_surroundings() -> None:
    os.environ.clear()
    sys.argv = [""]
    for name in [name for name in sys.modules if name.partition(".")[0] == "koderz"]:
        del sys.modules[name]


def _preload(packages: Mapping[str, Path]) -> None:
    """Imports what programs use most, so that each finds it there."""
    sys.meta_path.append(_Declared(packages))
    for name in (*_PRELOADED.split(), *packages):
        importlib.import_module(name)


class _Declared(importlib.abc.MetaPathFinder):
    """Finds the declared packages, and nothing else of the folder that they lie in."""

    def __init__(self, packages: Mapping[str, Path]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = self._packages.get(fullname)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


def _contain(control: socket.socket, wanted: Sequence[str], packages: Mapping[str, Path]) -> Cell:
    """Puts on this process every layer that holds; seccomp comes last, on each candidate."""
    layers = rungs.available(wanted)
    addresses = limits.address_space()
    paths = [*reading.readable(packages.values())] if rungs.LANDLOCK in layers else []
    kernel.die_with_parent()
    if rungs.NAMESPACES in layers:
        namespaces.enter(keep=control.fileno())
    elif kernel.LINUX:
        kernel.drop_capabilities()
    os.chdir("/")
    kernel.hide_memory()  # candidates too: a fork inherits it
    limits.share(own_user=rungs.NAMESPACES in layers)
    if rungs.LANDLOCK in layers:
        landlock.restrict(paths)
    return Cell(layers, addresses, _filter(layers), candidate.prepare(_SOCKET))


def _filter(layers: frozenset[str]) -> seccomp.Filter | None:
    if rungs.SECCOMP not in layers:
        return None
    kernel.forgo_privileges()
    own = seccomp.candidates()
    seccomp.shared().install()
    return own


def _one_candidate(control: socket.socket, cell: Cell) -> None:
    """Forks when the judge says so, watches until the judge has done, and tells how it ended."""
    order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 1)
    if not order:
        os._exit(0)
    cpu, memory = ORDER.unpack(order)
    child = os.fork()
    if not child:
        _become_candidate(descriptors[0], cell, cpu, memory)
    os.close(descriptors[0])
    overdue = _watch(child, control, cpu)
    control.recv(len(END))
    control.sendall(_ended(child, cell, overdue=overdue))


def _become_candidate(descriptor: int, cell: Cell, cpu: float, memory: int) -> NoReturn:
    try:
        os.dup2(descriptor, _SOCKET)
        os.closerange(_SOCKET + 1, 256)
        if rungs.NAMESPACES not in cell.layers:
            kernel.die_with_parent()
        limits.apply(cpu, cell.addresses + memory)
        if cell.filter:
            cell.filter.install()
        else:
            os.setsid()  # so that what it starts can be ended with it
        candidate.serve(cell.printed)
    finally:
        os._exit(1)


def _watch(child: int, control: socket.socket, cpu: float) -> bool:
    """Waits for the judge; ends a candidate that uses up its CPU first, and says whether it did."""
    judge = select.poll()
    judge.register(control, select.POLLIN)
    while not judge.poll(max(1.0, 1000 * (cpu - limits.cpu_seconds(child)))):
        if limits.cpu_seconds(child) >= cpu:
            os.kill(child, signal.SIGKILL)
            return True
    return False


def _ended(child: int, cell: Cell, *, overdue: bool) -> bytes:
    if rungs.SECCOMP not in cell.layers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    if rungs.NAMESPACES in cell.layers:
        namespaces.sweep()
    scale = 1024 if kernel.LINUX else 1
    return ENDING.pack(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale, overdue)
