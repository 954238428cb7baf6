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

from koderz.systems.workspaces.images.tree import (
    Layers,
    copy_file,
    is_opaque,
    is_same,
    is_white_out,
    mode_of,
    resolved,
)

# folders in each other, and bytes of a path; what is beyond isn't looked at
_DEEPEST, _LONGEST = 200, 2500


@dataclass(frozen=True, slots=True)
class ImageChange:
    """A path of an image that is another than the image has it."""

    path: str  # absolute in the image; of what is removed the topmost folder
    kind: Literal["added", "changed", "removed"]
    is_folder: bool = False  # of what is there now; a folder that is `changed` has another mode
    is_special: bool = False  # a socket, a pipe or the like, which can't be carried
    is_too_deep: bool = False  # a folder that nobody looks into


def changes(root: Path | Layers, upper: Path) -> list[ImageChange]:
    """The changes in `upper` of the image with the folder `root`, sorted by path; an added folder before what is in it.

    Times don't count as changes, nor does a file that was written with the content and mode that it had. `upper` need
    not exist.
    """
    found = (
        _compared(Layers.of(root), upper, "", 0, lower=not is_opaque(upper))
        if upper.is_dir()
        else ()
    )
    return sorted(found, key=lambda change: change.path)


def carry(
    root: Path | Layers, upper: Path, fresh: Path, wanted: Callable[[ImageChange], bool]
) -> list[ImageChange]:
    """Makes the wanted changes in the upper folder of another place, in which no command has run yet.

    Returns those made, sorted. Folders above a wanted path are made with it; owners, times and extended attributes of
    the agent's are not kept, hard links become files of their own, and special files are left out. Raises OSError where
    the disk refuses.
    """
    made, root = [], Layers.of(root)
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


def copy_folder(root: Path | Layers, folder: str, target: Path, upper: Path | None = None) -> None:
    """Copies a folder of an image into `target`, which may exist; with `upper`, as the command that wrote it left it.

    Links in the path of the folder are followed within the image, those in it are copied as links. Modes, times and
    hard links are kept, special files are left out. Nothing where the image hasn't got the folder. Raises OSError where
    the disk refuses.
    """
    layers = Layers.of(root)
    if upper is not None:
        layers = Layers((upper, *layers.folders), layers.hosted)
    inner = resolved(layers, folder).lstrip("/")
    top = layers.find(inner)
    folders = [(target, top.lstat())] if top and stat.S_ISDIR(mode_of(top)) else []
    copied: dict[tuple[int, int], Path] = {}  # files that have several names, by their identity
    for name, source in sorted(layers.below(inner)):
        here = target / name
        about = source.lstat()
        if stat.S_ISLNK(about.st_mode):
            here.symlink_to(source.readlink())
            os.utime(here, ns=(about.st_mtime_ns, about.st_mtime_ns), follow_symlinks=False)
        elif stat.S_ISDIR(about.st_mode):
            here.mkdir(exist_ok=True)
            folders.append((here, about))
        elif (
            about.st_nlink > 1
            and (first := copied.setdefault((about.st_dev, about.st_ino), here)) != here
        ):
            here.hardlink_to(first)
        else:
            copy_file(source, here)
    # last, as what is put into a folder changes its time, or needs its mode
    for here, about in reversed(folders):
        here.chmod(stat.S_IMODE(about.st_mode))
        os.utime(here, ns=(about.st_mtime_ns, about.st_mtime_ns))


def _compared(
    root: Layers, upper: Path, inner: str, depth: int, *, lower: bool
) -> Iterator[ImageChange]:
    """The changes in one folder of `upper` and below; `lower`: whether the image's folder shows through there."""
    with os.scandir(upper / inner) as entries:
        found = [*entries]
    for entry in found:
        path = posixpath.join(inner, entry.name)
        below = root.find(path)
        old = mode_of(below) if below else 0
        mode = entry.stat(follow_symlinks=False).st_mode
        if is_white_out(Path(entry.path)):
            if old and lower:
                yield ImageChange(f"/{path}", "removed")
        elif not stat.S_ISDIR(mode):
            is_plain = stat.S_ISREG(mode) or stat.S_ISLNK(mode)
            if not (below and is_plain and _is_equal(below, upper / path)):
                yield ImageChange(
                    f"/{path}", "changed" if old else "added", is_special=not is_plain
                )
        else:
            yield from _of_folder(root, upper, path, depth, old, mode, lower=lower)
    if not lower and root.is_folder(inner):
        names = {entry.name for entry in found if not is_white_out(Path(entry.path))}
        yield from (
            ImageChange(f"/{inner}/{name}", "removed")
            for name in sorted({*root.names(inner)} - names)
        )


def _of_folder(
    root: Layers, upper: Path, path: str, depth: int, old: int, mode: int, *, lower: bool
) -> Iterator[ImageChange]:
    is_too_deep = depth >= _DEEPEST or len(os.fsencode(path)) > _LONGEST
    if stat.S_ISDIR(old):
        if stat.S_IMODE(old) != stat.S_IMODE(mode):
            yield ImageChange(f"/{path}", "changed", is_folder=True, is_too_deep=is_too_deep)
    else:
        yield ImageChange(
            f"/{path}", "changed" if old else "added", is_folder=True, is_too_deep=is_too_deep
        )
    if not is_too_deep:
        with contextlib.suppress(OSError):  # it is the owner's
            (upper / path).chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
        yield from _compared(
            root, upper, path, depth + 1, lower=lower and not is_opaque(upper / path)
        )


def _is_equal(old: Path, new: Path) -> bool:
    with contextlib.suppress(OSError):  # it can't be read, so it isn't said to be equal
        return old.lstat().st_mode == new.lstat().st_mode and is_same(old, new)
    return False


def _make_folders(root: Layers, upper: Path, fresh: Path, inner: str) -> None:
    """Makes a folder of the fresh place and those above it, with the modes that they have in `upper`."""
    path = ""
    for name in inner.split("/") if inner else ():
        path = posixpath.join(path, name)
        here = fresh / path
        if not os.path.lexists(here):
            here.mkdir()
            below = root.find(path)
            here.chmod(
                stat.S_IMODE(mode_of(upper / path) or (mode_of(below) if below else 0))
                | stat.S_IRWXU
            )
