"""The environment of a run, for the record: versions, platform and commit."""

from __future__ import annotations

import platform
import subprocess
from typing import Any

from koderz._version import __version__


def describe_environment() -> dict[str, Any]:
    """The versions of koderz and Python, the platform, and the commit of the working directory."""
    return {"koderz": __version__, "python": platform.python_version(), "platform": platform.platform(), **_git_state()}


def _git_state() -> dict[str, Any]:
    """The commit, and whether tracked files differ from it; None and False without git or a repository."""
    command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return {"git_commit": None, "git_dirty": False}
    lines = done.stdout.splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    commit = commits[0] if commits and commits[0] != "(initial)" else None
    return {"git_commit": commit, "git_dirty": any(not line.startswith("#") for line in lines)}
