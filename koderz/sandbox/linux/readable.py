"""What a candidate may read: the standard library, the shared libraries, and declared packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "idlelib", "ensurepip"})
_LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_SINGLE_FILES = ("/dev/null", "/dev/urandom", "/dev/zero", "/etc/ld.so.cache", "/usr/share/zoneinfo")


def readable(packages: Iterable[Path] = ()) -> Iterator[Path]:
    """Every file or folder, whole, that Landlock is to leave readable."""
    yield from _standard_library()
    yield from _shared_libraries()
    yield from map(Path, _SINGLE_FILES)
    yield from packages


def _standard_library() -> Iterator[Path]:
    """Entry by entry, since packages, data sets among them, live in a folder inside it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in {Path(os.__file__).parent, Path(sys.base_exec_prefix, sys.platlibdir, version)}:
        if folder.is_dir():
            yield from (entry for entry in folder.iterdir() if entry.name not in _NOT_LIBRARY)


def _shared_libraries() -> Iterator[Path]:
    """The files of the loader's folders, not the folders: interpreters keep packages below them."""
    for folder in {Path(path).resolve() for path in (*_LIBRARY_FOLDERS, *_architecture_folders())}:
        if folder.is_dir():
            yield from (entry for entry in folder.iterdir() if ".so" in entry.name)


def _architecture_folders() -> list[str]:
    """`/usr/lib/x86_64-linux-gnu` and its like, and wherever this process's own libraries lie."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    multiarch = getattr(sys.implementation, "_multiarch", "")
    return [*{str(Path(path).parent) for path in mapped}, f"/usr/lib/{multiarch}", f"/lib/{multiarch}"]
