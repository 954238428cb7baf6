"""Sandboxes whose CPU limits mean the same on every machine.

A limit of CPU seconds is meant for some machine. Programs that cost the same work everywhere, and
whose cost on that machine is known, say how far to stretch the limit on this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from koderz.errors import Fault
from koderz.sandbox import SANDBOXES, Job, Sandbox, open_sandbox
from koderz.settings.options import as_words
from koderz.settings.paths import cache_folder
from koderz.settings.schema import Settings
from koderz_tracker.files import write_whole

LONGEST = 10.0
"""The largest factor; above it, something other than the machine was measured.

The least is 1: a fast machine shrinks no limit, since nobody expects less time than was stated.
"""

ROUNDS = 2  # the faster counts: whatever else a machine does only ever adds

YARDSTICK = (
    Job(
        """
import math
def poly(xs, x):
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])
def find_zero(xs):
    begin, end = -1., 1.
    while poly(xs, begin) * poly(xs, end) > 0:
        begin *= 2.0
        end *= 2.0
    while end - begin > 1e-10:
        center = (begin + end) / 2.0
        if poly(xs, center) * poly(xs, begin) > 0:
            begin = center
        else:
            end = center
    return begin
""",
        """
import copy, math, random
def poly(xs, x):
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])
def check(candidate):
    rng = random.Random(42)
    for _ in range(100):
        coeffs = [rng.randint(-10, 10) or 1 for _ in range(2 * rng.randint(1, 4))]
        assert math.fabs(poly(coeffs, candidate(copy.deepcopy(coeffs)))) < 1e-4
""",
        "find_zero",
    ),
    Job(
        """
def fizz_buzz(n):
    ns = []
    for i in range(n):
        if i % 11 == 0 or i % 13 == 0:
            ns.append(i)
    s = ''.join(list(map(str, ns)))
    ans = 0
    for c in s:
        ans += (c == '7')
    return ans
""",
        """
def check(candidate):
    for n, count in ((50, 0), (78, 2), (79, 3), (100, 3), (200, 6), (4000, 192), (10000, 639), (100000, 8026)):
        assert candidate(n) == count
""",
        "fizz_buzz",
    ),
    Job(
        """
def get_max_triples(n):
    A = [i*i - i + 1 for i in range(1,n+1)]
    ans = []
    for i in range(n):
        for j in range(i+1,n):
            for k in range(j+1,n):
                if (A[i]+A[j]+A[k])%3 == 0:
                    ans += [(A[i],A[j],A[k])]
    return len(ans)
""",
        """
def check(candidate):
    for n, triples in ((5, 1), (6, 4), (10, 36), (100, 53361)):
        assert candidate(n) == triples
""",
        "get_max_triples",
    ),
)
"""The reference solutions of HumanEval/32, 36 and 147, which compute for a short while."""

NOMINAL = 0.07
"""CPU seconds that they take together where limits are meant for: Python 3.11 on one core of a server of 2023,
with a quarter to spare, so that no ordinary machine's limits are touched."""

_EDITION = 1  # of the two above: what was measured by others doesn't count


@asynccontextmanager
async def calibrated_sandbox(
    name: str,
    *,
    judges: int,
    own_programs: bool = False,
    memory_mb: int = 1024,
    settings: Settings | None = None,
    yields: bool = False,
) -> AsyncIterator[Sandbox]:
    """Opens a sandbox by name, calibrated, see `open_sandbox`. The first on a machine takes half a second more."""
    async with open_sandbox(
        name,
        judges=judges,
        own_programs=own_programs,
        memory_mb=memory_mb,
        settings=settings,
        yields=yields,
    ) as sandbox:
        if sandbox.is_calibrated:
            # the speed may depend on the options of the sandbox
            options = SANDBOXES.options_in(name, settings)
            sandbox.speed = await _speed(sandbox, f"{name} {as_words(options) if options else ''}")
        yield sandbox


async def _speed(sandbox: Sandbox, kind: str) -> float:
    cache = MachineCache(cache_folder(), "speed", _EDITION, kind)
    known = cache.read()
    if isinstance(known, float):
        return known
    measured = await calibrate(sandbox, YARDSTICK, nominal=NOMINAL)
    if measured is None:
        return 1.0
    cache.write(measured)
    return measured


async def calibrate(sandbox: Sandbox, jobs: Collection[Job], *, nominal: float) -> float | None:
    """The factor by which limits are stretched, from 1 to `LONGEST`; None if `jobs` don't pass.

    `nominal` is the CPU, in seconds, that all of `jobs` takes on the machine that limits are meant for.
    """
    try:
        outcomes = await asyncio.gather(
            *(sandbox.judge_anew(job) for job in jobs for _ in range(ROUNDS))
        )
    except Fault:
        return None
    if any(outcome.verdict != "passed" for outcome in outcomes):
        return None
    spent = sum(
        min(each.cpu for each in outcomes[at : at + ROUNDS])
        for at in range(0, len(outcomes), ROUNDS)
    )
    return round(min(LONGEST, max(1.0, spent / nominal)), 2)


class MachineCache:
    """A fact about this machine, cached for as long as the machine, its Python and `about` stay the same.

    It is a cache: what can't be read or written is found out again.
    """

    def __init__(self, folder: Path, name: str, *about: object) -> None:
        digest = hashlib.blake2b(digest_size=8)
        for part in (
            platform.machine(),
            platform.python_version(),
            _processor(),
            os.cpu_count(),
            *about,
        ):
            digest.update(repr(part).encode(errors="backslashreplace"))
        self.file = folder / f"{name}-{digest.hexdigest()}.json"

    def read(self) -> Any:
        """The cached value, or None."""
        try:
            return json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, value: object) -> None:
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, [json.dumps(value).encode()], durable=False)


def _processor() -> str:
    """The processor's name, if the system tells it."""
    try:
        with Path("/proc/cpuinfo").open(errors="replace") as lines:
            return next((line for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
