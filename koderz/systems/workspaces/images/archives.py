"""Archives of `docker save` and OCI image layouts: which images they hold, by which names, and their parts.

A layout is a folder or a tar archive; an archive may be compressed by gzip, bzip2, xz or zstd. Formats: the OCI image
specification 1.1, and docker's manifest.json. Folders of roots, such as debootstrap and `docker export` make, are named
in `images.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import posixpath
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, TypeVar

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.archives import Member, damage, decompressed, forget
from koderz.settings.paths import cache_folder, home_folder
from koderz_tracker.files import write_whole

T = TypeVar("T")

_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tzst", ".oci")
_LARGEST, _MOST = 4 << 20, 64 << 20  # bytes of one document, and of all of an archive
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_TAG, _FULL_NAME = "org.opencontainers.image.ref.name", "io.containerd.image.name"


class _Saved(msgspec.Struct):
    """An entry of docker's manifest.json."""

    Config: str
    Layers: list[str]
    RepoTags: list[str] | None = None


class _Platform(msgspec.Struct):
    architecture: str = ""
    os: str = ""


class _Descriptor(msgspec.Struct):
    digest: str
    mediaType: str = ""  # noqa: N815 the specification's name
    annotations: dict[str, str] | None = None
    platform: _Platform | None = None


class _Document(msgspec.Struct):
    """An index, or a manifest."""

    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] | None = None


class _ContainerConfig(msgspec.Struct):
    WorkingDir: str | None = None
    Env: list[str] | None = None
    User: str | None = None


class _Files(msgspec.Struct):
    diff_ids: list[str]


class _Config(msgspec.Struct):
    rootfs: _Files
    config: _ContainerConfig | None = None
    architecture: str = ""
    os: str = "linux"


class Configuration(msgspec.Struct, frozen=True):
    """The parts of an image's configuration that matter to those who run in it."""

    layers: tuple[str, ...] = ()  # the digest of each, uncompressed, the lowest first
    workdir: str = ""
    environment: dict[str, str] = {}
    user: str = ""


class ImageInFile(msgspec.Struct, frozen=True):
    """An image in a file of a store."""

    source: Path
    names: tuple[str, ...]  # whole
    digests: tuple[str, ...]  # by which it is found, its own first
    layers: tuple[str, ...] = ()  # the names of their archives in the source, the lowest first
    config: str = ""  # JSON
    # whether `source` is the image's own root folder, and `config` a `Configuration`
    is_folder: bool = False

    @property
    def id(self) -> str:
        return self.digests[0]

    def configuration(self) -> Configuration:
        """Its configuration. Raises KoderzError where it is damaged, or for another kind of machine."""
        if self.is_folder:
            return msgspec.json.decode(self.config, type=Configuration)
        config = _decoded(
            self.config.encode(), _Config, f"{self.source}: the configuration of {self.id}"
        )
        machine = _MACHINES.get(platform.machine(), platform.machine())
        made_for = f"{config.os}/{config.architecture or machine}"
        if made_for != f"linux/{machine}":
            raise KoderzError(
                f"{self.source}: {self._shown} is made for {made_for}; this machine is linux/{machine}"
            )
        if not all(map(DIGEST.fullmatch, config.rootfs.diff_ids)) or len(
            config.rootfs.diff_ids
        ) != len(self.layers):
            raise KoderzError(
                f"{self.source}: {self._shown} is damaged: its layers aren't those of its configuration"
            )
        run = config.config or _ContainerConfig()
        pairs = [word.partition("=") for word in run.Env or () if "=" in word[1:]]
        found = Configuration(
            tuple(config.rootfs.diff_ids),
            run.WorkingDir or "",
            {name: value for name, _, value in pairs},
            run.User or "",
        )
        require_words(found, f"{self.source}: {self._shown}")
        return found

    @property
    def _shown(self) -> str:
        return self.names[0] if self.names else self.id


def require_words(found: Configuration, where: str) -> None:
    """Raises KoderzError for a folder, variable or user that no program can be given."""
    if "\0" in "".join(
        [found.workdir, found.user, *found.environment, *found.environment.values()]
    ):
        raise KoderzError(f"{where}: a null character in its configuration")


def images_in(path: Path, cache: Path) -> list[ImageInFile]:
    """The images in a folder's layout or in an archive; none where it is neither.

    What is found in archives is kept in the folder `cache`. Raises KoderzError, one line with the file, where it is
    damaged.
    """
    if path.is_dir():
        return _images(path, _Folder(path)) if (path / "index.json").is_file() else []
    if not path.name.endswith(_SUFFIXES) or not path.is_file():
        return []
    about = path.stat()
    key = f"{path.absolute()}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ino}"
    known = (
        cache
        / "held"
        / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json"
    )
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(
            known.read_bytes(), type=list[ImageInFile], dec_hook=lambda kind, value: kind(value)
        )
    with damage(path):
        documents = _documents(path)
    found = _images(path, documents)
    with contextlib.suppress(OSError, UnicodeError):  # it is read again then
        known.parent.mkdir(parents=True, exist_ok=True)
        write_whole(known, [msgspec.json.encode(found, enc_hook=str)])
    return found


