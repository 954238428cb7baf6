"""Publishes whole runs to a folder or an address, and pulls them from there, also of archives, each file checked.

A published run is its summary `RUN.json` and, in `RUN/`, its journal, its blobs and `SHA256SUMS`. The summary goes last
and comes last, so a run is there whole or not at all. Addresses are those of fsspec. What is published is a copy, with
`[redacted]` in place of secrets, or without replies. A run of a stranger's in an archive is unpacked within limits.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, Protocol

from msgspec.structs import replace

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox.archives import Limited, Member, damage, decompressed, forget
from koderz.settings.installation import extra_command
from koderz_tracker.blobs import copy_blobs, spill, whole
from koderz_tracker.files import (
    MB,
    open_own,
    pieces,
    read_all,
    sha256_of,
    sync_folder,
    whole_file,
    write_whole,
)
from koderz_tracker.index import read_records, scan
from koderz_tracker.journal import NAME
from koderz_tracker.records import Attempt, Call, LongMessage, Once, Plan, Record, encode
from koderz_tracker.runs import RUN_ID, is_locked, read_plan, require_own
from koderz_tracker.scrubber import Scrubber, scrubber_of
from koderz_tracker.sinks.json import write_summary

SCHEMES = ("https", "hf", "s3", "file")
"""The kinds of address from which runs are read."""

SUMS = "SHA256SUMS"
"""The name of a run's list of digests, in its folder, as `sha256sum -c` reads it."""

PUBLISHED = "published"
"""The key of a plan's environment that says what was taken out of a published copy: `{redacted, replies}`."""

_BLOB = re.compile(r"blobs/[0-9a-f]{64}\.gz")
_ARCHIVE = re.compile(r".*\.(?:zip|tgz|tar|tar\.(?:gz|bz2|xz))", re.IGNORECASE)
_LARGEST_SUMS = 64 * MB
_PIECE = 1 << 20

Tell = Callable[[str], None]


class Location(Protocol):
    """A folder here or elsewhere, with files by relative paths."""

    def read(self, path: str) -> IO[bytes]:
        """Opens a file. Raises FileNotFoundError."""
        ...

    def write(self, path: str, source: Path) -> None:
        """Puts a file there, whole or not at all."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file, if it is there."""
        ...

    def names(self) -> list[str]:
        """The names of the files directly in it."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine."""

    path: Path

    def read(self, path: str) -> IO[bytes]:
        return open_own(self.path / path, len(PurePosixPath(path).parts))

    def write(self, path: str, source: Path) -> None:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, pieces(source, source.stat().st_size))

    def remove(self, path: str) -> None:
        (self.path / path).unlink(missing_ok=True)

    def names(self) -> list[str]:
        return [each.name for each in self.path.iterdir()] if self.path.is_dir() else []


@dataclass(frozen=True, slots=True)
class Address:
    """A folder at an address, through fsspec."""

    system: Any
    root: str

    def read(self, path: str) -> IO[bytes]:
        opened: IO[bytes] = self.system.open(self._full(path), "rb")
        return opened

    def write(self, path: str, source: Path) -> None:
        full = self._full(path)
        self.system.makedirs(full.rpartition("/")[0], exist_ok=True)
        self.system.put_file(str(source), full)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.system.rm_file(self._full(path))

    def names(self) -> list[str]:
        try:
            found = self.system.ls(self.root, detail=False)
        except FileNotFoundError:
            return []
        return [str(each).rstrip("/").rpartition("/")[2] for each in found]

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if self.root else path


def place_at(address: str, *, schemes: Sequence[str] = (*SCHEMES, "memory")) -> Location:
    """The place of a path or an address. Raises KoderzError for an address of another kind, or without its package."""
    scheme, separator, rest = address.partition("://")
    if not separator or scheme == "file":
        return Folder(Path(rest if separator else address))
    if scheme not in schemes:
        raise KoderzError(
            f"{address}: an address begins with {', '.join(f'{each}://' for each in schemes)}"
        )
    try:
        import fsspec  # type: ignore[import-untyped]

        system, root = fsspec.url_to_fs(address)
    except ImportError as error:
        raise KoderzError(
            f"{scheme}:// needs a package that isn't installed ({error}); install it with: {extra_command('share')}"
        ) from None
    except Exception as error:  # what packages of others raise for an address
        raise KoderzError(f"{address}: {type(error).__name__}: {error}") from error
    return Address(system, root.rstrip("/"))


