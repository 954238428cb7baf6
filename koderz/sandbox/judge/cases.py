"""What koderz and its judge tell each other."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A job as the judge is sent it. Seconds and bytes."""

    program: str
    test: str
    entry_point: str
    context: str
    cpu: float
    wall: float
    memory: int
    output_limit: int
    line_offset: int
    call: float  # CPU seconds of one call; 0 for no limit of its own


class Finding(NamedTuple):
    """What the judge found. `fault` is set, and nothing else counts, where the tests can't be run."""

    verdict: str
    cause: str = ""
    message: str = ""
    cpu: float = 0.0
    wall: float = 0.0
    in_process: bool = False
    fault: str = ""
