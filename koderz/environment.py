"""What a run was made with, for the record."""

from __future__ import annotations

import platform
import shutil
import subprocess
from typing import Any

from koderz._version import __version__


def describe_environment() -> dict[str, Any]:
    """koderz' and Python's versions, the platform, and the commit of the folder where the command runs."""
    return {
        "koderz": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _git(*arguments: str) -> str | None:
    """What git says, or None where there is no git or no repository."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run([git, *arguments], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
