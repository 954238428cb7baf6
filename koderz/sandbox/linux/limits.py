"""Limits for one candidate's use of the machine, set before its first line runs."""

from __future__ import annotations

import math
import os
import resource
import time

from koderz.sandbox.linux import kernel

OPEN_FILES = 64
# threads count too; only where a user namespace keeps the count from being the whole user's
PROCESSES = 256


def share(*, own_user: bool) -> None:
    """Sets the limits that all candidates share, on the zygote, from which they are inherited."""
    cap(resource.RLIMIT_FSIZE, 0)
    cap(resource.RLIMIT_CORE, 0)
    cap(resource.RLIMIT_NOFILE, OPEN_FILES)
    if kernel.LINUX:
        cap(resource.RLIMIT_MEMLOCK, 0)
        cap(resource.RLIMIT_MSGQUEUE, 0)
    if own_user:
        cap(resource.RLIMIT_NPROC, PROCESSES)


def bequeath_addresses(size: int) -> None:
    """Limits the address space in bytes of candidates forked from now on, at most to that of this process.

    They can't raise it: seccomp.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        size = min(size, hard)
    if soft != size:
        resource.setrlimit(resource.RLIMIT_AS, (size, hard))


def bind(cpu: float, addresses: int) -> None:
    """Limits the calling process permanently, if no seccomp keeps it from raising a limit."""
    seconds = math.ceil(cpu) + 1  # the zygote watches more finely; this is what holds if it can't
    cap(resource.RLIMIT_CPU, seconds, seconds + 1)
    if kernel.LINUX:
        cap(resource.RLIMIT_AS, addresses)


def address_space() -> int:
    """The bytes of addresses that this process has mapped; 0 if unknown."""
    if not kernel.LINUX:
        return 0
    file = os.open("/proc/self/statm", os.O_RDONLY)
    pages = int(os.read(file, 100).split()[0])
    os.close(file)
    return pages * resource.getpagesize()


def cpu_seconds(process: int) -> float:
    """The CPU seconds of another process with all its threads; 0 if unknown."""
    if not kernel.LINUX:
        return 0.0
    return time.clock_gettime((~process << 3) | 2)  # the kernel's name for a process's CPU clock


def cap(kind: int, soft: int, hard: int | None = None) -> None:
    """Lowers a limit, never above the one that the process already has."""
    ceiling = resource.getrlimit(kind)[1]
    wanted = soft if hard is None else hard
    top = wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)
    resource.setrlimit(kind, (min(soft, top), top))
