"""The process that candidates are forked from: warm, contained, and ignorant.

It is forked from its judge before that has anything to hide, or started as an interpreter of its own, so its memory
has never held a test, a key or a program: what a candidate is to run reaches the candidate alone, after the fork.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from koderz.sandbox.judge import candidate
from koderz.sandbox.linux import (
    isolation,
    kernel,
    landlock,
    limits,
    mounts,
    namespaces,
    seccomp,
    support,
)
from koderz.sandbox.linux.readable import Readable, readable

# CPU seconds, bytes of memory; the candidate's socket comes with it, maybe its stdin
ORDER = struct.Struct("<dQ")
ENDING = struct.Struct("<id?")  # wait status, CPU seconds, out of CPU?
END = b"."
USED = b"?"  # asks for the CPU seconds that the candidate has used
SECONDS = struct.Struct("<d")
# of fcntl: no seal may be added, and the file neither shrink, grow nor be written
_ADD_SEALS, _SEAL_ALL = 1033, 0b1111
YIELDING_SECONDS = 0.2  # of which a candidate used half, so that it lets others go first
YIELDING = 10  # its priority then, as `nice` counts

_PRELOADED = """
    _sitebuiltins abc array atexit bisect cmath collections contextlib copy ctypes dataclasses datetime decimal enum
    fractions functools hashlib heapq itertools math operator queue random re statistics string textwrap threading
    time typing
