"""Environments that were built of Dockerfiles without a daemon: layers over an image's root, kept by their digest.

A layer is what overlayfs' upper folder has once all lines were followed. It is sealed by a rename, shared by all
commands that run over it, and never written to again. Who uses or builds one holds its lock, so that nobody removes it.
Where the base image isn't here, this machine's programs are the root.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.scratch import remove
from koderz.settings.paths import cache_folder
from koderz.systems.workspaces import userland
from koderz.systems.workspaces.images import UnpackedImage
from koderz.systems.workspaces.watching import occupied

NAMES = "koderz-environment:"
"""How the names of such images begin."""

_FORM = "1"  # of what is kept: another one where layers are made otherwise
_held: dict[Path, int] = {}  # locks of this process by environment


class _About(msgspec.Struct):
    base: str  # the root folder of the image
    layers: list[str]  # names of folders beside this file, the topmost first
    environment: dict[str, str]
    workdir: str = "/"
    user: str = ""
    hosted: list[str] = []
    source: str = ""  # the Dockerfile
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class BuiltEnvironment:
    """An environment that is kept."""

    digest: str
    source: str  # the Dockerfile that it was first built of
    bytes: int
    last_used: float  # in seconds of the epoch


def kept_folder() -> Path:
    """The folder of all environments."""
    return cache_folder() / "environments" / _FORM


def find_built(name: str) -> UnpackedImage | None:
    """The environment of that name; None where it isn't built. It stays for as long as this process lives."""
    folder = kept_folder() / name.removeprefix(NAMES)
    if about := _whole(folder):
        if folder not in _held:
            _held[folder] = _opened(folder)
            fcntl.flock(_held[folder], fcntl.LOCK_SH)
        about = _whole(folder)  # it may have been removed before it was held
    if about is None:
        if (descriptor := _held.pop(folder, None)) is not None:
            # or this process would wait for itself to build it
            os.close(descriptor)
        return None
    with contextlib.suppress(OSError):
        os.utime(folder / "about.json")
    return UnpackedImage(
        name,
        f"sha256:{folder.name}",
        Path(about.source),
        about.workdir,
        about.environment,
        about.user,
        Path(about.base),
        over=tuple(folder / layer for layer in about.layers),
        hosted=tuple(about.hosted),
    )


def _whole(folder: Path) -> _About | None:
    """The record of an environment; None where it isn't built, or the image that it stands on is gone."""
    try:
        about = msgspec.json.decode((folder / "about.json").read_bytes(), type=_About)
    except (OSError, msgspec.MsgspecError):
        return None
    return about if Path(about.base).is_dir() else None


@contextmanager
def building(digest: str) -> Iterator[Path | None]:
    """An empty folder to build an environment in; None where it is built already. Others wait until it is left."""
    folder = kept_folder() / digest
    if _whole(folder):
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _opened(folder)
    except OSError as error:
        raise KoderzError(
            f"environments can't be kept in {folder.parent}: {error.strerror}"
        ) from None
    draft = folder.with_name(f"{digest}.part")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _whole(folder):  # by the process that was waited for
            yield None
            return
        for left in (draft, folder):  # of a process that was killed, or on an image that is gone
            remove(left)
        draft.mkdir(mode=0o700)
        yield draft
    finally:
        remove(draft)
        os.close(descriptor)


def seal(digest: str, draft: Path, layers: list[Path], image: UnpackedImage) -> None:
    """Keeps the layers that were built in a draft, over the root of the image with their configuration."""
    made = draft / "sealed"
    made.mkdir()
    for layer in layers:
        layer.rename(made / layer.parent.name)
    about = _About(
        str(image.root),
        [layer.parent.name for layer in layers],
        dict(image.environment),
        image.workdir,
        image.user,
        [*image.hosted],
        str(image.source),
        occupied(made),
    )
    (made / "about.json").write_bytes(msgspec.json.encode(about))
    made.rename(kept_folder() / digest)


