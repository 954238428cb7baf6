"""Lessons that experiments taught, found by what failed, and failures in words that are safe to pass on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracker.memory import sql
from tracker.memory.memories import as_memory
from tracker.memory.store import Store

_TELLING = re.compile(
    r"^(?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|AttributeError|SyntaxError|IndentationError): .+",
    re.MULTILINE,
)
"""Messages that speak of the code alone: those of other errors may quote a hidden test."""
_SHOWN = 3  # lessons at a time


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a store held at one moment."""

    last_id: int  # of the memories
    time: str  # local, ISO 8601


def how_it_failed(verdict: str, cause: str, said: str) -> str:
    """The verdict and its cause, with the error's message from what was said, where that can't quote a test."""
    told = f"{verdict} ({cause})" if cause else verdict
    message = _TELLING.search(said)
    return f"{told}: {message[0][:200]}" if message else told


def recall_lessons(
    store: Store,
    problem_id: str,
    cause: str,
    *,
    same_task: bool,
    simulated: bool = False,
    until: Snapshot | None = None,
) -> list[str]:
    """The three newest lessons of experiments that failed with `cause`, each once: on other tasks, or on the same one.

    `until` leaves out what was stored or changed after it. A simulated model learns only from its like.
    """
    until = until or Snapshot(2**62, "9999")
    which = (cause, until.last_id, until.time, problem_id, int(same_task), int(simulated), 20 * _SHOWN)
    texts = (str(as_memory(row).metadata.get("lesson")) for row in store.rows(sql.LESSONS, which))
    return list(dict.fromkeys(texts))[:_SHOWN]
