"""The file tree that a candidate sees, made as the root of its mount namespace.

It has what it may read, and nothing else by any name: Landlock refuses to open other files, but tells
whether they exist, how large they are and where links lead; and to look at a file of an automounter or of FUSE is a
message to whoever serves it.
"""

from __future__ import annotations

import os
import struct

from koderz.sandbox.linux import kernel

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from koderz.sandbox.linux.readable import Readable

# where the tree is made: a folder that every system has, and of which nothing is kept
STAGE = "/proc"
_COVER = f"{STAGE}/.cover"
_FEW = 16  # entries of one folder that are mounted each; where there are more, the folder is
_MOUNT_SETATTR, _CURRENT_FOLDER, _RECURSIVE = 442, -100, 0x8000
_READ_ONLY_WITHOUT_SETUID = struct.pack("=4Q", 0x1 | 0x2, 0, 0, 0)


def confine(readable: Readable) -> None:
    """Makes a read-only tree of `readable` the root of this mount namespace. Raises OSError if the kernel refuses."""
    stage()
    os.mkdir(_COVER)
    paths = {*readable.paths}
    for path in sorted(_gathered(paths)):
        if os.path.exists(path):
            _show(path, paths)
    for link, target in readable.links.items():
        if not os.path.lexists(STAGE + link):
            os.makedirs(os.path.dirname(STAGE + link), exist_ok=True)
            os.symlink(target, STAGE + link)
    kernel.change_root(STAGE)
    make_read_only("/")


def stage() -> None:
    """Mounts an empty folder at `STAGE` for building a file tree, invisible outside this namespace."""
    kernel.mount(None, "/", kernel.MS_PRIVATE | kernel.MS_REC)
    kernel.mount("none", STAGE, kind="tmpfs", data="mode=755")


def make_read_only(mounted: str, *, recursive: bool = True) -> None:
    """Makes a mount read-only and prevents its programs from gaining rights."""
    attributes, size = kernel.pointer_to(_READ_ONLY_WITHOUT_SETUID), len(_READ_ONLY_WITHOUT_SETUID)
    path = kernel.pointer_to(os.fsencode(mounted) + b"\0")
    kernel.syscall(
        _MOUNT_SETATTR, _CURRENT_FOLDER, path, _RECURSIVE if recursive else 0, attributes, size
    )


def _gathered(paths: Iterable[str]) -> Iterator[str]:
    """The paths, with a folder in place of its entries if there are many of them."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(os.path.dirname(path), []).append(path)
    for folder, entries in folders.items():
        yield from [folder] if len(entries) > _FEW else entries


def _show(path: str, wanted: Collection[str]) -> None:
    """Mounts a file or folder at its own path, unless a folder above it is mounted already.

    Folders in it that aren't `wanted` are covered by an empty one.
    """
    place = STAGE + path
    if os.path.lexists(place):
        return
    if not os.path.isdir(path):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o444))
    else:
        os.makedirs(place)
    kernel.mount(path, place, kernel.MS_BIND | kernel.MS_REC)
    if path not in wanted:
        for entry in os.scandir(path):
            if entry.path not in wanted and entry.is_dir(follow_symlinks=False):
                kernel.mount(_COVER, place + "/" + entry.name, kernel.MS_BIND)
