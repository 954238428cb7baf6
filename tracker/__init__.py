"""Records experiments in journals and makes summaries of them. Knows nothing of models, prompts or sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracker.memory.cortex import Cortex, open_cortex

_HOMES = {"Cortex": "tracker.memory.cortex", "open_cortex": "tracker.memory.cortex"}

__all__ = ["Cortex", "open_cortex"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tracker' has no attribute {name!r}")
