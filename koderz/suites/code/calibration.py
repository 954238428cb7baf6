"""A sandbox whose seconds mean the same on every machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from koderz.paths import cache_folder
from koderz.sandbox import SANDBOXES, Job, Sandbox, open_sandbox
from koderz.sandbox.calibration import MachineCache, Scaled, calibrate
from koderz.settings.options import as_words
from koderz.settings.schema import Settings

YARDSTICK = ("HumanEval/32", "HumanEval/36", "HumanEval/147")
"""Of HumanEval's reference solutions those that compute for a while, and not for long. Other suites' own say what a
task costs here, but not what it ought to, so these measure the machine whatever the suite."""

NOMINAL = 0.07
"""CPU seconds that they take together where limits are meant for: Python 3.11 on one core of a server of 2023,
with a quarter to spare, so that no ordinary machine's limits are touched."""

_EDITION = 1  # of the two above: what was measured by others doesn't count


@asynccontextmanager
async def calibrated_sandbox(
    name: str, *, judges: int, own_programs: bool = False, memory_mb: int = 1024, settings: Settings | None = None
) -> AsyncIterator[Sandbox]:
    """A sandbox by its name, entered; see `open_sandbox`. The first on a machine takes half a second more."""
    async with open_sandbox(
        name, judges=judges, own_programs=own_programs, memory_mb=memory_mb, settings=settings
    ) as sandbox:
        if isinstance(sandbox, Scaled) and not getattr(sandbox, "many_machines", False):
            options = SANDBOXES.options_in(name, settings)  # on which it may depend whose speed it is
            sandbox.speed = await _speed(sandbox, f"{name} {as_words(options) if options else ''}")
        yield sandbox


def cpu_scale(sandbox: Sandbox) -> float:
    """What limits of CPU are multiplied by."""
    return sandbox.speed if isinstance(sandbox, Scaled) else 1.0


async def _speed(sandbox: Scaled, kind: str) -> float:
    cache = MachineCache(cache_folder(), "speed", _EDITION, kind)
    known = cache.read()
    if isinstance(known, float):
        return known
    measured = await calibrate(sandbox, _jobs(), nominal=NOMINAL)
    if measured is None:
        return 1.0
    cache.write(measured)
    return measured


def _jobs() -> list[Job]:
    from koderz.suites.code.humaneval import humaneval

    chosen = [task for task in humaneval(None).tasks if task.id in YARDSTICK]
    return [
        Job(t.prompt + t.payload.reference, t.payload.test, t.payload.entry_point, context=t.prompt) for t in chosen
    ]
