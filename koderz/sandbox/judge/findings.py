"""Findings on candidates that gave no answer: what became of them, in a sentence."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from koderz.sandbox.judge import explain, wire
from koderz.sandbox.judge.clock import within
from koderz.sandbox.judge.forks import Ending
from koderz.sandbox.judge.jobs import Job, JobResult
from koderz.sandbox.judge.proxy import TOO_LARGE, LostCandidate, Raised

if TYPE_CHECKING:
    from koderz.types import VerdictWord

EXPLAINING_SECONDS = 2.0  # that a message may take to be put together


def finding(verdict: VerdictWord, cause: str, explain_it: Callable[[], str]) -> JobResult:
    """The finding and its reason, or `output` if the candidate sent more than a reason can hold."""
    message = ["what it returned can't be shown"]
    within(EXPLAINING_SECONDS, lambda: message.append(explain_it()))
    return JobResult(verdict, cause, message[-1])


def of_loss(job: Job, lost: LostCandidate, ending: Ending, call: Callable[[], str]) -> JobResult:
    """The finding on a candidate that is lost; `call` puts the latest call into words."""
    match lost.kind:
        case wire.UNLOADED:
            return _unloaded(job, lost.payload)
        case wire.PRINTED:
            return finding(
                "error", "output", lambda: f"{call()}\n  printed more than {job.output_limit} bytes"
            )
        case kind if kind == TOO_LARGE:
            return finding(
                "error", "output", lambda: f"{call()}\n  returned more than can be taken"
            )
        case wire.UNPLAIN if isinstance(lost.payload, str):
            what = f"{lost.payload[:200]}, which isn't plain data"
            return finding("failed", "assertion", lambda: f"{call()}\n  returned  {what}")
        case b"":
            return _vanished(job, ending, call)
    return finding("error", "killed", lambda: f"{call()}\n  answered with what isn't a value")


def _vanished(job: Job, ending: Ending, call: Callable[[], str]) -> JobResult:
    if ending.overdue or ending.status == -signal.SIGXCPU:
        return of_timeout(job, ending, call)
    if ending.status == -signal.SIGPROF and job.call_timeout:
        return _running(job.call_timeout, call)
    if ending.status == -signal.SIGKILL:
        how = "gave no answer and hung up"
    elif ending.status < 0:
        how = f"crashed: {signal.Signals(-ending.status).name}"
    else:
        how = f"ended its process with status {ending.status}"
    return finding("error", "killed", lambda: f"{call()}\n  {how}")


def of_timeout(job: Job, ending: Ending, call: Callable[[], str]) -> JobResult:
    """The finding on a candidate whose time is up."""
    if ending.overdue or ending.cpu >= job.timeout:
        return _running(job.timeout, call)
    return finding(
        "timeout", "wall", lambda: f"{call()}\n  was still waiting after {job.wall:.3g} s"
    )


def _running(seconds: float, call: Callable[[], str]) -> JobResult:
    return finding(
        "timeout", "cpu", lambda: f"{call()}\n  was still running after {seconds:.3g} s of CPU"
    )


def _unloaded(job: Job, payload: Any) -> JobResult:
    try:
        cause, *report = payload if isinstance(payload, list) else [None]
        raised = Raised.read(report)
    except (LostCandidate, ValueError):
        return JobResult("error", "killed", "the program sent nonsense while it was loaded")
    if cause == "syntax":
        return finding("error", "syntax", lambda: explained(job, raised))
    if cause == "no_entry_point":
        return JobResult("error", "no_entry_point", f"the program doesn't define {job.entry_point}")
    return of_exception(job, raised, str)


def of_exception(job: Job, raised: Raised, call: Callable[[], str]) -> JobResult:
    """The finding on an exception of the candidate's."""
    cause = "memory" if raised.name == "MemoryError" else f"exception:{raised.name}"
    return finding("error", cause, lambda: explained(job, raised, call()))


def explained(job: Job, raised: Raised, call: str = "") -> str:
    """The exception and where it came from, in words."""
    return explain.exception(raised, job.program.splitlines(), job.line_offset, call)
