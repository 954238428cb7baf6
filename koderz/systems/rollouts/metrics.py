"""A task's own metrics: a command that runs in the graded checkout and prints them as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Backend, Command, Mount

_SECONDS = 60.0
_FOLDER = "/opt/koderz/metrics"


@dataclass(frozen=True, slots=True)
class MetricValues:
    """The metrics that the command printed; None if it failed, or its last line is no such JSON."""

    standard: Mapping[str, Any] | None = None
    custom: Mapping[str, Any] | None = None
    log: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """The numeric metrics of both kinds, by name."""
        every = {**(self.standard or {}), **(self.custom or {})}
        return {str(name): float(value) for name, value in every.items() if _is_number(value)}


UNMEASURED = MetricValues()


async def measure(line: str, diff: str, place: Path, backend: Backend, wanted: Command) -> MetricValues:
    """Runs `line` in bash in the checkout of `place`; KODERZ_DIFF names a file with the diff."""
    with scratch() as folder:
        (folder / "diff.patch").write_bytes(diff.encode("utf-8", "backslashreplace"))
        ended = await backend.run(
            replace(
                wanted,
                argv=["bash", "-c", line],
                environment={**wanted.environment, "KODERZ_DIFF": f"{_FOLDER}/diff.patch"},
                mounts=[*wanted.mounts, Mount(folder, _FOLDER)],
                limits=replace(wanted.limits, seconds=_SECONDS),
            ),
            place,
        )
    wrong = ended.cause or (f"exit code {ended.status}" if ended.status else "")
    found = None if wrong else _read(ended.output)
    log = f"==> evaluation.metrics\n{ended.output}"
    if found is None:
        return MetricValues(log=f"{log}\n[no metrics: {wrong or 'the last line is no JSON object of metrics'}]")
    return MetricValues(found.get("standard_metrics"), found.get("custom_metrics"), log)


def _read(output: str) -> dict[str, Any] | None:
    """The metrics in the last line: by kind, or plain numbers, which are custom ones."""
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found:
        return None
    kinds = {"standard_metrics", "custom_metrics"}
    if found.keys() <= kinds:
        return found if all(isinstance(each, dict | None) for each in found.values()) else None
    return {"custom_metrics": found} if all(map(_is_number, found.values())) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
