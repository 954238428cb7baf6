"""Root folders that a store's images.json names, such as debootstrap and `docker export` make them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from koderz.errors import KoderzError
from koderz.settings.paths import cache_folder, home_folder
from koderz.systems.workspaces.images.archives import Configuration, ImageInFile, require_words
from koderz.systems.workspaces.images.references import parse_reference

_FILE = "images.json"
_PROGRAMS = ("bin", "usr/bin")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    workdir: str = "/"
    env: dict[str, str] = {}


def read_folders(store: Path) -> list[ImageInFile]:
    """The images that `images.json` in a folder names. Raises KoderzError for what is wrong in it."""
    file = store / _FILE
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KoderzError(f"{file} can't be read: {error.strerror}") from None
    try:
        entries = msgspec.json.decode(data, type=dict[str, _Entry])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KoderzError(f"{file}: {str(error)[:200]}") from None
    return [_held(file, name, entry) for name, entry in entries.items()]


def _held(file: Path, name: str, entry: _Entry) -> ImageInFile:
    where = f"{file}: {name[:100]}"
    try:
        reference = str(parse_reference(name))
    except KoderzError as error:
        raise KoderzError(f"{file}: {error}") from None
    root = _root(where, file.parent, entry.path)
    if not entry.workdir.startswith("/"):
        raise KoderzError(f"{where}: workdir has to begin with /")
    if wrong := next((each for each in entry.env if not each or "=" in each), None):
        raise KoderzError(f"{where}: env has the name {wrong[:100]!r}")
    config = Configuration((), entry.workdir, entry.env)
    require_words(config, where)
    return ImageInFile(root, (reference,), (_digest(root),), (), msgspec.json.encode(config).decode(), is_folder=True)


def _root(where: str, store: Path, path: str) -> Path:
    """The folder that an entry names. KoderzError for one that is no image, or holds what is this machine's own."""
    try:
        root = (store / path).resolve(strict=True)
        if not root.is_dir() or not any((root / each).is_dir() for each in _PROGRAMS):
            raise KoderzError(f"{where}: {path[:200]} is no root folder: it has no bin and no usr/bin")
    except (OSError, ValueError, RuntimeError):  # the last for links that go round in circles
        raise KoderzError(f"{where}: there is no folder {path[:200]!r}") from None
    own = [home_folder(), Path.cwd(), cache_folder(), store, Path("/usr"), Path("/etc")]
    if any(each.absolute().resolve().is_relative_to(root) for each in own) or root.is_relative_to("/usr"):
        raise KoderzError(f"{where}: {path[:200]} holds this machine's own files, which are no image")
    if root.stat().st_uid != os.getuid():
        raise KoderzError(
            f"{where}: {path[:200]} belongs to another user (uid {root.stat().st_uid}), so nothing could be changed in "
            "it; make a copy of your own"
        )
    return root


def _digest(root: Path) -> str:
    """A digest of the names, modes, sizes and times of all files below a folder; their content isn't read."""
    digest = hashlib.sha256()
    waiting = [b"/"]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(os.fsencode(root) + folder) as entries:
                for entry in sorted(entries, key=lambda each: each.name):
                    here, about = folder + entry.name, entry.stat(follow_symlinks=False)
                    digest.update(b"%s\0%o %d %d\0" % (here, about.st_mode, about.st_size, about.st_mtime_ns))
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(here + b"/")
        except PermissionError:  # of another user, whom nobody in it is
            continue
    return f"sha256:{digest.hexdigest()}"
