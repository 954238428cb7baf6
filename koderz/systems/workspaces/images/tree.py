"""Files of trees, paths in the root folder of an image, and the changes that commands made there.

The upper folder is overlayfs': a file that was changed lies there whole, what was removed is a character device 0:0 in
its place, and a folder that replaces one of the image has the attribute `user.overlay.opaque`. Read it only once all
commands of the place have ended.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_MOST_LINKS = 40  # that are followed for one path, as by the kernel
_OPAQUE = "user.overlay.opaque"
# folders in each other, and bytes of a path; what is beyond isn't looked at
_DEEPEST, _LONGEST = 200, 2500


@dataclass(frozen=True, slots=True)
class Layers:
    """Folders over each other, read as overlayfs shows them with `userxattr`. Paths in them have no / in front."""

    folders: tuple[Path, ...]  # the topmost first
    # what this machine has at these paths lies below all of them: ("/usr",)
    hosted: tuple[str, ...] = ()

    @classmethod
    def of(cls, root: Path | Layers) -> Layers:
        return root if isinstance(root, Layers) else cls((root,))

    @property
    def tops(self) -> Sequence[Path]:
        """The folders through which the root shows: none below one that has all of it."""
        last = next(
            (place for place, folder in enumerate(self.folders) if is_opaque(folder)),
            len(self.folders),
        )
        return self.folders[: last + 1]

    def find(self, inner: str) -> Path | None:
        """The file, folder or link that shows at a path; None where nothing does."""
        return next(iter(self.sources(inner)), None)

    def sources(self, inner: str) -> Sequence[Path]:
        """The folders that are merged at a path, the topmost first; else the one file or link that shows there."""
        found = self.tops
        here = ""
        for name in inner.split("/") if inner else ():
            found = self.inside(found, here, name)
            here = f"{here}/{name}"
        return found

    def inside(self, above: Sequence[Path], folder: str, name: str) -> Sequence[Path]:
        """The `sources` of a name in a folder, from those of the folder, whose path begins with /."""
        found: list[Path] = []
        hosted = [Path(f"{folder}/{name}")] if f"{folder}/{name}" in self.hosted else []
        for each in (*(source / name for source in above), *hosted):
            mode = mode_of(each)
            if not mode:
                continue
            if not stat.S_ISDIR(mode):
                return found or ([] if is_white_out(each) else [each])
            found.append(each)
            if is_opaque(each):
                break
        return found

    def names(self, inner: str) -> dict[str, Path]:
        """The entries that show in a folder, by name. Empty for what is no folder."""
        shown: dict[str, Path] = {}
        gone: set[str] = set()
        for folder in self.sources(inner):
            if stat.S_ISDIR(mode_of(folder)):
                for entry in os.scandir(folder):
                    if is_white_out(Path(entry.path)):
                        gone.add(entry.name)
                    elif entry.name not in gone:
                        shown.setdefault(entry.name, Path(entry.path))
        return shown

    def below(self, inner: str) -> Iterator[tuple[str, Path]]:
        """Each path below a folder, relative to that, and what shows there. Special files are left out."""
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            for name, source in self.names(
                posixpath.join(inner, prefix) if prefix else inner
            ).items():
                mode, path = mode_of(source), posixpath.join(prefix, name)
                if (
                    stat.S_ISDIR(mode)
                    and path.count("/") < _DEEPEST
                    and len(os.fsencode(path)) <= _LONGEST
                ):
                    waiting.append(path)
                if stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                    yield path, source

    def is_folder(self, inner: str) -> bool:
        """Whether a folder shows at a path, not one behind a link."""
        found = self.find(inner)
        return bool(found and stat.S_ISDIR(mode_of(found)))


def mode_of(path: Path) -> int:
    """The mode of what lies there itself; 0 where there is nothing."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def is_white_out(path: Path) -> bool:
    """Whether overlayfs shows nothing in its place, nor what lower folders have there."""
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == 0


def is_opaque(path: Path) -> bool:
    """Whether overlayfs shows nothing of lower folders in this one."""
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def make_opaque(path: Path) -> None:
    """See `is_opaque`."""
    os.setxattr(path, _OPAQUE, b"y", follow_symlinks=False)


def resolved(root: Path | Layers, path: str) -> str:
    """The path in the root that `path` leads to: absolute there, and without links or `..`. It need not exist.

    Raises OSError where links go round in circles.
    """
    layers = Layers.of(root)
    done: list[str] = []
    # of each folder in `done`, and of the one above them all
    sources: list[Sequence[Path]] = [layers.tops]
    rest, links = path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            del done[-1:]
            sources = sources[: len(done) + 1]
            continue
        here = "".join(f"/{each}" for each in done) if layers.hosted else ""
        found = layers.inside(sources[-1], here, name)
        if not found or not stat.S_ISLNK(mode_of(found[0])):
            done.append(name)
            sources.append(found)
            continue
        if (links := links + 1) > _MOST_LINKS:
            raise OSError(f"{path}: too many links")
        target = str(found[0].readlink())
        if target.startswith("/"):
            done.clear()
        sources = sources[: len(done) + 1]
        rest += target.split("/")[::-1]
    return "/" + "/".join(done)


def read_in_root(root: Path | Layers, path: str, limit: int) -> bytes:
    """The beginning of a regular file of a root; nothing where there is none."""
    try:
        found = Layers.of(root).find(resolved(root, path).lstrip("/"))
        opened = os.open(found or os.devnull, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(opened, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(opened).st_mode) else b""


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copies a regular file with its mode and time. Holes stay holes; a link in its place is no file: OSError."""
    with (
        os.fdopen(
            os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0
        ) as old,
        os.fdopen(
            os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600),
            "wb",
            buffering=0,
        ) as new,
    ):
        about = os.fstat(old.fileno())
        end = 0
        while end < about.st_size:
            try:
                begin = os.lseek(old.fileno(), end, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                break
            end = os.lseek(old.fileno(), begin, os.SEEK_HOLE)
            os.lseek(new.fileno(), begin, os.SEEK_SET)
            os.lseek(old.fileno(), begin, os.SEEK_SET)
            _copy_bytes(old.fileno(), new.fileno(), end - begin)
        os.ftruncate(new.fileno(), about.st_size)
        os.fchmod(new.fileno(), stat.S_IMODE(about.st_mode))
        os.utime(new.fileno(), ns=(about.st_mtime_ns, about.st_mtime_ns))


def is_same(one: Path, other: Path) -> bool:
    """Whether both are links with the same target, or files with the same content. Raises OSError if unreadable."""
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    if not (one.is_file() and other.is_file()) or one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as first, other.open("rb") as second:
        while chunk := first.read(1 << 20):
            if second.read(1 << 20) != chunk:
                return False
        return not second.read(1)


def _copy_bytes(old: int, new: int, count: int) -> None:
    while count > 0:
        part = os.read(old, min(count, 1 << 20))
        if not part:
            return
        written = 0
        while written < len(part):
            written += os.write(new, part[written:])
        count -= len(part)


# folders in each other, and bytes of a path; what is beyond isn't looked at


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
