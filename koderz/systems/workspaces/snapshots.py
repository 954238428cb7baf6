"""Folders as they are, listed, copied and compared, and the part of one that a diff by git can hold."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from koderz.systems.workspaces.images.tree import copy_file

# folders in each other, and bytes of a path; the system's own limit is 4,096
_DEEPEST, _LONGEST = 200, 2500
_SMALL = 1 << 17  # bytes, which are read and written at once
SPECIAL, TOO_DEEP = "neither a file, a folder nor a link", "too deep"


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a folder, each folder before what lies in it, with the modes that it had when it was listed.

    All of it can be read, and its folders changed, until the listing is closed: what was shut is opened by then.
    """

    tree: Path
    top: os.stat_result
    entries: Mapping[str, os.stat_result]  # files, folders and links, by relative path
    aside: Mapping[str, str]  # special files and what lies too deep, and why
    _shut: Mapping[Path, tuple[int, int]]  # its mode before, and since

    @classmethod
    def of(cls, tree: Path) -> Listing:
        """Lists a folder that nobody changes meanwhile. Follows no link."""
        entries, aside, shut = (
            dict[str, os.stat_result](),
            dict[str, str](),
            dict[Path, tuple[int, int]](),
        )
        top = tree.lstat()
        waiting = [("", top, 0)]
        while waiting:
            folder, about, depth = waiting.pop()
            _open(tree / folder, about, stat.S_IRWXU, shut)
            with os.scandir(tree / folder) as found:
                below = sorted(found, key=lambda entry: entry.name)
            for entry in below:
                here, about = (
                    f"{folder}/{entry.name}" if folder else entry.name,
                    entry.stat(follow_symlinks=False),
                )
                if not (
                    stat.S_ISREG(about.st_mode)
                    or stat.S_ISDIR(about.st_mode)
                    or stat.S_ISLNK(about.st_mode)
                ):
                    aside[here] = SPECIAL
                elif depth >= _DEEPEST or len(os.fsencode(here)) > _LONGEST:
                    aside[here] = TOO_DEEP
                else:
                    entries[here] = about
                    if stat.S_ISDIR(about.st_mode):
                        waiting.append((here, about, depth + 1))
                    elif stat.S_ISREG(about.st_mode):
                        _open(tree / here, about, stat.S_IRUSR, shut)
        return cls(tree, top, entries, aside, shut)

    def files(self) -> Iterable[str]:
        """The paths of files and links."""
        return (path for path, about in self.entries.items() if not stat.S_ISDIR(about.st_mode))

    def close(self) -> None:
        """Gives what was shut its own mode again, but for what was replaced or removed meanwhile."""
        for path, (before, since) in reversed([*self._shut.items()]):
            with contextlib.suppress(OSError):
                if path.lstat().st_mode == since:
                    path.chmod(stat.S_IMODE(before))


def _open(path: Path, about: os.stat_result, mode: int, shut: dict[Path, tuple[int, int]]) -> None:
    if about.st_mode & mode != mode:
        with contextlib.suppress(PermissionError):  # it is another user's, whom a container had
            path.chmod(stat.S_IMODE(about.st_mode) | mode)
            shut[path] = about.st_mode, about.st_mode | mode


def copy_tree(listing: Listing, target: Path) -> None:
    """Copies a folder as it was listed to `target`, which is empty or isn't there.

    Modes, times, links, hard links, holes, empty folders and repositories are kept; owners, extended attributes and
    what the listing has put aside aren't. Raises OSError.
    """
    target.mkdir(parents=True, exist_ok=True)
    folders = [(target, listing.top)]
    copied: dict[tuple[int, int], str] = {}  # files that have several names, by their identity
    for path, about in listing.entries.items():
        source, here = f"{listing.tree}/{path}", f"{target}/{path}"
        if stat.S_ISDIR(about.st_mode):
            folders.append((target / path, about))
            folders[-1][0].mkdir(0o700)
        elif stat.S_ISLNK(about.st_mode):
            Path(here).symlink_to(Path(source).readlink())
            os.utime(here, ns=(about.st_mtime_ns, about.st_mtime_ns), follow_symlinks=False)
        elif (
            about.st_nlink > 1
            and (first := copied.setdefault((about.st_dev, about.st_ino), here)) != here
        ):
            Path(here).hardlink_to(first)
        else:
            _copy_file(source, here, about)
    # last, as what is put into a folder changes its time, or needs its mode
    for folder, about in reversed(folders):
        folder.chmod(stat.S_IMODE(about.st_mode))
        os.utime(folder, ns=(about.st_mtime_ns, about.st_mtime_ns))


def _copy_file(source: str, target: str, about: os.stat_result) -> None:
    """Copies a file with the mode and time that were listed."""
    if about.st_size > _SMALL or about.st_blocks * 512 < about.st_size:  # large, or with holes
        copy_file(source, target)
        if not about.st_mode & stat.S_IRUSR:
            Path(target).chmod(stat.S_IMODE(about.st_mode))
        return
    # Most files of a folder are small: looking for their holes takes longer than copying them.
    old = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        content = os.read(old, about.st_size)
    finally:
        os.close(old)
    new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        if content and os.write(new, content) < about.st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        os.fchmod(new, stat.S_IMODE(about.st_mode))
        os.utime(new, ns=(about.st_mtime_ns, about.st_mtime_ns))
    finally:
        os.close(new)


def link_tree(listing: Listing, paths: Iterable[str], target: Path) -> None:
    """Makes other names for some files of a folder in `target`, and the links among them anew. Raises OSError."""
    target.mkdir(exist_ok=True)
    for path in paths:
        source, here = listing.tree / path, target / path
        here.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(listing.entries[path].st_mode):
            here.symlink_to(source.readlink())
            continue
        try:
            here.hardlink_to(source)
        except OSError:  # on another file system, or one without hard links
            copy_file(source, here)


class Changes(NamedTuple):
    """The files and links by which one folder is another than one before."""

    present: list[str]  # added, or with other content, or executable where it wasn't or the reverse
    gone: list[str]


def changes(before: Listing, now: Listing) -> Changes:
    """The changes since a listing. Raises OSError."""
    old = {*before.files()}
    present = []
    for path in now.files():
        if path in old:
            old.remove(path)
            is_executable = (each.entries[path].st_mode & stat.S_IXUSR for each in (before, now))
            if len({*is_executable}) == 1 and _is_same(path, before, now):
                continue
        present.append(path)
    return Changes(sorted(present), sorted(old))


def _is_same(path: str, before: Listing, now: Listing) -> bool:
    """Whether a file or link has the same kind and content in both."""
    old, new = before.entries[path], now.entries[path]
    if stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode) or old.st_size != new.st_size:
        return False
    if stat.S_ISLNK(new.st_mode):
        return (before.tree / path).readlink() == (now.tree / path).readlink()
    # Not by `is_same`, as most files of a folder are small, and looking at them takes longer than reading them.
    one, other = (
        os.open(f"{each.tree}/{path}", os.O_RDONLY | os.O_NOFOLLOW) for each in (before, now)
    )
    try:
        left = new.st_size
        while left > 0:
            part = os.read(one, min(left, 1 << 20))
            if not part or part != os.read(other, len(part)):
                return False
            left -= len(part)
        return True
    finally:
        os.close(one)
        os.close(other)


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
