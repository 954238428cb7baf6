"""Records experiments in journals and makes summaries of them. Knows nothing of models, prompts or sandboxes.

koderz imports it as `koderz_tracker`, which no file of a user's is called; `tracker` is a second name of the same
modules, for scripts, and gives way to a `tracker.py` of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from koderz_tracker.memory.cortex import Cortex, open_cortex

_HOMES = {"Cortex": "koderz_tracker.memory.cortex", "open_cortex": "koderz_tracker.memory.cortex"}

__all__ = ["Cortex", "open_cortex"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "tracker":
    from koderz_tracker.second_name import stand_for

    stand_for(__name__)