"""


class Confinement(NamedTuple):
    """Confinement of every candidate of this zygote."""

    layers: frozenset[str]
    addresses: int  # bytes of address space the warm interpreter takes
    filter: seccomp.Filter | None  # what each candidate binds itself to
    serve: Callable[[int], NoReturn]  # what each is, by the descriptor of its socket
    yields: bool = False  # whether one that takes long lets others go first


class Setup(NamedTuple):
    """First message from the judge to a zygote, one line of JSON."""

    layers: list[str]  # wanted
    packages: dict[str, str]  # beyond the standard library: name and folder
    # source that defines `serve(descriptor)`, where candidates are no programs that answer calls
    guest: str = ""
    yields: bool = False  # whether a candidate that takes long lets others go first


def main(arguments: Sequence[str]) -> NoReturn:
    """`arguments`: the descriptor of the socket to the judge."""
    control = socket.socket(fileno=int(arguments[0]))
    with control.makefile("rb") as line:
        setup = Setup(*json.loads(line.readline()))
    _forget_surroundings()
    preload(setup.packages)
    cell = _contain(setup)
    gc.freeze()  # no collection in a candidate looks at, and so copies, what was there before it
    control.sendall(json.dumps(sorted(cell.layers)).encode() + b"\n")
    while True:
        _one_candidate(control, cell)


def forked(run: Callable[[socket.socket], NoReturn]) -> tuple[socket.socket, int]:
    """The socket to a child of this process that is what `run` does with the other end, and its id."""
    control, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        control.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):  # by which its parent is spoken to
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        run(theirs)
    theirs.close()
    return control, child


def sealed_file(data: bytes) -> int:
    """The descriptor of a file in memory with these bytes, at its beginning. Nobody can change it."""
    import fcntl

    descriptor = os.memfd_create("stdin", os.MFD_ALLOW_SEALING)
    sent = 0
    while sent < len(data):
        sent += os.write(descriptor, data[sent : sent + (1 << 30)])
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_ALL)
    return descriptor


def _forget_surroundings() -> None:
    os.environ.clear()
    sys.dont_write_bytecode = True
    sys.argv = [""]
    for name in [name for name in sys.modules if name.partition(".")[0] == "koderz"]:
        del sys.modules[name]


def preload(packages: Mapping[str, str] = MappingProxyType({})) -> None:
    """Imports what programs use most, so that each finds it there.

    `random` and `threading` would run code after every fork, to part the child from a parent that
    goes on using them. This one doesn't, and their code is half the price of a candidate. So every
    candidate draws the same random numbers too, as a verdict that can be repeated needs.
    """
    ordinary = os.register_at_fork
    os.register_at_fork = lambda **_: None
    for name in _PRELOADED.split():
        importlib.import_module(name)
    for name, folder in packages.items():
        _import_from(name, folder)
    os.register_at_fork = ordinary
    sys.modules["random"].seed(0)


def _import_from(name: str, folder: str) -> None:
    """A package, and nothing else of the folder that it lies in."""
    spec = importlib.util.spec_from_file_location(
        name, f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _contain(setup: Setup) -> Confinement:
    """Puts on this process every layer that holds; a part of seccomp comes last, on each candidate."""
    layers = support.available(setup.layers)
    addresses = limits.address_space()
    kernel.die_with_parent()
    tree = readable(setup.packages.values()) if layers else Readable([], {})
    if isolation.NAMESPACES in layers:
        furnish = functools.partial(mounts.confine, tree) if isolation.MOUNTS in layers else None
        namespaces.enter(furnish)
    elif kernel.LINUX:
        kernel.drop_capabilities()
    os.chdir("/")
    os.dup2(0, 2)  # what candidates write there directly goes nowhere
    kernel.hide_memory()  # candidates too: a fork inherits it
    limits.share(own_user=isolation.NAMESPACES in layers)
    if isolation.LANDLOCK in layers:
        landlock.restrict(tree.paths)
    return Confinement(layers, addresses, _filter(layers), _serving(setup.guest), setup.yields)


def _serving(guest: str) -> Callable[[int], NoReturn]:
    printed = candidate.prepare()
    if not guest:
        return functools.partial(candidate.serve, printed)
    module: dict[str, Any] = {"__name__": "guest"}
    exec(compile(guest, "<guest>", "exec"), module)  # noqa: S102 koderz' own
    serve: Callable[[int], NoReturn] = module["serve"]
    return serve


def _filter(layers: frozenset[str]) -> seccomp.Filter | None:
    if isolation.SECCOMP not in layers:
        return None
    kernel.forgo_privileges()
    own = seccomp.Filter(seccomp.candidates_steps())
    seccomp.Filter(seccomp.shared_steps()).install()
    return own


def _one_candidate(control: socket.socket, cell: Confinement) -> None:
    """Forks when the judge says so, watches until the judge has done, and tells how it ended."""
    order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 2)
    if not order:
        os._exit(0)
    cpu, memory = ORDER.unpack(order)
    if cell.filter:
        limits.bequeath_addresses(cell.addresses + memory)
    child = os.fork()
    if not child:
        for stdin in descriptors[1:]:
            os.dup2(stdin, 0)
            os.close(stdin)
        _become_candidate(control, descriptors[0], cell, cpu, memory)
    for descriptor in descriptors:
        os.close(descriptor)
    overdue = _watch(child, control, cpu, yields=cell.yields)
    control.sendall(_ended(child, cell, overdue=overdue))


def _become_candidate(
    control: socket.socket, descriptor: int, cell: Confinement, cpu: float, memory: int
) -> NoReturn:
    """The little that is left to do after the fork: each page of memory it touches is copied."""
    try:
        control.close()
        if isolation.NAMESPACES not in cell.layers:
            kernel.die_with_parent()
        if cell.filter:
            cell.filter.install()
        else:
            os.setsid()  # so that what it starts can be ended with it
            limits.bind(cpu, cell.addresses + memory)
        cell.serve(descriptor)
    finally:
        os._exit(1)


def _watch(child: int, control: socket.socket, cpu: float, *, yields: bool) -> bool:
    """Waits until the judge has done; ends a candidate that uses up its CPU first, and says whether it did.

    One that `yields` runs at a lower priority after a while.
    """
    judge = select.poll()
    judge.register(control, select.POLLIN)
    left, overdue = cpu, False
    while True:
        seconds = min(left, YIELDING_SECONDS) if yields else left
        if judge.poll(None if overdue else max(1.0, 1000 * seconds)):
            if control.recv(1) != USED:
                return overdue
            control.sendall(SECONDS.pack(limits.cpu_seconds(child)))
        left = cpu - limits.cpu_seconds(child)
        if yields and cpu - left >= YIELDING_SECONDS / 2:
            yields = False
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, child, YIELDING)
        if left <= 0 and not overdue:
            os.kill(child, signal.SIGKILL)
            overdue = True


def _ended(child: int, cell: Confinement, *, overdue: bool) -> bytes:
    os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    if not cell.filter:  # it may have started others
        if isolation.NAMESPACES in cell.layers:
            namespaces.sweep()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
    return ENDING.pack(status, usage.ru_utime + usage.ru_stime, overdue)