def built_environments() -> list[BuiltEnvironment]:
    """All that are kept, those that were used last at the end."""
    found = []
    for file in kept_folder().glob("*/about.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            about = msgspec.json.decode(file.read_bytes(), type=_About)
            found.append(
                BuiltEnvironment(file.parent.name, about.source, about.bytes, file.stat().st_mtime)
            )
    for draft in kept_folder().glob("*.part"):  # of a process that was killed, or is at work
        with contextlib.suppress(OSError):
            digest = draft.name.removesuffix(".part")
            found.append(
                BuiltEnvironment(digest, "unfinished", occupied(draft), draft.stat().st_mtime)
            )
    return sorted(found, key=lambda each: each.last_used)


def remove_built(digest: str) -> bool:
    """Removes an environment; False where another process uses it."""
    folder = kept_folder() / digest
    descriptor = _opened(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "about.json").unlink(missing_ok=True)
        remove(folder)
        remove(folder.with_name(f"{digest}.part"))
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _opened(folder: Path) -> int:
    return os.open(
        folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )


# This machine's programs as a root: its /usr lies below, read-only, and some of its /etc is copied. Nobody's home is
# seen, nor /var, /opt or /srv.

HOST = "this-machine"
"""The name of that root among images."""

WORKDIR = "/app"
"""Its working folder: where tasks work whose Dockerfile names no other."""

_FOLDERS = {
    **dict.fromkeys(
        ("etc", "home/user", "media", "mnt", "opt", "run", "srv", "var/cache", "var/lib/dpkg"),
        0o755,
    ),
    "root": 0o700,
    "tmp": 0o1777,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}
_STATUS = Path("/var/lib/dpkg/status")


def host_image() -> UnpackedImage:
    """The root of this machine's programs. Its folder is made once. Raises OSError where the disk refuses."""
    return _host_image(kept_folder())


@cache
def _host_image(kept: Path) -> UnpackedImage:
    folders = [
        Path(folder) for folder in userland.system_folders() if not Path(folder).is_symlink()
    ]
    digest = hashlib.sha256(repr((os.getuid(), userland.python())).encode())
    for path in (
        _STATUS,
        Path("/etc/ld.so.cache"),
        Path("/usr/bin"),
        Path("/usr/local/bin"),
        *folders,
    ):
        if path.exists():
            digest.update(f"{path} {path.stat().st_mtime_ns}\0".encode())
    own = digest.hexdigest()[:32]
    root = kept / f"host-{own}"
    if not root.is_dir():
        kept.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{root.name}.", dir=kept))
        draft.chmod(0o755)
        try:
            _fill(draft, folders)
            draft.rename(root)
        except OSError:
            if not root.is_dir():  # else another task or process was faster
                raise
        finally:
            remove(draft)
    environment = {"PATH": userland.environment()["PATH"], "LANG": "C.UTF-8"}
    hosted = tuple(map(str, folders))
    return UnpackedImage(
        HOST, f"host:{own}", Path("/"), WORKDIR, environment, "", root, hosted=hosted
    )


def _fill(root: Path, folders: list[Path]) -> None:
    for name, mode in _FOLDERS.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(mode)
    for name in userland.system_folders():
        path = Path(name)
        if path.is_symlink():
            (root / name.lstrip("/")).symlink_to(path.readlink())
    for name, text in userland.FILES.items():
        (root / "etc" / name).write_text(text)
    for name in (*userland.OF_ETC, "os-release", "debian_version"):
        source, target = Path("/etc", name), root / "etc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, ignore=_unreadable)
        elif source.is_symlink() or source.is_file():
            shutil.copy2(source, target, follow_symlinks=False)
    if _STATUS.is_file():
        shutil.copy2(_STATUS, root / _STATUS.relative_to("/"))
    for folder in folders:
        (root / folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            _mirror(folder, root)


def _mirror(folder: Path, root: Path) -> None:
    """Makes each folder below one of another user's.

    Overlayfs gives a folder the owner of its topmost layer, and in one of another user's nothing can be added.
    """
    for here, names, _ in os.walk(folder):
        names[:] = [name for name in names if not Path(here, name).is_symlink()]
        target = root / here.lstrip("/")
        target.mkdir(exist_ok=True)
        target.chmod(stat.S_IMODE(Path(here).stat().st_mode) | stat.S_IRWXU)


def _unreadable(folder: str, names: list[str]) -> list[str]:
    return [
        name
        for name in names
        if not (Path(folder, name).is_symlink() or os.access(Path(folder, name), os.R_OK))
    ]