def publish(
    folder: Path, place: Location, files: Mapping[str, Path], tell: Tell = lambda _: None
) -> int:
    """Publishes one run by its files, of which the summary is last. Returns how many were sent.

    `files`: by their paths at the place. What is there already with the same digest isn't sent again. Raises
    KoderzError for a run that goes on, and Unreachable where the place refuses.
    """
    if is_locked(folder):
        raise KoderzError(f"{folder.name} goes on; publish it when it has ended")
    name, summary = folder.name, f"{folder.name}.json"
    sums = {path: _digest_of(source) for path, source in files.items()}
    with _reaching(name):
        there = _sums_at(place, name)
        left = [
            path
            for path in files
            if path != summary and there.get(_relative(path, name)) != sums[path]
        ]
        is_whole = summary in place.names()
        if not left and is_whole and there.get(f"../{summary}") == sums[summary]:
            return 0
        if is_whole:
            place.remove(summary)  # until what it is about is there as it is now
        for path in left:
            place.write(path, files[path])
            tell(path)
        with TemporaryDirectory(prefix="koderz-share-") as temporary:
            listed = Path(temporary) / SUMS
            listed.write_bytes(
                _listing({_relative(path, name): digest for path, digest in sums.items()})
            )
            place.write(f"{name}/{SUMS}", listed)
        place.write(summary, files[summary])
    return len(left) + 1


def files_of(folder: Path, summary: Path) -> dict[str, Path]:
    """The files of a run that are published, by their paths at the place; the summary is last.

    Raises KoderzError for a link among them.
    """
    name = require_own(folder).name
    blobs = sorted(
        path for path in (folder / "blobs").glob("*.gz") if _BLOB.fullmatch(f"blobs/{path.name}")
    )
    texts = {f"{name}/blobs/{path.name}": path for path in blobs}
    return {**texts, f"{name}/{NAME}": folder / NAME, f"{name}.json": summary}


def runs_at(place: Location) -> list[str]:
    """The ids of the runs that are published at a place, oldest first by their names."""
    with _reaching("the list of runs"):
        names = [name.removesuffix(".json") for name in place.names() if name.endswith(".json")]
    return sorted((name for name in names if RUN_ID.fullmatch(name)), key=lambda name: name[15:])


def pull(
    place: Location,
    name: str,
    results: Path,
    *,
    max_size: int | None = None,
    tell: Tell = lambda _: None,
) -> bool:
    """Brings one run into a results folder, each file checked; False if it is there already.

    Raises KoderzError for a file whose digest differs, a path that is none of a run's, more than `max_size` bytes in
    all, or another file of the same name here, which is never overwritten.
    """
    with _reaching(name):
        sums = _sums_at(place, name)
    summary = f"../{name}.json"
    if not {NAME, summary} <= sums.keys():
        raise KoderzError(
            f"{name} isn't published there: it has no {SUMS} that names its journal and summary"
        )
    for path in sums:
        if path not in (NAME, summary) and not _BLOB.fullmatch(path):
            raise KoderzError(f"{name}/{SUMS} names {path!r:.200}, which is no file of a run")
    folder = results / name
    own = {path: results / f"{name}.json" if path == summary else folder / path for path in sums}
    if all(_digest_of(path) == sums[each] for each, path in own.items()):
        return False
    # what was pulled before and is as it was may be replaced
    pulled = _sums_at(Folder(results), name)
    for each, here in own.items():
        if (found := _digest_of(here)) and found not in (sums[each], pulled.get(each)):
            raise KoderzError(
                f"{here} is here already and is another file; move it away, then pull {name} again"
            )
    left = max_size
    folder.mkdir(parents=True, exist_ok=True)
    # the summary makes the run whole
    for each in sorted(sums, key=lambda path: (path == summary, path == NAME)):
        if _digest_of(own[each]) != sums[each]:
            with _reaching(name):
                source = f"{name}.json" if each == summary else f"{name}/{each}"
                left = _bring(place, source, own[each], sums[each], left)
            tell(each)
    write_whole(folder / SUMS, [_listing(sums)])
    sync_folder(results)
    return True


def fetched(address: str, target: Path, *, max_size: int) -> Path:
    """Brings the one run of an address, or the archive that it names, into a folder, which is returned."""
    base, _, last = address.rstrip("/").rpartition("/")
    place = place_at(base, schemes=SCHEMES)
    if _ARCHIVE.fullmatch(last):
        archive = target / "archive"
        with _reaching(address), place.read(last) as file, archive.open("wb") as copy:
            _copy(file, copy, max_size, address)
        unpack_run(archive, target / "run", max_size=max_size)
        archive.unlink()
        return target / "run"
    name = last.removesuffix(".json")
    if not RUN_ID.fullmatch(name):
        raise KoderzError(
            f"{address}: give the address of a run, which ends in its id, or of a .zip or .tar.gz of one"
        )
    pull(place, name, target, max_size=max_size)
    return target


