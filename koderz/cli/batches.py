"""Lines on a run's batches for screens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from koderz.cli.console import counted, elapsed
from koderz_tracker.batches import ENDED, batches_in


def batch_lines(folder: Path) -> Iterator[str]:
    """A line for each batch that isn't over, and one for all others."""
    found = batches_in(folder)
    over = [batch for batch in found if batch.state in ENDED]
    if over:
        calls, done = sum(batch.count for batch in over), sum(batch.done for batch in over)
        states = ", ".join(dict.fromkeys(batch.state for batch in over))
        yield f"{counted(len(over), 'batch')} over ({states}): {done:,} of {calls:,} calls answered"
    for batch in found:
        if batch.state not in ENDED:
            age = elapsed(
                max(0.0, (datetime.now() - datetime.fromisoformat(batch.time)).total_seconds())
            )
            failed = f", {batch.failed:,} failed" if batch.failed else ""
            answered = f"{batch.done:,} of {batch.count:,} calls answered{failed}"
            yield f"batch {batch.id or batch.name[:12]} at {batch.provider}: {batch.state}, {answered}, sent {age} ago"


def batches_waited_for(folder: Path) -> str:
    """The batches that aren't over, for a status; empty without any."""
    found = [batch for batch in batches_in(folder) if batch.state not in ENDED]
    calls = sum(batch.count for batch in found)
    return f"{counted(len(found), 'batch')} of {counted(calls, 'call')} under way" if found else ""
