"""The CPU that processes of this machine have used, read from outside."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")  # nanoseconds


async def cpu_used(process: int, *, forks: bool) -> int:
    """Nanoseconds of a process, or with `forks` of all below its parent. Raises OSError once it is gone."""
    return _cpu_below(_parent(process)) if forks else time.clock_gettime_ns(cpu_clock(process))


def cpu_clock(process: int) -> int:
    """The kernel's name for the clock of a process, all its threads together."""
    return (~process << 3) | 2


def _parent(process: int) -> int:
    return int(_stat(process)[1])


def _cpu_below(process: int) -> int:
    """Of all below a process; of those that were waited for, to a tick of the kernel's, usually 10 ms."""
    total = 0
    with contextlib.suppress(OSError):  # it has ended meanwhile, and its parent has its time
        total = sum(map(int, _stat(process)[13:15])) * _TICK
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                with contextlib.suppress(OSError):
                    total += time.clock_gettime_ns(cpu_clock(child))
                total += _cpu_below(child)
    return total


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: from the state on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
