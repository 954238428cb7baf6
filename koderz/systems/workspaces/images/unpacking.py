"""Unpacking an image's layers into one folder: once for each image, whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.archives import Member, damage, decompressed, forget
from koderz.systems.workspaces.images.archives import ImageInFile, parts_of
from koderz.systems.workspaces.images.tree import read_in_root, resolved

_FORM = "1"  # of what is in the cache: another one where layers are applied otherwise
_WHITE_OUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_DEEPEST = 200  # folders in each other
_ROOM = 256 << 20  # bytes that stay free on the disk
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
# the users of installed programs; those below come with every distribution
_DAEMONS = range(100, 1000)
_HARMLESS = (
    "_apt",
    "man",
    "messagebus",
    "dbus",
    "polkitd",
    "sshd",
    "tss",
    "uuidd",
    "utmp",
    "crontab",
    "www-data",
)


def unpack(
    held: ImageInFile, digest: str, cache: Path, workdir: str
) -> tuple[Path, Mapping[str, str]]:
    """The root folder of an image, and for other users than root that own folders in it one such folder.

    The folder is made by the first process that asks for it; others wait. Raises KoderzError where it can't be made.
    """
    if held.is_folder:
        return held.source, {}
    target = cache / _FORM / digest.removeprefix("sha256:")
    if not target.is_dir():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(target.with_name(f"{target.name}.lock")):
                if not target.is_dir():
                    _make(held, target, workdir)
        except OSError as error:
            raise KoderzError(
                f"{held.source} can't be unpacked below {cache}: {error.strerror or error}"
            ) from None
    return target / "root", msgspec.json.decode(
        (target / "owners.json").read_bytes(), type=dict[str, str]
    )


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Waits for other processes; the lock of one that is killed is given up."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(held: ImageInFile, target: Path, workdir: str) -> None:
    draft = target.with_name(f"{target.name}.part")
    _remove(draft)  # of a process that was killed
    root = draft / "root"
    root.mkdir(parents=True, mode=0o755)
    try:
        tree = _Tree(root)
        with parts_of(held.source, draft) as parts:
            for name, diff_id in zip(held.layers, held.configuration().layers, strict=True):
                with damage(held.source, f": its layer {name[:100]}"), parts.open(name) as raw:
                    _apply(tree, raw, diff_id)
        tree.finish(workdir)
        (draft / "owners.json").write_bytes(msgspec.json.encode(_owners(tree)))
        draft.rename(target)
    except BaseException:
        _remove(draft)
        raise


def _apply(tree: _Tree, raw: IO[bytes], diff_id: str) -> None:
    """Adds a layer. Raises ValueError where it isn't what its digest says, or leaves the image."""
    with decompressed(raw) as stream:
        hashing = _Hashing(stream)
        tree.begin_layer()
        with tarfile.open(fileobj=hashing, mode="r|", tarinfo=Member) as archive:
            for member in archive:
                tree.add(member, archive)
                forget(archive)
        while hashing.read(1 << 20):
            continue
        if hashing.hexdigest() != diff_id.removeprefix("sha256:"):
            raise ValueError(f"its content isn't what {diff_id} says")


