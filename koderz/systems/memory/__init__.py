"""The system `memory`: the memory store asked, exported and served, and runs served to agents beside it."""

from __future__ import annotations

from koderz.settings.systems import System

SYSTEM = System(
    name="memory",
    commands={
        "memory": ("koderz.systems.memory.commands", "Search, export and serve the memory store."),
        "mcp": ("koderz.systems.memory.mcp", "Serve memory and runs to agents."),
    },
)
