"""RULER's metrics, as fractions."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNPRINTABLE = re.compile(r"[\x00-\x1f]")


def score(task: str, outputs: Sequence[str], reply: str) -> float:
    """The share of expected outputs in a reply, ignoring case; for questions 1 if it has any."""
    said = _UNPRINTABLE.sub("\n", reply.strip()).strip().lower()
    found = [output.lower() in said for output in outputs]
    if task.startswith("qa"):
        return float(any(found))
    return sum(found) / len(found)
