"""How much of the machine one candidate may use, set before its first line runs."""

from __future__ import annotations

import math
import os
import resource
import time

from koderz.sandbox.linux import kernel

OPEN_FILES = 64
PROCESSES = 256  # threads count too; only where a user namespace keeps the count from being the whole user's


def share(*, own_user: bool) -> None:
    """The limits that are every candidate's alike, set on the zygote, from which they are inherited."""
    cap(resource.RLIMIT_FSIZE, 0)
    cap(resource.RLIMIT_CORE, 0)
    cap(resource.RLIMIT_NOFILE, OPEN_FILES)
    if kernel.LINUX:
        cap(resource.RLIMIT_MEMLOCK, 0)
        cap(resource.RLIMIT_MSGQUEUE, 0)
    if own_user:
        cap(resource.RLIMIT_NPROC, PROCESSES)


def bequeath_addresses(size: int) -> None:
    """Bytes of address space that candidates forked from now on may map, or as many as this process was given.

    They can't raise it: seccomp.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
    if soft != size:
        resource.setrlimit(resource.RLIMIT_AS, (size, hard))


def bind(cpu: float, addresses: int) -> None:
    """Binds the calling process for good, where no seccomp keeps it from raising a limit."""
    seconds = math.ceil(cpu) + 1  # the zygote watches more finely; this is what holds if it can't
    cap(resource.RLIMIT_CPU, seconds, seconds + 1)
    if kernel.LINUX:
        cap(resource.RLIMIT_AS, addresses)


def address_space() -> int:
    """Bytes of addresses this process has mapped; 0 where that can't be told."""
    if not kernel.LINUX:
        return 0
    file = os.open("/proc/self/statm", os.O_RDONLY)
    pages = int(os.read(file, 100).split()[0])
    os.close(file)
    return pages * resource.getpagesize()


def cpu_seconds(process: int) -> float:
    """CPU that another process has used, all its threads together. 0 where the system can't tell."""
    if not kernel.LINUX:
        return 0.0
    return time.clock_gettime((~process << 3) | 2)  # the kernel's name for a process's CPU clock


def cap(kind: int, soft: int, hard: int | None = None) -> None:
    """Lowers a limit; never asks for more than the process was given."""
    ceiling = resource.getrlimit(kind)[1]
    wanted = soft if hard is None else hard
    top = wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)
    resource.setrlimit(kind, (min(soft, top), top))