@contextmanager
def parts_of(path: Path, scratch: Path) -> Iterator[Parts]:
    """The parts of a layout's folder, or of an archive, for reading them in any order.

    A compressed archive is decompressed into the folder `scratch` first.
    """
    if path.is_dir():
        yield Parts(path)
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(damage(path))
        raw: IO[bytes] = stack.enter_context(path.open("rb"))
        with decompressed(raw) as stream:
            if stream is not raw:
                raw = stack.enter_context(tempfile.TemporaryFile(dir=scratch))
                shutil.copyfileobj(stream, raw, 1 << 20)
        raw.seek(0)
        yield Parts(path, stack.enter_context(tarfile.open(fileobj=raw, mode="r:", tarinfo=Member)))


class Parts:
    """The files of a layout."""

    def __init__(self, path: Path, archive: tarfile.TarFile | None = None) -> None:
        self._path, self._archive = path, archive
        self._members = (
            {_plain(member.name): member for member in archive.getmembers()} if archive else {}
        )

    def open(self, name: str) -> IO[bytes]:
        """A file of the layout. Raises OSError where there is none."""
        if self._archive is None:
            return (self._path / name).open("rb")
        member = self._members.get(name)
        if member is not None and member.issym():  # docker linked equal layers
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            member = self._members.get(target)
        found = (
            self._archive.extractfile(member) if member is not None and member.isfile() else None
        )
        if found is None:
            raise OSError(f"{name} is missing")
        return found


def _documents(path: Path) -> dict[str, bytes]:
    """The JSON documents of an archive, by name."""
    found: dict[str, bytes] = {}
    size = 0
    with path.open("rb") as raw, decompressed(raw) as stream:
        is_plain = stream is raw
        with tarfile.open(
            fileobj=stream, mode="r:" if is_plain else "r|", tarinfo=Member
        ) as archive:
            for member in archive:
                if member.isreg() and not member.issparse() and member.size <= _LARGEST:
                    part = archive.extractfile(member)
                    assert part
                    begin = part.read(1)
                    if begin in (b"{", b"["):
                        found[_plain(member.name)] = begin + part.read()
                        size += member.size
                        if size > _MOST:
                            raise ValueError("it has too many documents")
                forget(archive)
    return found


def _plain(name: str) -> str:
    return PurePosixPath(name.lstrip("/")).as_posix()


