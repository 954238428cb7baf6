"""Changes that commands made in the root of an image, as the upper folder of their place has them.

The upper folder is overlayfs': a file that was changed lies there whole, what was removed is a character device 0:0 in
its place, and a folder that replaces one of the image has the attribute `user.overlay.opaque`. Read it only once all
commands of the place have ended.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from koderz.sandbox.images.tree import copy_file, is_same, resolved

_OPAQUE = "user.overlay.opaque"
_DEEPEST, _LONGEST = 200, 2500  # folders in each other, and bytes of a path; what is beyond isn't looked at


@dataclass(frozen=True, slots=True)
class ImageChange:
    """A path of an image that is another than the image has it."""

    path: str  # absolute in the image; of what is removed the topmost folder
    kind: Literal["added", "changed", "removed"]
    is_folder: bool = False  # of what is there now; a folder that is `changed` has another mode
    is_special: bool = False  # a socket, a pipe or the like, which can't be carried
    is_too_deep: bool = False  # a folder that nobody looks into


def changes(root: Path, upper: Path) -> list[ImageChange]:
    """The changes in `upper` of the image with the folder `root`, sorted by path; an added folder before what is in it.

    Times don't count as changes, nor does a file that was written with the content and mode that it had. `upper` need
    not exist.
    """
    found = _compared(root, upper, "", 0, lower=True) if upper.is_dir() else ()
    return sorted(found, key=lambda change: change.path)


def carry(root: Path, upper: Path, fresh: Path, wanted: Callable[[ImageChange], bool]) -> list[ImageChange]:
    """Makes the wanted changes in the upper folder of another place, in which no command has run yet.

    Returns those made, sorted. Folders above a wanted path are made with it; owners, times and extended attributes of
    the agent's are not kept, hard links become files of their own, and special files are left out. Raises OSError where
    the disk refuses.
    """
    made = []
    for change in changes(root, upper):
        if change.is_special or change.is_too_deep or not wanted(change):
            continue
        inner = change.path.lstrip("/")
        source, target = upper / inner, fresh / inner
        _make_folders(root, upper, fresh, posixpath.dirname(inner))
        if change.kind == "removed":
            if not os.path.lexists(target):
                os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
        elif source.is_symlink():
            target.symlink_to(source.readlink())
        elif change.is_folder:
            _make_folders(root, upper, fresh, inner)
        else:
            copy_file(source, target)
        made.append(change)
    return made


def copy_folder(root: Path, folder: str, target: Path, upper: Path | None = None) -> None:
    """Copies a folder of an image into `target`, which may exist; with `upper`, as the command that wrote it left it.

    Links in the path of the folder are followed within the image, those in it are copied as links. Modes, times and
    hard links are kept, special files are left out. Nothing where the image hasn't got the folder. Raises OSError where
    the disk refuses.
    """
    inner = resolved(root, folder).lstrip("/")
    if upper is not None:
        inner = _resolved_in_both(root, upper, folder).lstrip("/")
    places = (*([upper / inner] if upper else []), root / inner)  # the mode that counts is set last
    folders = [(target, place.lstat()) for place in places if stat.S_ISDIR(_mode(place))]
    copied: dict[tuple[int, int], Path] = {}  # files that have several names, by their identity
    for name, source in sorted(_merged(root, upper, inner)):
        here = target / name
        about = source.lstat()
        if stat.S_ISLNK(about.st_mode):
            here.symlink_to(source.readlink())
            os.utime(here, ns=(about.st_mtime_ns, about.st_mtime_ns), follow_symlinks=False)
        elif stat.S_ISDIR(about.st_mode):
            here.mkdir(exist_ok=True)
            folders.append((here, about))
        elif about.st_nlink > 1 and (first := copied.setdefault((about.st_dev, about.st_ino), here)) != here:
            here.hardlink_to(first)
        else:
            copy_file(source, here)
    for here, about in reversed(folders):  # last, as what is put into a folder changes its time, or needs its mode
        here.chmod(stat.S_IMODE(about.st_mode))
        os.utime(here, ns=(about.st_mtime_ns, about.st_mtime_ns))


def _compared(root: Path, upper: Path, inner: str, depth: int, *, lower: bool) -> Iterator[ImageChange]:
    """The changes in one folder of `upper` and below; `lower`: whether the image's folder shows through there."""
    with os.scandir(upper / inner) as entries:
        found = [*entries]
    for entry in found:
        path = posixpath.join(inner, entry.name)
        old = _mode(root / path) if _is_beside(root, inner) else 0
        mode = entry.stat(follow_symlinks=False).st_mode
        if _is_white_out(entry):
            if old and lower:
                yield ImageChange(f"/{path}", "removed")
        elif not stat.S_ISDIR(mode):
            is_plain = stat.S_ISREG(mode) or stat.S_ISLNK(mode)
            if not (old and is_plain and _is_equal(root / path, upper / path)):
                yield ImageChange(f"/{path}", "changed" if old else "added", is_special=not is_plain)
        else:
            yield from _of_folder(root, upper, path, depth, old, mode)
    if not lower and _is_beside(root, inner):
        names = {entry.name for entry in found if not _is_white_out(entry)}
        yield from (ImageChange(f"/{inner}/{name}", "removed") for name in sorted(_names(root / inner) - names))


