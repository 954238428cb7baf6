"""The options of runs whose calls are sent in batches, which is done by the engine `local`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from koderz.settings.options import option

ALL_AT_ONCE = 100_000
"""Experiments under way at once where calls are sent in batches and the user says no number: all of them."""

DAY = 24 * 3600.0

_running = partial(option, panel="Running")
_of_batches = partial(_running, reader="batches")


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of batches."""

    batch: bool = _running(
        False,
        "Send calls through the provider's batch API: half the price, answers within a day. The run can be left and "
        "resumed meanwhile; --concurrency is then all experiments.",
    )
    batch_roles: tuple[str, ...] = _of_batches(
        (),
        "With --batch: a role that is asked in batches, too, though at another provider than the model; repeatable.",
        "ROLE",
        flags=("--batch-role",),
    )
    batch_wait: float = _of_batches(
        DAY + 600,
        "With --batch: maximum time to wait for a batch.",
        "SECONDS",
        bounds=(0.01, 30 * DAY),
        changeable=True,
    )
    batch_fallback: Literal["fault", "live"] = _of_batches(
        "fault",
        "With --batch: what becomes of calls that aren't answered by then: a fault, or they are asked live at the "
        "full price, after their batch was cancelled.",
        "[fault|live]",
        changeable=True,
    )
    poll: float = _of_batches(
        60.0,
        "With --batch: time between two looks at a batch; up to 300 if nothing changes.",
        "SECONDS",
        bounds=(0.01, 3600),
        changeable=True,
    )
