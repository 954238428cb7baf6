"""What this machine's seconds are worth, and which tasks can't be judged on it at all.

A limit of CPU seconds is meant for some machine. The reference solutions of a suite are known to be
right and to cost the same work everywhere, so what they cost here says how far to stretch it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from koderz.errors import Fault
from koderz.sandbox import Job, Outcome

PATIENCE = 60.0  # CPU seconds that a reference may take
SCALES = (0.5, 20.0)  # beyond these it isn't the machine that is measured


@dataclass(frozen=True, slots=True)
class Calibration:
    """`scale` multiplies limits of CPU. `broken` says, by task, why its own reference doesn't pass here."""

    scale: float = 1.0
    broken: Mapping[str, str] = field(default_factory=dict)


class JudgesAnew(Protocol):
    """A sandbox that measures each time it is asked."""

    async def judge_anew(self, job: Job) -> Outcome: ...


async def calibrate(sandbox: JudgesAnew, references: Mapping[str, Job], *, nominal: float, cache: Path) -> Calibration:
    """Judges the reference of every task, unless `cache` holds what came of it on this machine before.

    `references` are jobs by task; `nominal` is the CPU, in seconds, that all of them together take on
    the machine that the limits are meant for; `cache` is a folder, made when needed. What can't be
    kept there is measured again next time.
    """
    file = cache / f"calibration-{_machine_and(references)}.json"
    known = _read(file)
    if known is None:
        known = await _measured(sandbox, references, nominal)
        if not known.broken:  # what is broken may have been mended by the next time
            _write(file, known)
    return known


async def _measured(sandbox: JudgesAnew, references: Mapping[str, Job], nominal: float) -> Calibration:
    tried = await asyncio.gather(*(_tried(sandbox, job) for job in references.values()))
    broken = {task: said for task, (_, said) in zip(references, tried, strict=True) if said is not None}
    spent = sum(cpu for cpu, _ in tried)
    low, high = SCALES
    return Calibration(1.0 if broken else min(high, max(low, spent / nominal)), broken)


async def _tried(sandbox: JudgesAnew, job: Job) -> tuple[float, str | None]:
    """CPU seconds, and why it doesn't pass."""
    try:
        outcome = await sandbox.judge_anew(replace(job, timeout=PATIENCE))
    except Fault as fault:
        return 0.0, str(fault)
    if outcome.verdict == "passed":
        return outcome.cpu, None
    return outcome.cpu, f"{outcome.verdict} ({outcome.cause}): {outcome.message}"


def _machine_and(references: Mapping[str, Job]) -> str:
    """A digest of what the figure depends on."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (platform.machine(), platform.python_version(), _processor(), os.cpu_count(), [*references.items()]):
        digest.update(repr(part).encode(errors="backslashreplace"))
    return digest.hexdigest()


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")


def _read(file: Path) -> Calibration | None:
    try:
        found: Any = json.loads(file.read_bytes())
        return Calibration(float(found["scale"]), {})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(file: Path, calibration: Calibration) -> None:
    fresh = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(asdict(calibration)))
        fresh.replace(file)
    except OSError:  # it is a cache: without it the same is measured again
        return
