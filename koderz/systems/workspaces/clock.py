"""Says how much CPU its container has used, in nanoseconds, whenever a byte comes in; the container ends with it.

It is the CPU of the container's control group; where that isn't to be seen, of all its processes but this one, with
those that have ended as they were a moment before. At a socket whose path it is given it hands out sockets of the
container's network. Run by whatever python3 the container has.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
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
                waited = sum(
                    map(int, (path / "stat").read_text().rpartition(")")[2].split()[13:15])
                )
                used[name] = time.clock_gettime_ns((~int(name) << 3) | 2) + waited * _TICK


def hand_out(door: socket.socket) -> bool:
    """Answers who asks for a socket of this network; false where nobody will any more."""
    try:
        if not door.recv(1):
            return False
        with socket.socket() as made:
            socket.send_fds(door, [b"."], [made.fileno()])
    except OSError:
        return False
    return True


def main(path: str = "") -> None:
    has_group = of_group() is not None
    used: dict[str, int] = {}
    asking: list[int | socket.socket] = [0]
    if path:
        asking.append(door := socket.socket(socket.AF_UNIX))
        door.connect(path)
    while True:
        ready = select.select(asking, [], [], None if has_group else OFTEN)[0]
        if not has_group:
            look(used)
        for each in ready:
            if isinstance(each, socket.socket):
                if not hand_out(each):
                    asking.remove(each)
            elif not os.read(0, 1):
                sys.exit()
            else:
                os.write(1, b"%d\n" % (of_group() or sum(used.values())))


main(*sys.argv[1:])
