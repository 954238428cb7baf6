"""koderz measures how good a model is at real tasks, and whether letting it iterate is worth the cost.

import koderz

summary = await koderz.benchmark(range(0, 10), mode="comparative", model="qwen2.5-coder:32b")
"""

from __future__ import annotations

from koderz._version import __version__
from koderz.settings import moved as moved  # so that modules are found where they lay before

TYPE_CHECKING = False  # typing's own would be loaded by each command before Ctrl-C is seen to
if TYPE_CHECKING:
    from typing import Any

    from koderz.analysis.comparison import Comparison, compare
    from koderz.analysis.export import to_dataframe
    from koderz.analysis.forecast import Forecast
    from koderz.analysis.runs import Run, load_summary
    from koderz.api import benchmark, decide, plan, rescore, resume, retry, run, stream
    from koderz.errors import (
        FatalFault,
        Fault,
        JournalError,
        KoderzError,
        StorageError,
        Unreachable,
    )
    from koderz.runs.judge import judge
    from koderz.settings.schema import Settings
    from koderz.systems.rewards.judging import open_judge
    from koderz.types import Completion, Message, Reply, Sampling, Task, Verdict
    from koderz_tracker.stopping import PairsDecision, decide_pairs
    from koderz_tracker.summary import Summary

_HOMES = {
    "koderz.analysis.comparison": ("Comparison", "compare"),
    "koderz.analysis.export": ("to_dataframe",),
    "koderz.analysis.runs": ("Run", "load_summary"),
    "koderz.api": ("benchmark", "decide", "plan", "rescore", "resume", "retry", "run", "stream"),
    "koderz.errors": (
        "FatalFault",
        "Fault",
        "JournalError",
        "KoderzError",
        "StorageError",
        "Unreachable",
    ),
    "koderz.systems.rewards.judging": ("open_judge",),
    "koderz.analysis.forecast": ("Forecast",),
    "koderz.runs.judge": ("judge",),
    "koderz.settings.schema": ("Settings",),
    "koderz.types": ("Completion", "Message", "Reply", "Sampling", "Task", "Verdict"),
    "koderz_tracker.stopping": ("PairsDecision", "decide_pairs"),
    "koderz_tracker.summary": ("Summary",),
}

__all__ = [
    "Comparison",
    "Completion",
    "FatalFault",
    "Fault",
    "Forecast",
    "JournalError",
    "KoderzError",
    "Message",
    "PairsDecision",
    "Reply",
    "Run",
    "Sampling",
    "Settings",
    "StorageError",
    "Summary",
    "Task",
    "Unreachable",
    "Verdict",
    "__version__",
    "benchmark",
    "compare",
    "decide",
    "decide_pairs",
    "judge",
    "load_summary",
    "open_judge",
    "plan",
    "rescore",
    "resume",
    "retry",
    "run",
    "stream",
    "to_dataframe",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that the version alone costs next to nothing."""
    import importlib

    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    import difflib

    near = difflib.get_close_matches(name, __all__, n=1)
    hint = f"; did you mean koderz.{near[0]}?" if near else ""
    raise AttributeError(f"module 'koderz' has no attribute {name!r}{hint}", name=name)


def __dir__() -> list[str]:
    """The names that users call, so that an interpreter or a notebook completes them."""
    return sorted({*globals(), *__all__})
