"""What this machine's seconds are worth.

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
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from koderz.errors import Fault
from koderz.sandbox import Job, JobResult
from tracker.files import write_whole

LONGEST = 10.0
"""Beyond this it isn't the machine that was measured. Below 1 no limit is shrunk: nobody expects to have less
time than was stated because of a fast machine."""

ROUNDS = 2  # the faster counts: whatever else a machine does only ever adds


@runtime_checkable
class Scaled(Protocol):
    """A sandbox whose limits of CPU are `speed` times what a job states, and that measures each time it is asked."""

    speed: float

    async def judge_anew(self, job: Job) -> JobResult: ...


async def calibrate(sandbox: Scaled, jobs: Collection[Job], *, nominal: float) -> float | None:
    """By how much limits are to be stretched, from 1 to `LONGEST`; None where `jobs` don't pass.

    `nominal` is the CPU, in seconds, that all of `jobs` takes on the machine that limits are meant for.
    """
    try:
        outcomes = await asyncio.gather(*(sandbox.judge_anew(job) for job in jobs for _ in range(ROUNDS)))
    except Fault:
        return None
    if any(outcome.verdict != "passed" for outcome in outcomes):
        return None
    spent = sum(min(each.cpu for each in outcomes[at : at + ROUNDS]) for at in range(0, len(outcomes), ROUNDS))
    return round(min(LONGEST, max(1.0, spent / nominal)), 2)


class MachineCache:
    """What was found out on this machine, and holds as long as it, its Python and `about` stay the same.

    It is a cache: what can't be read or written is found out again.
    """

    def __init__(self, folder: Path, name: str, *about: object) -> None:
        digest = hashlib.blake2b(digest_size=8)
        for part in (platform.machine(), platform.python_version(), _processor(), os.cpu_count(), *about):
            digest.update(repr(part).encode(errors="backslashreplace"))
        self.file = folder / f"{name}-{digest.hexdigest()}.json"

    def read(self) -> Any:
        """What was written, or None."""
        try:
            return json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, value: object) -> None:
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, [json.dumps(value).encode()], durable=False)


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        with Path("/proc/cpuinfo").open(errors="replace") as lines:
            return next((line for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