class _Folder(Mapping[str, bytes]):
    """The documents of a layout's folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, name: str) -> bytes:
        try:
            with (self._path / name).open("rb") as file:
                return file.read(_LARGEST)
        except OSError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


def _images(path: Path, documents: Mapping[str, bytes]) -> list[ImageInFile]:
    """All images of a layout. Raises KoderzError for damaged documents."""
    if saved := documents.get("manifest.json"):
        entries = _decoded(saved, list[_Saved], f"{path}: manifest.json")
        return [_saved(path, entry, documents) for entry in entries]
    if not (index := documents.get("index.json")):
        raise KoderzError(
            f"{path} is no archive of docker save and no OCI layout: it has no manifest.json, index.json"
        )
    found = _decoded(index, _Document, f"{path}: index.json").manifests or []
    return [image for each in found for image in _laid_out(path, each, documents, ())]


def _saved(path: Path, entry: _Saved, documents: Mapping[str, bytes]) -> ImageInFile:
    config = documents.get(_plain(entry.Config))
    if config is None:
        raise KoderzError(
            f"{path} is damaged: it has no {entry.Config[:200]}, which its manifest.json names"
        )
    own = f"sha256:{hashlib.sha256(config).hexdigest()}"
    if own[7:] not in entry.Config:
        raise KoderzError(f"{path} is damaged: {entry.Config[:200]} isn't what its name says")
    names = tuple(str(parse_reference(tag)) for tag in entry.RepoTags or ())
    return ImageInFile(path, names, (own,), tuple(map(_plain, entry.Layers)), _text(config, path))


def _laid_out(
    path: Path, wanted: _Descriptor, documents: Mapping[str, bytes], above: Sequence[str]
) -> Iterator[ImageInFile]:
    """The image of a descriptor, or that for this machine of an index. Digests of what led there are `above`."""
    if len(above) > 4:
        raise KoderzError(f"{path} is damaged: indexes within indexes")
    found = _decoded(_blob(path, wanted.digest, documents), _Document, f"{path}: {wanted.digest}")
    digests = (*above, wanted.digest)
    if found.manifests is not None:
        machine = _MACHINES.get(platform.machine(), platform.machine())
        fitting = [
            each
            for each in found.manifests
            if not each.platform or each.platform.architecture == machine
        ]
        for each in fitting[:1]:
            each.annotations = wanted.annotations
            yield from _laid_out(path, each, documents, digests)
    elif found.config and found.layers is not None:
        config = _blob(path, found.config.digest, documents)
        layers = tuple(_place_of(path, each.digest) for each in found.layers)
        names = tuple(_names_of(path, wanted.annotations or {}))
        yield ImageInFile(path, names, (found.config.digest, *digests), layers, _text(config, path))


def _names_of(path: Path, annotations: Mapping[str, str]) -> Iterator[str]:
    """The names of an image in a layout: its tag is a name, or stands beside the file's or folder's name."""
    tag = annotations.get(_TAG, "")
    stem = path.name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    for name in (
        annotations.get(_FULL_NAME, ""),
        tag,
        f"{stem}:{tag}" if tag and ":" not in tag else "",
    ):
        with contextlib.suppress(KoderzError):
            yield str(parse_reference(name))


def _place_of(path: Path, digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise KoderzError(f"{path}: {digest[:100]!r} is no digest by sha256")
    return f"blobs/sha256/{digest[7:]}"


def _blob(path: Path, digest: str, documents: Mapping[str, bytes]) -> bytes:
    found = documents.get(_place_of(path, digest))
    if found is None:
        raise KoderzError(f"{path} is damaged: its blob {digest} is missing")
    if hashlib.sha256(found).hexdigest() != digest[7:]:
        raise KoderzError(f"{path} is damaged: its blob {digest} isn't what its digest says")
    return found


def _text(config: bytes, path: Path) -> str:
    with damage(path):
        return config.decode()


def _decoded(data: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KoderzError(f"{where} is damaged: {str(error)[:200]}") from None


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
    return ImageInFile(
        root,
        (reference,),
        (_digest(root),),
        (),
        msgspec.json.encode(config).decode(),
        is_folder=True,
    )


def _root(where: str, store: Path, path: str) -> Path:
    """The folder that an entry names. KoderzError for one that is no image, or holds what is this machine's own."""
    try:
        root = (store / path).resolve(strict=True)
        if not root.is_dir() or not any((root / each).is_dir() for each in _PROGRAMS):
            raise KoderzError(
                f"{where}: {path[:200]} is no root folder: it has no bin and no usr/bin"
            )
    except (OSError, ValueError, RuntimeError):  # the last for links that go round in circles
        raise KoderzError(f"{where}: there is no folder {path[:200]!r}") from None
    own = [home_folder(), Path.cwd(), cache_folder(), store, Path("/usr"), Path("/etc")]
    if any(each.absolute().resolve().is_relative_to(root) for each in own) or root.is_relative_to(
        "/usr"
    ):
        raise KoderzError(
            f"{where}: {path[:200]} holds this machine's own files, which are no image"
        )
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
                    digest.update(
                        b"%s\0%o %d %d\0" % (here, about.st_mode, about.st_size, about.st_mtime_ns)
                    )
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(here + b"/")
        except PermissionError:  # of another user, whom nobody in it is
            continue
    return f"sha256:{digest.hexdigest()}"


_HUB = "docker.io"
_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_DOMAIN = r"(?:[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)*)(?::\d+)?"
_REFERENCE = re.compile(
    rf"(?:(?P<domain>{_DOMAIN})/)?(?P<path>{_PATH}(?:/{_PATH})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Reference(NamedTuple):
    """An image's whole name."""

    repository: str  # docker.io/library/ubuntu
    tag: str = ""  # empty where a digest stands alone
    digest: str = ""  # sha256:…

    def __str__(self) -> str:
        return (
            self.repository
            + (f":{self.tag}" if self.tag else "")
            + (f"@{self.digest}" if self.digest else "")
        )


def parse_reference(name: str) -> Reference:
    """The whole name: `ubuntu` is docker.io/library/ubuntu:latest. Raises KoderzError for what is none."""
    if DIGEST.fullmatch(name):
        return Reference("", digest=name)
    if not (found := _REFERENCE.fullmatch(name)):
        raise KoderzError(f"{name[:200]!r} is no name of an image, such as ubuntu:24.04")
    domain, path = found["domain"] or "", found["path"]
    if domain and not ("." in domain or ":" in domain or domain == "localhost"):
        domain, path = "", f"{domain}/{path}"
    if domain in ("", "index.docker.io"):
        domain = _HUB
    if domain == _HUB and "/" not in path:
        path = f"library/{path}"
    digest = found["digest"] or ""
    return Reference(f"{domain}/{path}", found["tag"] or ("" if digest else "latest"), digest)