def _bring(place: Location, source: str, target: Path, digest: str, left: int | None) -> int | None:
    """Copies a file that has to have this digest, and returns the bytes that may still come."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with place.read(source) as file, whole_file(target) as copy:
        size, found = _copy(file, copy, left, source)
        if found != digest:
            raise KoderzError(
                f"{source} isn't the file that {SUMS} names: its digest is {found[:16]}…"
            )
    return None if left is None else left - size


def _copy(source: IO[bytes], target: IO[bytes], most: int | None, name: str) -> tuple[int, str]:
    """Copies a file in pieces. Returns its size and digest."""
    size, digest = 0, hashlib.sha256()
    while data := source.read(_PIECE):
        size += len(data)
        if most is not None and size > most:
            raise KoderzError(f"{name} is larger than --max-size allows for all of a run")
        digest.update(data)
        target.write(data)
    return size, digest.hexdigest()


def _sums_at(place: Location, name: str) -> dict[str, str]:
    """The digests that a run's SHA256SUMS at a place names, by path; empty if there is none."""
    try:
        with place.read(f"{name}/{SUMS}") as file:
            text = read_all(file, _LARGEST_SUMS, f"{name}/{SUMS}").decode("utf-8", "replace")
    except FileNotFoundError:
        return {}
    return {
        path: digest for digest, _, path in (line.partition("  ") for line in text.splitlines())
    }


def _listing(sums: Mapping[str, str]) -> bytes:
    return "".join(f"{sums[path]}  {path}\n" for path in sorted(sums)).encode()


def _relative(path: str, name: str) -> str:
    """A path at a place, as seen from the run's folder there."""
    return path.removeprefix(f"{name}/") if path.startswith(f"{name}/") else f"../{path}"


