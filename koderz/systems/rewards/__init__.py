"""The system `rewards`: a judge for training, as a service or in this process, its clients, and trainers' adapters."""

from __future__ import annotations

from koderz.settings.systems import System

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from koderz.systems.rewards.client import AsyncClient, Client, trl
    from koderz.systems.rewards.scores import Item, Score, ScoreFault

_HERE = "koderz.systems.rewards"
_HOMES = {
    "AsyncClient": f"{_HERE}.client",
    "Client": f"{_HERE}.client",
    "Item": f"{_HERE}.scores",
    "Score": f"{_HERE}.scores",
    "ScoreFault": f"{_HERE}.scores",
    "trl": f"{_HERE}.client",
}

SYSTEM = System(
    name="rewards",
    commands={
        "judge serve": (
            f"{_HERE}.commands:serve",
            "Serve a judge over HTTP, for rewards in training.",
        )
    },
    tasksets={"verifiers": f"{_HERE}.verifiers:export_taskset"},
)

__all__ = ["AsyncClient", "Client", "Item", "Score", "ScoreFault", "trl"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'koderz.systems.rewards' has no attribute {name!r}")
