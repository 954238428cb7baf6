"""The folders of workspaces, and what is done to them: made whole, cut down to some files, listed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from koderz.errors import KoderzError
from koderz.sandbox.scratch import own_folder, scratch

TREE = ("checkout", "home", "tmp")
"""The folders of a place, which every command has."""


def make_tree(place: Path) -> None:
    """Makes those that aren't there yet."""
    for name in TREE:
        (place / name).mkdir(exist_ok=True)


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
            return {
                name for name in names if Path(inner, name).relative_to(folder).as_posix() in hidden
            }

        shutil.copytree(folder, copy, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        yield copy


def keep_only(tree: Path, kept: Collection[PurePosixPath]) -> None:
    """Removes each file of a folder that lies at or below none of these paths."""
    for path in [path for path in tree.rglob("*") if not path.is_dir() or path.is_symlink()]:
        here = PurePosixPath(path.relative_to(tree))
        if not any(here == each or each in here.parents for each in kept):
            path.unlink()


def leads_out(path: Path, folder: Path) -> bool:
    """Whether the links of a path lead out of a folder, or round in a circle."""
    # Path.resolve raises RuntimeError for a circle, until Python 3.13
    place = Path(os.path.realpath(path))
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
