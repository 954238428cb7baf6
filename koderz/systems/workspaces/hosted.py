"""This machine's programs as the root of an environment whose base image isn't here.

Its /usr lies below, read-only, and some of its /etc is copied; nobody's home, no /var, /opt or /srv is seen.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from functools import cache
from pathlib import Path

from koderz.sandbox.scratch import remove
from koderz.systems.workspaces import userland
from koderz.systems.workspaces.built import kept_folder
from koderz.systems.workspaces.images import UnpackedImage

HOST = "this-machine"
"""The name of that root among images."""

WORKDIR = "/app"
"""Its working folder: where tasks work whose Dockerfile names no other."""

_FOLDERS = {
    **dict.fromkeys(("etc", "home/user", "media", "mnt", "opt", "run", "srv", "var/cache", "var/lib/dpkg"), 0o755),
    "root": 0o700,
    "tmp": 0o1777,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}
_STATUS = Path("/var/lib/dpkg/status")


@cache
def host_image() -> UnpackedImage:
    """The root of this machine's programs. Its folder is made once. Raises OSError where the disk refuses."""
    folders = [Path(folder) for folder in userland.system_folders() if not Path(folder).is_symlink()]
    digest = hashlib.sha256(repr((os.getuid(), userland.python())).encode())
    for path in (_STATUS, Path("/etc/ld.so.cache"), Path("/usr/bin"), Path("/usr/local/bin"), *folders):
        if path.exists():
            digest.update(f"{path} {path.stat().st_mtime_ns}\0".encode())
    own = digest.hexdigest()[:32]
    root = kept_folder() / f"host-{own}"
    if not root.is_dir():
        draft = root.with_name(f"{root.name}.{os.getpid()}")
        remove(draft)
        draft.mkdir(parents=True, mode=0o755)
        _fill(draft, folders)
        try:
            draft.rename(root)
        except OSError:  # another process was faster
            remove(draft)
    environment = {"PATH": userland.environment()["PATH"], "LANG": "C.UTF-8"}
    hosted = tuple(map(str, folders))
    return UnpackedImage(HOST, f"host:{own}", Path("/"), WORKDIR, environment, "", root, hosted=hosted)


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
    return [name for name in names if not (Path(folder, name).is_symlink() or os.access(Path(folder, name), os.R_OK))]
