"""GSO's logs of an evaluation: its status, and the times of each test.

Source: GSO's harness, https://github.com/gso-bench/gso (c89aecd), whose reading of its logs this agrees with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

Status = Literal["base_failed", "patch_failed", "test_failed", "passed"]
Times = list[list[float]]
"""The seconds of the iterations of each test."""

SIDES = ("base", "patch", "commit", "main")

_TEST = re.compile(r"^>>>>> Test \d+\s*$", re.MULTILINE)
_TIME = re.compile(r"Execution time:\s+([\d\.]+)s")


def status_of(log: str) -> Status:
    """The status that the evaluation reached."""
    if "Applying patch..." not in log:
        return "base_failed"
    if ">>>>> Patch Apply Failed" in log or ">>>>> Init Failed" in log:
        return "patch_failed"
    if ">>>>> Tests Errored" in log or ">>>>> Tests Timed Out" in log:
        return "test_failed"
    if not (">>>>> Start Patch Output" in log and ">>>>> End Patch Output" in log):
        return "test_failed"
    return "passed"


def times_of(log: str) -> Mapping[str, Times | None]:
    """The times of each side; None for the main branch if it wasn't measured.

    Raises ValueError where another side is missing, or a time is no number.
    """
    found: dict[str, Times | None] = {side: _times(log, side.capitalize()) for side in SIDES[:3]}
    try:
        broken = ">>>>> WARNING: Error in main branch! continuing..." in log
        found["main"] = None if broken else _times(log, "Main")
    except ValueError:
        found["main"] = None
    return found


def _times(log: str, side: str) -> Times:
    _, start, rest = log.partition(f">>>>> Start {side} Output")
    if not start:
        raise ValueError(f"the log has no section {side}")
    section = rest.partition(f">>>>> Start {side} Output")[0].partition(f">>>>> End {side} Output")[0]
    tests = [[*_iterations(block)] for block in _TEST.split(section)]
    return [times for times in tests if times]


def _iterations(block: str) -> Iterator[float]:
    for line in block.splitlines():
        if found := _TIME.match(line.strip()):
            yield float(found[1])
