"""The files that a candidate may read: the standard library, shared libraries, and declared packages.

Made by each zygote as it starts, of about a thousand files: pathlib alone would take longer than the rest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "idlelib", "ensurepip"})
_LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_SINGLE_FILES = (
    "/dev/null",
    "/dev/urandom",
    "/dev/zero",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
)
_MOST_LINKS = 40  # in one path, as the kernel has it


class Readable(NamedTuple):
    """The visible part of the file tree."""

    # files and folders, whole, by names without links in them; some may not be there
    paths: list[str]
    # what leads to them by other names: each link's target, as it stands in the link
    links: dict[str, str]


def readable(packages: Iterable[str] = ()) -> Readable:
    """The files that a candidate may read, with these folders of packages."""
    tree = _Tree()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = (
        os.path.dirname(os.__file__),
        os.path.join(sys.base_exec_prefix, sys.platlibdir, version),
    )
    # Entry by entry: interpreters keep packages, data sets among them, in folders inside these.
    tree.add_entries(library, lambda name: name not in _NOT_LIBRARY)
    tree.add_entries((*_LIBRARY_FOLDERS, *_architecture_folders()), lambda name: ".so" in name)
    for path in (*_SINGLE_FILES, *packages):
        tree.add(path)
    return Readable(
        sorted(tree.paths),
        {link: target for link, target in tree.targets.items() if target is not None},
    )


class _Tree:
    """Paths, and the links that lead to them."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.targets: dict[str, str | None] = {}  # None for what is no link

    def add(self, path: str, at: str = "") -> None:
        self.paths.add(self._followed(path, at))

    def add_entries(self, folders: Iterable[str], wanted: Callable[[str], bool]) -> None:
        """Adds the entries of the existing folders whose names are wanted."""
        for folder in {self._followed(folder) for folder in folders}:
            for entry in os.scandir(folder) if os.path.isdir(folder) else ():
                if wanted(entry.name):
                    if entry.is_symlink():
                        self.add(entry.name, folder)
                    else:
                        self.paths.add(entry.path)

    def _followed(self, path: str, at: str = "") -> str:
        """The path, beginning in the folder `at`, with links resolved; a circular one counts as missing."""
        left, followed = path.split("/")[::-1], 0
        while left:
            name = left.pop()
            here = f"{at}/{name}"
            if name == "..":
                at = os.path.dirname(at)
            elif name not in ("", "."):
                if here not in self.targets:
                    self.targets[here] = _target(here)
                target = self.targets[here]
                if target is None:
                    at = here
                elif (followed := followed + 1) > _MOST_LINKS:
                    return here
                else:
                    at = "" if target.startswith("/") else at
                    left += target.split("/")[::-1]
        return at


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _architecture_folders() -> list[str]:
    """Folders such as `/usr/lib/x86_64-linux-gnu`, and those of this process's own libraries."""
    with open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if ".so" in line}
    multiarch = getattr(sys.implementation, "_multiarch", "")
    return [
        *{os.path.dirname(path) for path in mapped},
        f"/usr/lib/{multiarch}",
        f"/lib/{multiarch}",
    ]
