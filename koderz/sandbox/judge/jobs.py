"""Messages between koderz and a sandbox. Judges load this module too, so it imports nothing of koderz."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koderz.types import VerdictWord

JOB, RESULT = b"j", b"r"  # the kinds of frames by which a judge is given jobs, and gives results

FAULT = "fault"
"""The cause of a judge's result where the tests can't be run: why is its message, and nothing else counts."""


class Job(NamedTuple):
    """One candidate and the tests that it has to pass."""

    program: str  # the whole candidate program; defines `entry_point`
    test: str  # trusted source that defines `check(candidate)`
    entry_point: str
    context: str = ""  # trusted source that the tests may lean on: the task's prompt
    timeout: float = 6.0  # CPU seconds
    memory_mb: int = 1024
    output_limit: int = 1 << 20  # bytes the candidate may print
    line_offset: int = 0  # lines of the program that stand before the candidate's own first line
    # CPU seconds of one call; 0: no limit but `timeout`, which a program can't lift
    call_timeout: float = 0.0
    wall: float = 0.0  # seconds, a back-stop that the sandbox sets
    # whether the tests that it passes are counted, where the test can be parted
    graded: bool = False
    # CPU seconds of each call, which the judge holds; 0: calls have no limit of their own
    case_timeout: float = 0.0
    # each call runs the whole program anew: its argument is stdin, its result stdout
    as_process: bool = False
    # source that defines `load(program, entry_point, file)`, by which the candidate loads programs
    harness: str = ""
    # what the tests find as `DATA`, such as inputs and outputs; no candidate ever gets it
    data: str = ""


class JobResult(NamedTuple):
    """The findings of a sandbox on one job."""

    verdict: VerdictWord
    cause: str = ""
    # the failing assertion, or the exception and where: fit to be read by the model
    message: str = ""
    cpu: float = 0.0  # seconds
    wall: float = 0.0  # seconds
    isolation: str = ""  # what contained the candidate
    tests_passed: int | None = None  # of `tests`, each run for itself; None: they weren't counted
    tests: int | None = None
    tampering: Sequence[str] = ()  # signs of it that the judge saw: `exit`, `channel`, `refused`
