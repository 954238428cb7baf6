"""Says how much CPU its container has used, in nanoseconds, whenever a byte comes in; the container ends with it.

It is the CPU of the container's control group; where that isn't to be seen, of all its processes but this one, with
those that have ended as they were a moment before. Run by whatever python3 the container has.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from pathlib import Path

GROUPS = (("/sys/fs/cgroup/cpu.stat", 1, 1000), ("/sys/fs/cgroup/cpuacct/cpuacct.usage", 0, 1))
OFTEN = 0.01  # seconds between two looks at processes
_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def of_group() -> int | None:
    for path, word, unit in GROUPS:
        with contextlib.suppress(OSError):
            return int(Path(path).read_text().split()[word]) * unit
    return None


def look(used: dict[str, int]) -> None:
    for path in Path("/proc").iterdir():
        if (name := path.name).isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                waited = sum(map(int, (path / "stat").read_text().rpartition(")")[2].split()[13:15]))
                used[name] = time.clock_gettime_ns((~int(name) << 3) | 2) + waited * _TICK


def main() -> None:
    has_group = of_group() is not None
    used: dict[str, int] = {}
    while True:
        while not has_group and not select.select([0], [], [], OFTEN)[0]:
            look(used)
        if not os.read(0, 1):
            sys.exit()
        look(used)
        os.write(1, b"%d\n" % (of_group() or sum(used.values())))


main()
