"""A store of images that needs no daemon and no registry: a folder of archives, OCI layouts and root folders.

`ImageStore.find` tells whether an image is there, `ImageStore.unpacked` has its files on disk. Commands of the local
workspace run in it (`Command.image` is its name); `tree` lists what they changed, and carries it elsewhere.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz.settings.paths import cache_folder
from koderz.systems.workspaces.images.archives import Reference, parse_reference
from koderz.systems.workspaces.images.tree import Layers, read_in_root, resolved

if TYPE_CHECKING:
    from koderz.systems.workspaces.images.archives import ImageInFile

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LARGEST = 1 << 20  # bytes of /etc/passwd


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image of a store, as its configuration describes it."""

    name: str  # whole: docker.io/library/ubuntu:24.04
    # sha256:…, of its configuration, as docker's image id; of a root folder: of its files' names and times
    digest: str
    source: Path  # the archive, layout or root folder that it comes from
    workdir: str = "/"  # absolute, normalised
    # its Env, in which PATH is always set
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    # as its configuration has it: a name or a number, either with :GROUP; empty: root
    user: str = ""


@dataclass(frozen=True, slots=True)
class UnpackedImage(StoredImage):
    """An image whose files are on disk."""

    # a folder with its files, shared by all that run in it: never write below it
    root: Path = Path()
    # a folder of each other user than root
    owners: Mapping[str, str] = field(default_factory=dict, hash=False)
    # folders with what was built upon it, the topmost first: never write below them
    over: tuple[Path, ...] = ()
    hosted: tuple[str, ...] = ()  # paths at which it has what this machine has there: ("/usr",)

    @property
    def layers(self) -> Layers:
        """All its files."""
        return Layers((*self.over, self.root), self.hosted)

    def path(self, inner: str) -> Path:
        """Where a path of the image lies here, links followed as from within the image. It need not exist."""
        path = resolved(self.layers, inner).lstrip("/")
        return self.layers.find(path) or self.root / path

    def account(self, user: str = "") -> Account:
        """The account of a user, or of the image's own. Raises KoderzError for one that the image doesn't have."""
        wanted, _, group = (user or self.user or "0").partition(":")
        rows = _rows(self.layers, "/etc/passwd", 6)
        row = next((row for row in rows if wanted in (row[0], row[2])), None)
        if row is None and not wanted.isdecimal():
            raise KoderzError(f"the image {self.name} has no user {wanted!r}")
        number = row[2] if row else wanted
        if group and not group.isdecimal():
            groups = (each[2] for each in _rows(self.layers, "/etc/group", 3) if each[0] == group)
            if not (group := next(groups, "")):
                raise KoderzError(f"the image {self.name} has no group of its user {self.user!r}")
        home = row[5] if row and row[5].startswith("/") else "/"
        return Account(
            int(number), int(group or (row[3] if row else 0)), home, row[0] if row else number
        )

    @property
    def other_user(self) -> str:
        """Why its programs need more than one user, which no root without a daemon has; empty where one will do."""
        own = self.account().name
        for name, folder in self.owners.items():
            if name not in ("root", own):
                return f"its programs need the user {name}, who owns {folder}"
        return ""


@dataclass(frozen=True, slots=True)
class Account:
    """A user of an image."""

    user: int
    group: int
    home: str
    name: str


