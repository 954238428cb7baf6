"""The part of a folder that a diff by git can hold, and what an honest change doesn't have beside it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import replace

from koderz.systems.workspaces.snapshots import TOO_DEEP, Listing

_LEAST_OF_A_FILE = 100  # bytes of a diff for each new file
# bytes of new contents for each byte of a diff, as binary files are compressed in it
_MOST_COMPRESSED = 8
# by HFS+, in the names of files
_IGNORABLE = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_REPOSITORY = re.compile(r"\.git|git~1", re.IGNORECASE)
_MODULES = re.compile(r"\.gitmodules|gi(?:tmod|7\w*)~\d+", re.IGNORECASE)


def diffable(listing: Listing) -> Listing:
    """The part of a listing that git can hold: nothing that it takes for its own, and nothing below that."""
    entries: dict[str, os.stat_result] = {}
    for path, about in listing.entries.items():
        above, _, name = path.rpartition("/")
        if (not above or above in entries) and not _is_of_git(name, about.st_mode):
            entries[path] = about
    return replace(listing, entries=entries)


def _is_of_git(name: str, mode: int) -> bool:
    parts = [_IGNORABLE.sub("", part).partition(":")[0].rstrip(" .") for part in name.split("\\")]
    is_link = stat.S_ISLNK(mode)
    return any(
        _REPOSITORY.fullmatch(part) or (is_link and _MODULES.fullmatch(part)) for part in parts
    )


def is_rules(path: str, listing: Listing) -> bool:
    """Whether a path is a file by which git ignores others. A link is none, wherever it leads."""
    return path.rpartition("/")[2] == ".gitignore" and stat.S_ISREG(listing.entries[path].st_mode)


def fits(present: Sequence[str], before: Listing, now: Listing, limit: int) -> bool:
    """Whether a diff of `limit` bytes may hold some files, by their number if they are new, and by their new sizes."""
    new, total = 0, 0
    for path in present:
        about, old = now.entries[path], before.entries.get(path)
        new += old is None
        if stat.S_ISREG(about.st_mode) and (old is None or old.st_size != about.st_size):
            total += about.st_size
    return new * _LEAST_OF_A_FILE <= limit and total <= limit * _MOST_COMPRESSED


def undiffable(now: Listing, seen: Listing, before: Listing) -> Sequence[str]:
    """List what neither a diff nor an honest change has, as `path: why`.

    Special files that servers leave are not in it, unless they stand in the place of a file; nor are repositories, as
    agents may well clone something.
    """
    found = []
    for path, about in now.entries.items():
        above, _, name = path.rpartition("/")
        is_link = stat.S_ISLNK(about.st_mode)
        is_repository = name == ".git" and not (is_link and above)
        if (
            path in seen.entries
            or (above and above not in seen.entries)
            or is_repository
            or path in before.entries
        ):
            continue
        is_module = is_link and not _is_of_git(name, stat.S_IFREG)
        found.append(
            (
                path,
                "git takes no link for it" if is_module else "git takes it for a repository's own",
            )
        )
    for path, why in now.aside.items():
        above, _, name = path.rpartition("/")
        is_odd = why == TOO_DEEP or path in before.entries or name.startswith(".git")
        if is_odd and (not above or above in seen.entries):
            found.append((path, why))
    # A path as text that any file takes.
    return sorted(
        f"{os.fsencode(path[:200]).decode('utf-8', 'backslashreplace')}: {why}"
        for path, why in found
    )
