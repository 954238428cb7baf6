"""The memory store: lessons and results of runs, for people, programs and agents to query."""

from __future__ import annotations

from koderz_tracker.memory.cortex import Cortex, open_cortex, store_path
from koderz_tracker.memory.memories import (
    CATEGORIES,
    IMPORTANCE,
    TYPES,
    Draft,
    InvalidMemory,
    Memory,
)

__all__ = [
    "CATEGORIES",
    "IMPORTANCE",
    "TYPES",
    "Cortex",
    "Draft",
    "InvalidMemory",
    "Memory",
    "open_cortex",
    "store_path",
]
