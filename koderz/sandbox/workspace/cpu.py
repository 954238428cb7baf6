"""The CPU that processes of this machine have used, read from outside."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from koderz.sandbox.workspace import Unseen

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")  # nanoseconds
_IDLE = slice(4, 6)  # of a core's words in /proc/stat: idle, and idle while a disk is waited for


class Counter:
    """The kernel's own count of the CPU of a command's processes, those included that nobody waited for."""

    def __init__(self) -> None:
        self._descriptor = -1

    def open(self, descriptor: int) -> None:
        """By what `kernel.count_cpu` gave."""
        self._descriptor = descriptor

    def read(self) -> int:
        """Nanoseconds; 0 where the kernel lets nobody count."""
        return int.from_bytes(os.read(self._descriptor, 8), "little") if self._descriptor >= 0 else 0

    def close(self) -> None:
        """It is read no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a command at work."""

    process: int
    forks: bool  # whether it may start processes
    core: int  # the only one that it runs on, unless negative
    counter: Counter

    async def cpu(self) -> int:
        """Nanoseconds of a process, or with `forks` of all below its parent. Raises OSError once it is gone."""
        if not self.forks:
            return time.clock_gettime_ns(cpu_clock(self.process))
        return max(_cpu_below(_parent(self.process)), self.counter.read())

    def unseen(self) -> Unseen:
        """See `Unseen`. Raises OSError once it is gone."""
        if not self.forks:
            return Unseen()
        counted = self.counter.read()
        hidden = max(0, counted - _cpu_below(_parent(self.process)))
        return Unseen(hidden, time.monotonic_ns() - _idle(self.core) if self.core >= 0 else 0)


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


def _idle(core: int) -> int:
    """Nanoseconds in which a core had nothing to do, to a tick; 0 where that can't be read."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith(f"cpu{core} "):
                return sum(map(int, line.split()[_IDLE])) * _TICK
    return 0
