"""Cores of this machine, of which commands are held to some."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


def available_cores() -> int:
    """The number of cores that koderz may run on."""
    return len(_available())


class Cores:
    """The cores of this machine, given out so that commands share as few of them as possible."""

    def __init__(self) -> None:
        self._users: Counter[int] = Counter()

    @contextmanager
    def taken(self, cpus: float) -> Iterator[list[int]]:
        """The `cpus` cores, rounded up, that the fewest commands are held to; for 0 an empty list, which means all."""
        least_used = sorted(_available(), key=lambda core: (self._users[core], core))
        found = sorted(least_used[: math.ceil(cpus)])
        self._users.update(found)
        try:
            yield found
        finally:
            self._users.subtract(found)


def _available() -> set[int]:
    """The cores that koderz may run on; all of the machine where the system knows no others."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else {*range(os.cpu_count() or 1)}
