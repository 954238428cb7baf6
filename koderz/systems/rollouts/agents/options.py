"""The options of agents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The limits of koderz' own agent."""

    max_turns: int = option(50, "Replies that the agent may give to one task.", "N", bounds=(1, 10_000))
    command_timeout: float = option(600.0, "Time that one command may take.", "SECONDS", bounds=(1, 86_400))


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """The script that runs in place of an agent."""

    script: Path | None = option(None, "A file that bash runs in each repository.", "FILE", risk=RUNS_CODE)