class _Hashing(io.RawIOBase):
    """A stream that computes the digest of what is read; behind its end is the padding that some tools leave out."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._hash, self._padding = (
            stream,
            hashlib.sha256(),
            bytes(tarfile.RECORDSIZE),
        )

    def read(self, size: int = -1) -> bytes:
        if part := self._stream.read(size):
            self._hash.update(part)
            return part
        part, self._padding = self._padding, b""
        return part

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _Tree:
    """The root folder that layers are added to. Nothing outside of it is ever touched, whatever layers contain."""

    def __init__(self, root: Path) -> None:
        self.owners: dict[str, int] = {}  # of folders, by path
        self._root = root
        self._added: set[str] = set()  # by the layer at work
        self._folders: dict[str, str] = {"": ""}  # by path in a layer, the folder that it leads to
        self._times: dict[str, float] = {}
        self._left = shutil.disk_usage(root).free - _ROOM

    def begin_layer(self) -> None:
        self._added.clear()

    def add(self, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
        """Adds a member of a layer, or removes what a white-out names. ValueError for one that leaves the root."""
        names = [name for name in member.name.split("/") if name not in ("", ".")]
        if ".." in names:
            raise ValueError(f"its path {member.name[:100]!r} leaves the image")
        if not names:
            self._times[""] = member.mtime
            return
        folder = self._folder("/".join(names[:-1]))
        if names[-1].startswith(_WHITE_OUT):
            self._white_out(folder, names[-1])
        elif member.isreg() or member.isdir() or member.issym() or member.islnk():
            self._put(member, archive, folder, names[-1])

    def finish(self, workdir: str) -> None:
        """Adds what containers have besides an image's files, and sets the folders' times."""
        self._folder(workdir.strip("/"))
        if not read_in_root(self._root, "/etc/hosts", 1):
            self._folder("etc")
            hosts = self._root / resolved(self._root, "/etc/hosts").lstrip("/")
            with contextlib.suppress(OSError):  # it is something odd, and stays that
                hosts.write_text(_HOSTS)
        for path, time in self._times.items():
            # an error: it was removed by a later layer, or the time is odd
            with contextlib.suppress(OSError, OverflowError):
                os.utime(self._root / path, (time, time), follow_symlinks=False)

    def _folder(self, path: str) -> str:
        """The folder that a path leads to, links followed within the root, made where it is missing."""
        if path not in self._folders:
            above, _, name = path.rpartition("/")
            found = resolved(self._root, f"{self._folder(above)}/{name}").lstrip("/")
            here = self._root / found
            if not here.is_dir():
                if os.path.lexists(here):
                    self._remove(found)
                here.mkdir(mode=0o755, parents=True)
            self._folders[path] = found
        return self._folders[path]

    def _white_out(self, folder: str, name: str) -> None:
        if name == _OPAQUE:
            self._clear(folder)
            return
        hidden = name.removeprefix(_WHITE_OUT)
        if hidden in ("", ".", ".."):
            raise ValueError(f"its white-out {folder}/{name} leaves the image")
        path = posixpath.join(folder, hidden)
        # a name with two marks is bookkeeping of aufs
        if not hidden.startswith(_WHITE_OUT) and path not in self._added:
            self._remove(path)

    def _clear(self, folder: str) -> None:
        """Removes what lower layers have in a folder."""
        for entry in [*os.scandir(self._root / folder)]:
            path = posixpath.join(folder, entry.name)
            if path not in self._added:
                self._remove(path)
            elif entry.is_dir(follow_symlinks=False):
                self._clear(path)

    def _put(
        self, member: tarfile.TarInfo, archive: tarfile.TarFile, folder: str, name: str
    ) -> None:
        path = posixpath.join(folder, name)
        if path.count("/") > _DEEPEST:
            raise ValueError(f"{path[:100]!r} is too deep")
        here = self._root / path
        source = self._linked(member) if member.islnk() else here
        if os.path.lexists(here) and not (
            member.isdir() and here.is_dir() and not here.is_symlink()
        ):
            if member.islnk() and source == here:
                return
            self._remove(path)
        if member.isdir():
            here.mkdir(exist_ok=True)
            here.chmod(member.mode & 0o1777 | stat.S_IRWXU)
            self.owners[path] = member.uid
            self._times[path] = member.mtime
        elif member.issym():
            self._require_inside(member, path)
            here.symlink_to(member.linkname)
        elif member.islnk():
            os.link(source, here, follow_symlinks=False)
        else:
            self._write(member, archive, here)
        while path and path not in self._added:  # folders above it are of this layer, too
            self._added.add(path)
            path = posixpath.dirname(path)

    def _write(self, member: tarfile.TarInfo, archive: tarfile.TarFile, here: Path) -> None:
        self._left -= member.size
        if self._left < 0:
            raise OSError(28, "No space left on device: it takes more than the disk has")
        source = archive.extractfile(member)
        assert source
        with here.open("xb") as file:
            left = member.size
            while left > 0:
                if not (part := source.read(min(left, 1 << 20))):
                    raise EOFError("it ends too early")
                left -= len(part)
                if member.issparse() and not part.strip(b"\0"):
                    file.seek(len(part), os.SEEK_CUR)
                else:
                    file.write(part)
            file.truncate(member.size)
            os.fchmod(file.fileno(), member.mode & 0o777 | stat.S_IRUSR)
            with contextlib.suppress(OverflowError, OSError):
                os.utime(file.fileno(), (member.mtime, member.mtime))

    def _linked(self, member: tarfile.TarInfo) -> Path:
        """The file that a hard link names. Raises ValueError if it isn't in the root."""
        if ".." in member.linkname.split("/"):
            raise ValueError(f"its link {member.name[:100]!r} leaves the image")
        folder, _, name = member.linkname.strip("/").rpartition("/")
        found = self._root / resolved(self._root, folder).lstrip("/") / name
        mode = found.lstat().st_mode if name and os.path.lexists(found) else 0
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise ValueError(
                f"its link {member.name[:100]!r} names no file: {member.linkname[:100]!r}"
            )
        return found

    def _require_inside(self, member: tarfile.TarInfo, path: str) -> None:
        """Raises ValueError for a relative link that leads above the root."""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
        if not member.linkname.startswith("/") and target.split("/")[0] == "..":
            raise ValueError(
                f"its link {member.name[:100]!r} leaves the image: {member.linkname[:100]!r}"
            )

    def _remove(self, path: str) -> None:
        """Removes a file or folder, and forgets where paths through it led."""
        _remove(self._root / path)
        self._folders = {"": ""}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _owners(tree: _Tree) -> dict[str, str]:
    """The users of daemons that own folders, and one folder of each."""
    text = read_in_root(tree._root, "/etc/passwd", 1 << 20).decode("utf-8", "replace")
    names = {row[2]: row[0] for line in text.splitlines() if len(row := line.split(":")) > 2}
    found: dict[str, str] = {}
    for path, owner in tree.owners.items():
        name = names.get(str(owner), str(owner))
        is_harmless = name in _HARMLESS or name.startswith(("systemd-", "_"))
        if owner in _DAEMONS and not is_harmless and (tree._root / path).is_dir():
            found.setdefault(name, f"/{path}")
    return found
