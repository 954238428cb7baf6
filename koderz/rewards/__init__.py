"""Rewards for training: a judge as a service or in this process, its clients, and adapters for trainers."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from koderz.rewards.client import AsyncClient, Client
    from koderz.rewards.grpo import trl
    from koderz.rewards.scores import Item, Score, ScoreFault

_HOMES = {
    "AsyncClient": "koderz.rewards.client",
    "Client": "koderz.rewards.client",
    "Item": "koderz.rewards.scores",
    "Score": "koderz.rewards.scores",
    "ScoreFault": "koderz.rewards.scores",
    "trl": "koderz.rewards.grpo",
}

__all__ = ["AsyncClient", "Client", "Item", "Score", "ScoreFault", "trl"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'koderz.rewards' has no attribute {name!r}")