def _of_folder(root: Path, upper: Path, path: str, depth: int, old: int, mode: int) -> Iterator[ImageChange]:
    is_too_deep = depth >= _DEEPEST or len(os.fsencode(path)) > _LONGEST
    if stat.S_ISDIR(old):
        if stat.S_IMODE(old) != stat.S_IMODE(mode):
            yield ImageChange(f"/{path}", "changed", is_folder=True, is_too_deep=is_too_deep)
    else:
        yield ImageChange(f"/{path}", "changed" if old else "added", is_folder=True, is_too_deep=is_too_deep)
    if not is_too_deep:
        with contextlib.suppress(OSError):  # it is the owner's
            (upper / path).chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
        yield from _compared(root, upper, path, depth + 1, lower=not _is_opaque(upper / path))


def _is_equal(old: Path, new: Path) -> bool:
    with contextlib.suppress(OSError):  # it can't be read, so it isn't said to be equal
        return old.lstat().st_mode == new.lstat().st_mode and is_same(old, new)
    return False


def _make_folders(root: Path, upper: Path, fresh: Path, inner: str) -> None:
    """Makes a folder of the fresh place and those above it, with the modes that they have in `upper`."""
    path = ""
    for name in inner.split("/") if inner else ():
        path = posixpath.join(path, name)
        here = fresh / path
        if not os.path.lexists(here):
            here.mkdir()
            here.chmod(stat.S_IMODE(_mode(upper / path) or _mode(root / path)) | stat.S_IRWXU)


def _merged(root: Path, upper: Path | None, inner: str) -> Iterator[tuple[str, Path]]:
    """Each path below a folder as overlayfs shows it, relative to that, and the file that has its content."""
    waiting = [("", root / inner, upper / inner if upper else None)]
    while waiting:
        prefix, old, new = waiting.pop()
        below: dict[str, Path] = {}
        if stat.S_ISDIR(_mode(old)) and not (new and _is_opaque(new)):
            below = {entry.name: Path(entry.path) for entry in os.scandir(old)}
        if new and stat.S_ISDIR(_mode(new)):
            for entry in os.scandir(new):
                below[entry.name] = Path(entry.path)
                if _is_white_out(entry):
                    del below[entry.name]
        for name, source in below.items():
            mode, path = source.lstat().st_mode, posixpath.join(prefix, name)
            if stat.S_ISDIR(mode) and path.count("/") < _DEEPEST and len(os.fsencode(path)) <= _LONGEST:
                waiting.append((path, old / name, new / name if new else None))
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                yield path, source


def _resolved_in_both(root: Path, upper: Path, folder: str) -> str:
    """Where a path leads in the image as it was left: links that were changed are followed as they are now."""
    here = resolved(upper, folder)
    return here if (upper / here.lstrip("/")).is_dir() else resolved(root, folder)


def _is_beside(root: Path, inner: str) -> bool:
    """Whether the image has this folder itself, not one behind a link."""
    return all(
        stat.S_ISDIR(_mode(root / part)) for part in (*map(str, Path(inner).parents), inner) if part not in ("", ".")
    )


def _names(folder: Path) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries}


def _mode(path: Path) -> int:
    """The mode of what lies there itself; 0 where there is nothing."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _is_white_out(entry: os.DirEntry[str]) -> bool:
    about = entry.stat(follow_symlinks=False)
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == 0


def _is_opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False
