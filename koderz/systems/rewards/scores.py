"""Scores of replies, and the requests for them: the values that judges, services and clients exchange."""

from __future__ import annotations

from dataclasses import dataclass, field

FAULT = "fault"
"""The verdict of a score that is none, because of something that isn't the reply's doing."""

DEADLINE, DISK, UNREACHABLE = "deadline", "disk", "unreachable"
"""Causes of such scores besides those in `tracker.errors`: no judge was free in time; the disk refuses the record."""


@dataclass(frozen=True, slots=True)
class Item:
    """One reply to be scored."""

    task: str
    reply: str
    suite: str = ""  # as the judge was given it; needed only if two suites have a task of that id
    graded: bool = False  # the reward is the share of tests passed
    # seconds from arrival within which judging has to begin; None: any time
    deadline: float | None = None
    step: int | None = None  # of the training
    id: str = ""  # of the caller's own; empty: one is made up


@dataclass(frozen=True, slots=True)
class ScoreFault:
    """The reason why there is no reward."""

    cause: str  # a word of `tracker.errors`, or deadline, disk, unreachable
    reason: str


@dataclass(frozen=True, slots=True)
class Score:
    """The judge's score of a reply."""

    id: str
    suite: str
    task: str
    task_digest: str
    reward: float | None  # 0 to 1; None for a fault
    verdict: str  # passed, failed, timeout or error; fault
    cause: str = ""
    tests_passed: int | None = None  # of `tests`, if graded; None where they can't be parted
    tests: int | None = None
    fault: ScoreFault | None = None
    tampering: tuple[str, ...] = field(default_factory=tuple)  # signs of it: exit, channel, refused
    seconds: float = 0.0  # of judging


def failed(
    item: Item, suite: str, digest: str, cause: str, reason: str, *, seconds: float = 0.0
) -> Score:
    """The score of a fault."""
    told = ScoreFault(cause, reason)
    return Score(item.id, suite, item.task, digest, None, FAULT, cause, fault=told, seconds=seconds)
