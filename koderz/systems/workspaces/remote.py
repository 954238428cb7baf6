"""Messages of both ends of a remote sandbox, and archives of folders.

koderz imports this; there it is run by whatever python3 the image has (3.8 or later), as is `guest/command.py`.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

LARGEST = 1 << 18  # bytes of a payload
# kinds of frames
SPEC, TREE, OUTPUT, WIRE, BEAT, CLOCK, BESIDE, ENDED = (
    b"s",
    b"t",
    b"o",
    b"w",
    b"b",
    b"c",
    b"p",
    b"e",
)

_BLOCK = 4096  # bytes that anything takes at least
_LATEST = 1 << 33  # seconds since 1970
_SECOND = 1000000000  # nanoseconds
_NAMES: Mapping[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}


def pack(folders: Sequence[str], file: Any, room: float, hidden: Collection[str] = ()) -> bool:
    """Writes an archive of folders but for what is hidden. Returns whether `room`, in bytes, was enough for all."""
    with (
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed,
        _archive(packed, "w|") as archive,
    ):
        for number, folder in enumerate(folders):
            for path, status in entries(folder, hidden):
                room -= _BLOCK + (status.st_size if stat.S_ISREG(status.st_mode) else 0)
                if room < 0:
                    return False
                _add(archive, path, f"{number}/{os.path.relpath(path, folder)}", status)
    return True


def unpack(file: Any, folders: Sequence[str], room: float, owner: int | None = None) -> None:
    """Puts what was packed into the same folders, which are empty; links last, so that nothing goes through one.

    Raises ValueError for what leaves them or takes more than `room` bytes, OSError, EOFError or tarfile.TarError for
    what is no such archive.
    """
    links, made = [], []
    with _archive(gzip.GzipFile(fileobj=file), "r|") as archive:
        for each in archive:
            number, _, inner = each.name.partition("/")
            if (
                not number.isdigit()
                or int(number) >= len(folders)
                or {"..", ""} & {*inner.split("/")}
            ):
                raise ValueError(f"{each.name!r} leaves its folder")
            room -= _BLOCK + max(0, each.size)
            if room < 0:
                raise ValueError("it is more than may come")
            path = os.path.join(folders[int(number)], inner)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if each.issym():
                links.append((each.linkname, path, _time(each)))
                continue
            if each.isdir():
                os.makedirs(path, exist_ok=True)
                made.append((path, each.mode & 0o777 | 0o700, _time(each)))
            else:
                _write(archive.extractfile(each), path, each)
            if owner is not None:
                os.chown(path, owner, owner)
    for target, path, when in links:
        os.symlink(target, path)
        os.utime(path, ns=(when, when), follow_symlinks=False)
    for path, mode, when in reversed(made):  # last, as what is put into a folder changes its time
        os.chmod(path, mode)
        os.utime(path, ns=(when, when))


def entries(folder: str, hidden: Collection[str] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """All that is in a folder, each before what lies in it. What can't be read is left out."""
    folders = [folder]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as found:
            for each in found:
                if each.path not in hidden:
                    yield each.path, each.stat(follow_symlinks=False)
                    if each.is_dir(follow_symlinks=False):
                        folders.append(each.path)


def _archive(file: Any, mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT, **_NAMES)


def _add(archive: tarfile.TarFile, path: str, name: str, told: os.stat_result) -> None:
    """Adds a file, folder or link; nothing where it is something else or can't be read."""
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = stat.S_IMODE(told.st_mode), max(0, told.st_mtime_ns // _SECOND)
    if told.st_mtime_ns > 0 and told.st_mtime_ns % _SECOND:
        entry.pax_headers = {
            "mtime": f"{told.st_mtime_ns // _SECOND}.{told.st_mtime_ns % _SECOND:09d}"
        }
    with suppress(OSError):
        if stat.S_ISREG(told.st_mode):
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                entry.size = told.st_size
                archive.addfile(entry, file)
        elif stat.S_ISDIR(told.st_mode):
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        elif stat.S_ISLNK(told.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
            archive.addfile(entry)


def _write(source: Any, path: str, entry: tarfile.TarInfo) -> None:
    if source is None:
        raise ValueError(f"{entry.name!r} is no file, folder or link")
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb"
    ) as file:
        shutil.copyfileobj(source, file)
        os.chmod(file.fileno(), entry.mode & 0o777 | 0o400)
    when = _time(entry)
    os.utime(path, ns=(when, when))


def _time(entry: tarfile.TarInfo) -> int:
    """Nanoseconds since 1970, which are more than the number has that tarfile makes of them."""
    seconds = min(max(0, int(entry.mtime)), _LATEST)
    part = re.fullmatch("[0-9]+[.]([0-9]{9})", entry.pax_headers.get("mtime", ""))
    return seconds * _SECOND + (int(part[1]) if part else 0)
