"""The folders in which koderz stores files, by the system's conventions, such as `$XDG_CACHE_HOME/koderz`.

What koderz keeps outside of a results folder is a convenience, so no machine that refuses it refuses a run: where the
usual folder can't be had, as in a container with a read-only HOME, another takes its place and a note says so once.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import platformdirs


def home_folder() -> Path:
    """The user's home folder; `/` for a user that nothing says one of, as in a container with a uid of its own."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def cache_folder() -> Path:
    """The folder of downloaded datasets and cached specifications.

    One that exists is used even if it is read-only, for what it holds.
    """
    try:
        folder = platformdirs.user_cache_path("koderz", appauthor=False)
    except RuntimeError:  # no HOME, and nothing that stands for it
        return _substitute()
    return folder if folder.is_dir() or _is_writable(folder) else _substitute()


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder of lasting decisions of the user, such as trust."""
    base = environ.get("XDG_STATE_HOME")
    try:
        folder = (
            Path(base) / "koderz"
            if base
            else platformdirs.user_state_path("koderz", appauthor=False)
        )
    except RuntimeError:
        return _substitute()
    return folder if _is_writable(folder) else _substitute()


@cache
def note_once(text: str) -> None:
    """Prints a note on standard error, once a process."""
    sys.stderr.write(f"note: {text}\n")


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in the folder, or in the nearest that exists above it."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@cache
def _substitute() -> Path:
    """A folder of the user's own among temporary files; a new one if another user's lies where it should be."""
    folder = Path(tempfile.gettempdir()) / f"koderz-{os.getuid()}"
    with contextlib.suppress(OSError):  # then nothing is kept
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            folder = Path(tempfile.mkdtemp(prefix="koderz-"))
    note_once(
        f"the home folder can't be written, so what koderz keeps for later runs lies in {folder}; "
        "XDG_CACHE_HOME and XDG_STATE_HOME name other places"
    )
    return folder
