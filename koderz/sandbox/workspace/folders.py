"""Where workspaces lie: folders that are gone when they are left, or at the next start after koderz was killed.

And what is done to them: made usable, cut down to some files, swept of what no diff can hold.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath

from koderz.errors import KoderzError

TREE = ("checkout", "home", "tmp")
"""The folders of a place, which every command has."""


def make_tree(place: Path) -> None:
    """Makes those that aren't there yet."""
    for name in TREE:
        (place / name).mkdir(exist_ok=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, removed with all that is in it."""
    folder = Path(tempfile.mkdtemp(dir=own_folder()))
    try:
        yield folder
    finally:
        remove(folder)


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which is `folder` once the block has ended, unless another process was quicker."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as own:
        fresh = Path(own, "whole")
        fresh.mkdir()
        yield fresh
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def new_path(name: str) -> Path:
    """A path in this process's own folder at which nothing exists, for what lives as long as the process."""
    return own_folder() / f"{name}-{time.monotonic_ns()}"


@contextmanager
def without(folder: Path, hidden: Collection[str]) -> Iterator[Path]:
    """The folder itself, or a copy of it without what is to be hidden, by paths in it."""
    if not hidden:
        yield folder
        return
    with scratch() as copy:

        def ignored(inner: str, names: list[str]) -> set[str]:
            return {name for name in names if Path(inner, name).relative_to(folder).as_posix() in hidden}

        shutil.copytree(folder, copy, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        yield copy


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
                    path.chmod(path.stat().st_mode | (stat.S_IRWXU if path.is_dir() else stat.S_IRUSR))


def keep_only(tree: Path, kept: Collection[PurePosixPath]) -> None:
    """Removes each file of a folder that lies at or below none of these paths."""
    for path in [path for path in tree.rglob("*") if not path.is_dir() or path.is_symlink()]:
        here = PurePosixPath(path.relative_to(tree))
        if not any(here == each or each in here.parents for each in kept):
            path.unlink()


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


def leads_out(path: Path, folder: Path) -> bool:
    """Whether the links of a path lead out of a folder, or round in a circle."""
    place = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a circle, until Python 3.13
    return place.is_symlink() or not place.is_relative_to(os.path.realpath(folder))


def files_below(folder: Path) -> dict[str, Path]:
    """Each file below a folder by its relative path. Raises KoderzError for a link that leads out of it."""
    found = dict[str, Path]()
    waiting = [str(folder)] if folder.is_dir() else []
    while waiting:  # in a third of the time of Path.rglob, which counts over thousands of tasks
        try:
            entries = [*os.scandir(waiting.pop())]
        except OSError as error:
            raise KoderzError(f"{error.filename} can't be read ({error.strerror})") from None
        for entry in entries:
            if entry.is_symlink() and leads_out(Path(entry.path), folder):
                raise KoderzError(f"{entry.path} is a link that leaves its folder")
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif entry.is_file():
                found[entry.path.removeprefix(f"{folder}/")] = Path(entry.path)
    return dict(sorted(found.items(), key=lambda each: each[0].split("/")))
