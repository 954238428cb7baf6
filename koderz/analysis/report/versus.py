"""What the page says of one arm against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from koderz.analysis.report.view import Entry


@dataclass(frozen=True, slots=True)
class Versus:
    """A, the baseline, and B, in sentences."""

    a: Entry
    b: Entry
    verdict: str
    tone: str  # "good" or "bad" where a difference is shown, else ""
    evidence: str
    gained: str  # the tasks that only B passed
    lost: str


@dataclass(frozen=True, slots=True)
class Found:
    """The comparisons of a page, and what holds for all of them."""

    shown: Sequence[Versus]
    note: str


def comparisons(entries: Sequence[Entry]) -> Found:
    """None as yet."""
    assert entries is not None
    return Found([], "")
