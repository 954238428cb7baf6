"""Folders that are gone when they are left, or at the next start after koderz was killed."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from koderz.errors import KoderzError


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, removed with all that is in it."""
    folder = Path(tempfile.mkdtemp(dir=own_folder()))
    try:
        yield folder
    finally:
        remove(folder)


def remove(path: Path) -> None:
    """Removes a file or a folder, also where something in it was made unwritable, or is as deep as no path reaches."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            make_usable(path)
            shutil.rmtree(path, ignore_errors=True)
    if path.exists() and (rm := shutil.which("rm")):
        subprocess.run([rm, "-rf", "--", path], check=False, capture_output=True)


def make_usable(tree: Path) -> None:
    """Lets the owner read all that is in a folder, and change the folders in it. Links aren't followed."""
    for folder, folders, files in os.walk(tree):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(
                        path.stat().st_mode | (stat.S_IRWXU if path.is_dir() else stat.S_IRUSR)
                    )


@cache
def own_folder() -> Path:
    """This process's folder of folders. Those of processes that are no more are removed first.

    Each is locked for as long as its process lives: the system lets go of the lock however that ends.
    """
    root = Path(tempfile.gettempdir(), f"koderz-workspaces-{os.getuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise KoderzError(f"{root} belongs to somebody else; set TMPDIR to a folder of your own")
    for folder in root.iterdir():
        with contextlib.suppress(OSError), _locked(folder):
            remove(folder)
    own = _made_and_locked(root)
    atexit.register(_remove_own, own, os.getpid())
    return own


def _made_and_locked(root: Path) -> Path:
    """A new folder, locked until this process ends."""
    while True:
        own = Path(tempfile.mkdtemp(dir=root))
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(own, os.O_RDONLY | os.O_CLOEXEC)  # never closed
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if own.exists():  # else another process took it for abandoned before it was locked
                return own
            os.close(descriptor)


def _remove_own(own: Path, process: int) -> None:
    if os.getpid() == process:  # not one that was forked from it
        remove(own)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """OSError where another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