class ImageStore:
    """The images in a folder; without one it is empty.

    In the folder lie archives of `docker save` and OCI layouts (folders, or tar archives, plain or compressed), found
    by their tags, and an `images.json` that names root folders: `{"NAME": {"path", "workdir", "env"}}`. Files are read
    when they are first asked for. Several processes may use one store at once.
    """

    def __init__(self, folder: Path | None = None, cache: Path | None = None) -> None:
        """`cache` is where images are unpacked: by default `images` in koderz' cache folder."""
        self.folder = folder
        self._cache = cache or cache_folder() / "images"
        self._held: Sequence[ImageInFile] | None = None
        self._broken: list[KoderzError] = []
        self._unpacked: dict[str, UnpackedImage] = {}
        self.lent: dict[str, UnpackedImage] = {}  # by name, beside those in the folder

    def names(self) -> list[str]:
        """The whole names of all images, sorted. Raises KoderzError for a damaged file."""
        held = self._read()
        for error in self._broken:
            raise error
        return sorted({name for each in held for name in each.names})

    def find(self, name: str) -> StoredImage | None:
        """The image of that name (`ubuntu`, `a/b:tag`, `a/b@sha256:…`), or None where the store doesn't have it.

        Nothing is unpacked. Raises KoderzError for what is no name, for an image that is damaged or for another kind
        of machine, and for a damaged file if it could have been in that.
        """
        if name in self.lent:
            return self.lent[name]
        reference = parse_reference(name)
        found = self._find(reference)
        return _stored(found, reference) if found else None

    def require(self, name: str) -> StoredImage:
        """The image of that name. Raises KoderzError, which says how to get it, where the store doesn't have it."""
        if found := self.find(name):
            return found
        if self.folder is None:
            raise KoderzError(
                f"the image {name} isn't here: name a folder that holds it with --images"
            )
        file = name.rpartition("/")[2].partition("@")[0].replace(":", "-") or "image"
        raise KoderzError(
            f"there is no image {name} in {self.folder}; on a machine with docker: docker pull {name} && "
            f"docker save {name} -o {self.folder / file}.tar"
        )

    def unpacked(self, name: str) -> UnpackedImage:
        """The image of that name with its files on disk, unpacked once for all processes of this user.

        It takes a second for 200 MB; call it in a thread. Raises KoderzError where it is missing, damaged, too large
        for the disk, or has paths or links that leave it: one line with the file and what is wrong.
        """
        from koderz.systems.workspaces.images.unpacking import unpack

        if name in self.lent:
            return self.lent[name]
        stored = self.require(name)
        if stored.digest not in self._unpacked:
            held = self._find(parse_reference(name))
            assert held
            root, owners = unpack(held, stored.digest, self._cache, stored.workdir)
            self._unpacked[stored.digest] = UnpackedImage(
                stored.name,
                stored.digest,
                stored.source,
                stored.workdir,
                stored.environment,
                stored.user,
                root,
                owners,
            )
        return self._unpacked[stored.digest]

    def _find(self, wanted: Reference) -> ImageInFile | None:
        held = self._read()
        if wanted.digest:
            found = [each for each in held if wanted.digest in each.digests]
        else:
            found = [each for each in held if str(wanted) in each.names]
        if not found and self._broken:
            raise self._broken[0]
        if len({each.id for each in found}) > 1:
            first, second, *_ = found
            raise KoderzError(
                f"{wanted} is two different images, in {first.source} and in {second.source}"
            )
        return found[0] if found else None

    def _read(self) -> Sequence[ImageInFile]:
        """The images in all files of the folder. What is wrong with files is kept for whoever misses an image."""
        if self._held is not None:
            return self._held
        from koderz.systems.workspaces.images.archives import images_in, read_folders

        self._broken.clear()
        found: list[ImageInFile] = []
        if self.folder is not None:
            if not self.folder.is_dir():
                raise KoderzError(f"--images: there is no folder {self.folder}")
            found += read_folders(self.folder)
            for path in [self.folder, *sorted(self.folder.iterdir())]:
                try:
                    found += images_in(path, self._cache)
                except KoderzError as error:
                    self._broken.append(error)
        self._held = found
        return found


def _stored(held: ImageInFile, reference: Reference) -> StoredImage:
    config = held.configuration()
    workdir = posixpath.normpath("/" + config.workdir.lstrip("/"))
    environment = {"PATH": _PATH, **config.environment}
    return StoredImage(str(reference), held.id, held.source, workdir, environment, config.user)


def _rows(root: Layers, path: str, fields: int) -> list[list[str]]:
    """The lines of a table of an image, such as /etc/passwd, of those that have so many fields and numbers in them."""
    text = read_in_root(root, path, _LARGEST).decode("utf-8", "replace")
    rows = [line.split(":") for line in text.splitlines()]
    return [
        row
        for row in rows
        if len(row) >= fields and row[2].isdecimal() and (fields < 6 or row[3].isdecimal())
    ]