def _digest_of(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits; empty if there is none."""
    try:
        return sha256_of(path)
    except FileNotFoundError:
        return ""


@contextmanager
def _reaching(what: str) -> Iterator[None]:
    """Turns what a place's package raises into one error."""
    try:
        yield
    except KoderzError:
        raise
    except Exception as error:  # each package has errors of its own
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Unreachable(
            f"{what}: the place can't be used ({reason:.300}); the same command goes on from here"
        ) from error


_MOST = 100  # places that are named


class SecretPlace(NamedTuple):
    """A line in which something looks like a secret."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


def secrets_in(
    folder: Path, summary: Path, environ: Mapping[str, str] = os.environ
) -> list[SecretPlace]:
    """The lines of a run's journal and summary that hold secrets, texts in blobs included; at most 100."""
    scrubber = scrubber_of(read_plan(folder), environ)
    found: list[SecretPlace] = []
    for number, record in _numbered(folder):
        if len(found) < _MOST and _scrubbed(record, folder, scrubber) != whole(record, folder):
            found.append(SecretPlace(f"{folder.name}/{NAME}", number))
    with open_own(summary) as lines:
        for number, data in enumerate(lines, 1):
            line = data.decode("utf-8", "replace")
            if len(found) < _MOST and scrubber.text(line) != line:
                found.append(SecretPlace(summary.name, number))
    return found


def published_copy(
    folder: Path,
    target: Path,
    *,
    redact: bool,
    replies: bool,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Path, Path]:
    """Makes a copy of a run in the folder `target`, and returns its folder and summary.

    With `redact`, secrets are replaced; without `replies`, all texts of models and programs are left out. The plan of
    the copy says so under `environment.published`.
    """
    copy = target / folder.name
    copy.mkdir(parents=True)
    copy_blobs(folder, copy)
    scrubber = scrubber_of(read_plan(folder), environ)

    def lines() -> Iterator[bytes]:
        for _, record in _numbered(folder):
            each = _scrubbed(record, folder, scrubber) if redact else whole(record, folder)
            each = each if replies else _without_replies(each)
            if isinstance(each, Plan):
                each = replace(
                    each,
                    environment={
                        **each.environment,
                        PUBLISHED: {"redacted": redact, "replies": replies},
                    },
                )
            if not isinstance(each, LongMessage) or replies:
                yield encode(spill(each, copy))

    write_whole(copy / NAME, lines())
    text = (copy / NAME).read_bytes()
    for path in (copy / "blobs").glob("*.gz"):
        if path.name.removesuffix(".gz").encode() not in text:  # no line names it any more
            path.unlink()
    return copy, write_summary(copy)[0]


def _numbered(folder: Path) -> Iterator[tuple[int, Record]]:
    """The records of a journal, each with the number of its line."""
    journal = folder / NAME
    for number, entry in enumerate(scan(journal, 0), 1):
        yield from (
            (number, record) for record in read_records(journal, [entry.span]) if entry.kind
        )


def _scrubbed(record: Record, folder: Path, scrubber: Scrubber) -> Record:
    return scrubber.record(whole(record, folder))


def _without_replies(record: Record) -> Record:
    match record:
        case Call():
            return replace(
                record, messages=[], reply="", text=None, reasoning="", tool_calls=[], body=""
            )
        case Attempt():
            return replace(record, program=None, feedback="", detail="", artifacts={})
        case Once():
            return replace(record, value=None, in_blob=False)
        case Plan():
            return replace(record, details={**record.details, "questions": {}})
        case _:
            return record


_DIRECTORY = 16 * MB  # of a zip
_MOST_FILES = 100_000  # of a run
_ALL_HEADERS = 256 * MB  # of its archive


def unpack_run(archive: Path, target: Path, *, max_size: int) -> None:
    """Unpacks a .zip or a .tar, compressed or not, into a folder.

    Raises KoderzError, one line, for a damaged archive, anything that is no plain file or folder, a path that leaves
    the folder, more than 100,000 files, or more than `max_size` bytes.
    """
    room = _Room(archive, target, max_size)
    with damage(archive, remedy="; give a .zip or .tar.gz of a run"):
        members = (
            _zipped(archive)
            if zipfile.is_zipfile(archive)
            else _tarred(archive, max_size + _ALL_HEADERS)
        )
        for name, is_plain, content in members:
            place = room.place(name, is_plain=is_plain)
            if content:
                room.write(content, place)


Unpacking = Iterator[tuple[str, bool, IO[bytes] | None]]
"""The name of each member, whether it is a plain file or folder, and the content of a file."""


def _zipped(archive: Path) -> Unpacking:
    with _Zip(archive) as raw, zipfile.ZipFile(raw) as zipped:
        for entry in zipped.infolist():
            is_plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            if entry.is_dir():
                yield entry.filename, is_plain, None
            else:
                with zipped.open(entry) as file:
                    yield entry.filename, is_plain, file


def _tarred(archive: Path, most: int) -> Unpacking:
    with archive.open("rb") as raw, decompressed(raw) as stream:
        limited: Any = Limited(stream, most, "it unpacks to more than --max-size allows")
        with tarfile.open(fileobj=limited, mode="r|", tarinfo=Member) as tarred:
            for member in tarred:
                content = tarred.extractfile(member) if member.isreg() else None
                yield member.name, member.isreg() or member.isdir(), content
                forget(tarred)


class _Room:
    """The folder that an archive is unpacked into, and the bytes and files that it may still hold."""

    def __init__(self, archive: Path, target: Path, max_size: int) -> None:
        self._archive, self._target, self._most = archive, target, max_size
        self._bytes, self._files = max_size, _MOST_FILES

    def place(self, name: str, *, is_plain: bool) -> Path:
        """Where a member goes, whose folder is made."""
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name or "\\" in name:
            raise KoderzError(
                f"{self._archive}: its member {name!r:.200} would be written outside of the folder"
            )
        if not name.isprintable():  # as bytes that aren't UTF-8 aren't
            raise KoderzError(
                f"{self._archive}: its member {name!r:.200} has a name that can't be printed; runs' can"
            )
        if not is_plain:
            raise KoderzError(
                f"{self._archive}: its member {name!r:.200} is a link or a device; runs have none"
            )
        self._files -= 1
        if self._files < 0:
            raise KoderzError(f"{self._archive} holds more than {_MOST_FILES:,} files")
        path = self._target / pure
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, source: IO[bytes], path: Path) -> None:
        """Writes a member, which may not be there yet."""
        with path.open("xb") as file:
            while data := source.read(_PIECE):
                self._bytes -= len(data)
                if self._bytes < 0:
                    raise KoderzError(
                        f"{self._archive} unpacks to more than {self._most // MB:,} MB; see --max-size"
                    )
                file.write(data)


class _Zip(io.FileIO):
    """A zip whose directory fits into memory; it is read at once, while members are read in pieces."""

    def read(self, size: int | None = -1) -> bytes:
        """Raises ValueError where more is asked for than a directory has."""
        if size is not None and size > _DIRECTORY:
            raise ValueError(f"a directory of more than {_DIRECTORY // MB} MB")
        return super().read(size) or b""
