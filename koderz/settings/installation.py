"""The installation that runs, and the command that adds an extra to it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]


def extra_command(extra: str) -> str:
    """The shell command that installs an extra: the checkout's in the environment that it made, else pip's."""
    setup, here = _CHECKOUT / "scripts" / "setup", Path("scripts", "setup")
    if not setup.is_file() or Path(sys.prefix).resolve() != _CHECKOUT / ".venv":
        return f"pip install 'koderz[{extra}]'"
    return f"{here if here.exists() and here.samefile(setup) else shlex.quote(str(setup))} all"
