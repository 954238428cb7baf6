"""Removes from a checkout what no diff can hold, and what would have git fail, wait for ever or leave out files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from koderz.sandbox.workspace.folders import remove

_DEEPEST, _LONGEST = 200, 2500  # folders in each other, and bytes of a path; the system's own limit is 4,096
_IGNORABLE = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")  # by HFS+, in the names of files
_REPOSITORY = re.compile(r"\.git|git~1", re.IGNORECASE)
_MODULES = re.compile(r"\.gitmodules|gi(?:tmod|7\w*)~\d+", re.IGNORECASE)


def sweep(tree: Path, tracked: Collection[str] = ()) -> list[str]:
    """Removes special files, names that git takes for a `.git`, and paths that are too deep for it.

    A repository below the top loses its `.git`, and its files stay. Returns what an honest change doesn't have, as
    `path: why`. Special files that servers leave are not in it, unless they stand in the place of a file of `tracked`.
    """
    found: list[str] = []
    waiting = [(tree, 0)]
    while waiting:
        folder, depth = waiting.pop()
        for entry in _entries(folder):
            here = os.path.relpath(entry.path, tree)
            is_folder = entry.is_dir(follow_symlinks=False)
            if here == ".git":
                continue
            if why := _reason(entry, here, depth):
                remove(Path(entry.path))
                found += [f"{_shown(here)}: {why}"] if _is_reported(entry, here, tracked, is_folder=is_folder) else []
            elif is_folder:
                waiting.append((Path(entry.path), depth + 1))
    return sorted(found)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Those of a folder, also where it was made unreadable."""
    folder.chmod(folder.lstat().st_mode | stat.S_IRWXU)
    with os.scandir(folder) as entries:
        yield from [*entries]


def _reason(entry: os.DirEntry[str], here: str, depth: int) -> str:
    """Why an entry goes; empty where it stays."""
    mode = entry.stat(follow_symlinks=False).st_mode
    names = [_IGNORABLE.sub("", part).partition(":")[0].rstrip(" .") for part in entry.name.split("\\")]
    if any(_REPOSITORY.fullmatch(name) for name in names):
        return "git takes it for a repository's own"
    if stat.S_ISLNK(mode) and any(_MODULES.fullmatch(name) for name in names):
        return "git takes no link for it"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        return "neither a file, a folder nor a link"
    return "too deep" if depth >= _DEEPEST or len(os.fsencode(here)) > _LONGEST else ""


def _is_reported(entry: os.DirEntry[str], here: str, tracked: Collection[str], *, is_folder: bool) -> bool:
    is_plain = is_folder or entry.is_file(follow_symlinks=False) or entry.is_symlink()
    if not is_plain:
        return here in tracked or entry.name.startswith(".git")
    return entry.name != ".git" or entry.is_symlink()  # agents may well clone something


def _shown(here: str) -> str:
    """A path as text that any file takes."""
    return os.fsencode(here[:200]).decode("utf-8", "backslashreplace")
