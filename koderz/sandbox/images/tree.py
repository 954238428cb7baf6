"""Files of trees, and paths in the root folder of an image, whose links lead where they would from within it."""

from __future__ import annotations

import os
import posixpath
import stat
from pathlib import Path

_MOST_LINKS = 40  # that are followed for one path, as by the kernel


def resolved(root: Path, path: str) -> str:
    """The path in the root that `path` leads to: absolute there, and without links or `..`. It need not exist.

    Raises OSError where links go round in circles.
    """
    done: list[str] = []
    rest, links = path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            del done[-1:]
            continue
        here = Path(posixpath.join(root, *done, name))
        try:
            is_link = stat.S_ISLNK(here.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_link = False
        if not is_link:
            done.append(name)
            continue
        if (links := links + 1) > _MOST_LINKS:
            raise OSError(f"{path}: too many links")
        target = str(here.readlink())
        if target.startswith("/"):
            done.clear()
        rest += target.split("/")[::-1]
    return "/" + "/".join(done)


def read_in_root(root: Path, path: str, limit: int) -> bytes:
    """The beginning of a regular file of a root; nothing where there is none."""
    try:
        opened = os.open(root / resolved(root, path).lstrip("/"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(opened, "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(opened).st_mode) else b""


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copies a regular file with its mode and time. Holes stay holes; a link in its place is no file: OSError."""
    with (
        os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0) as old,
        os.fdopen(
            os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb", buffering=0
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
