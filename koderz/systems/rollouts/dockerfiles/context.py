"""The files that a Dockerfile copies: found in its folder, without what .dockerignore leaves out, and laid into a root.

Links are followed as from within the folder or root, so that nothing outside of either is read or written.
"""

from __future__ import annotations

import lzma
import os
import posixpath
import re
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from koderz.errors import KoderzError
from koderz.sandbox.archives import Member, damage, decompressed, forget
from koderz.suites.dataset import misspelt
from koderz.systems.workspaces.images.tree import copy_file, resolved

_WILDCARDS = re.compile(r"[*?\[]")
_PART = re.compile(r"\[(\^?)((?:\\.|[^\]\\])+)\]|\\(.)|(\*+)|(\?)|(.)", re.DOTALL)
_SYMBOLIC = re.compile(r"([ugoa]*)([-+=])([rwxX]*)")
_MOST_PATTERNS = 1_000
_MOST_UNPACKED = 4 << 30  # bytes of one archive
_MOST_MEMBERS = 1_000_000
_LAST_TIME = 1 << 33  # seconds; file systems keep no later one


@dataclass(frozen=True, slots=True)
class Inline:
    """A file whose content is in the Dockerfile itself."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Files that are copied into a root by COPY or ADD."""

    where: str  # the Dockerfile, and the line
    text: str  # the instruction as it is written
    # of the context: paths that are there; of a stage or image: absolute, with wildcards
    sources: tuple[str, ...]
    target: str  # absolute; it ends with / where it has to be a folder
    context: Path | None = None  # the folder that sources are in
    stage: int | None = None  # or the number of the stage
    image: str = ""  # or the image
    inline: tuple[Inline, ...] = ()
    owner: str = ""  # as --chown has it; root's own where it is empty
    mode: str = ""  # as --chmod has it; the sources' own where it is empty
    unpacks: bool = False  # whether archives are unpacked
    ignored: tuple[str, ...] = ()  # the patterns of .dockerignore


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that WORKDIR makes where there is none."""

    where: str
    path: str  # absolute


class _IgnoredFiles:
    """The patterns of a .dockerignore, of which the last that matches a path, or a folder above it, decides."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules = list[tuple[bool, tuple[str, ...]]]()
        for line in patterns:
            clean = posixpath.normpath("/" + line.removeprefix("!").strip().lstrip("/")).lstrip("/")
            self._rules.append((not line.startswith("!"), tuple(clean.split("/"))))
        self.has_exceptions = not all(ignores for ignores, _ in self._rules)

    def __contains__(self, path: str) -> bool:
        names = path.split("/")
        for ignores, pattern in reversed(self._rules):
            if _matches_above(pattern, names):
                return ignores
        return False


@lru_cache(1 << 6)
def _ignored_files(patterns: tuple[str, ...]) -> _IgnoredFiles:
    return _IgnoredFiles(patterns)


def ignored_by(dockerfile: Path, hidden: Iterable[str] = ()) -> tuple[str, ...]:
    """The patterns of a Dockerfile's .dockerignore, its own or the folder's, and paths that no image may have."""
    paths = tuple(re.sub(r"([*?\[\]\\!])", r"\\\1", each) for each in hidden)
    for path in (
        dockerfile.with_name(f"{dockerfile.name}.dockerignore"),
        dockerfile.with_name(".dockerignore"),
    ):
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise KoderzError(f"{path} can't be read: {error}") from None
        lines = [line.strip() for line in text.splitlines() if not line.startswith("#")]
        patterns = [line for line in lines if line.strip("!/ ")]
        if len(patterns) > _MOST_PATTERNS:
            raise KoderzError(
                f"{path} has more than {_MOST_PATTERNS:,} patterns; leave out folders rather than files"
            )
        return (*patterns, *paths)
    return paths


def _matches_above(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a pattern, in which ** is any number of folders, matches a path or a folder above it."""
    places, end = _skipped({0}, pattern), len(pattern)
    for name in names:
        after = set[int]()
        for place in places:
            if pattern[place] == "**":
                after |= {place, place + 1} if place + 1 == end else {place}
            elif _segment_pattern(pattern[place]).fullmatch(name):
                after.add(place + 1)
        if end in after:
            return True
        places = _skipped(after, pattern)
    return False


def _skipped(places: set[int], pattern: Sequence[str]) -> set[int]:
    """The places with those behind a ** that may stand for no folder."""
    for place in sorted(places):
        while place + 1 < len(pattern) and pattern[place] == "**":
            place += 1
            places.add(place)
    return places


@lru_cache(1 << 12)
def _segment_pattern(segment: str) -> re.Pattern[str]:
    """The pattern of a name in which *, ? and [a-z] are as in Go's filepath.Match."""
    pieces = [""]  # what lies between stars
    for negated, group, escaped, stars, one, plain in _PART.findall(segment):
        if stars:
            pieces.append("")
        elif group:
            inner = re.sub(
                r"\\(.)|([\[&~|^])", lambda found: re.escape(found[1] or found[2]), group
            )
            pieces[-1] += f"[{'^' if negated else ''}{inner}]"
        else:
            pieces[-1] += "." if one else re.escape(escaped or plain)
    first, *others = pieces
    # Each piece is sought at the first place where it fits, which is never a worse one, so that no name takes long.
    middle = "".join(f"(?>.*?{piece})" for piece in others[:-1])
    last = f".*{others[-1]}" if others else ""
    try:
        return re.compile(first + middle + last, re.DOTALL)
    except re.error:
        return re.compile(re.escape(segment))


def found_in(root: Path, source: str, ignored: tuple[str, ...] = ()) -> list[str]:
    """The paths in a folder that a source with wildcards matches, without those that are ignored."""
    names = [name for name in posixpath.normpath("/" + source).split("/") if name]
    found = [""]
    for name in names:
        if _WILDCARDS.search(name):
            pattern = _segment_pattern(name)
            inside = ((at, sorted(_names(root, at))) for at in found)
            found = [
                posixpath.join(at, each)
                for at, entries in inside
                for each in entries
                if pattern.fullmatch(each)
            ]
        else:
            found = [posixpath.join(at, name) for at in found]
    left_out = _ignored_files(ignored)
    return [
        path
        for path in found
        if os.path.lexists(_place(root, path)) and _is_shown(root, path, left_out)
    ]


def _is_shown(root: Path, path: str, ignored: _IgnoredFiles) -> bool:
    """Whether a path isn't ignored, nor the file that it leads to; a folder may have exceptions in it."""
    place = _place(root, path)
    if not any(each in ignored for each in {path, place.relative_to(root).as_posix()} - {"", "."}):
        return True
    return ignored.has_exceptions and place.is_dir()


def _names(root: Path, path: str) -> list[str]:
    try:
        return os.listdir(_place(root, path))  # noqa: PTH208
    except OSError:
        return []


def _place(root: Path, path: str) -> Path:
    """Where a path of a root lies, with all links followed inside of the root."""
    return root / resolved(root, path).lstrip("/")


def require_found(
    where: str, name: str, root: Path, ignored: tuple[str, ...], of: str = ""
) -> list[str]:
    """The paths that a source matches. Raises KoderzError, which says why, where there are none.

    `of` is what the root is called, by default its path.
    """
    of = of or str(root)
    try:
        if found := found_in(root, name, ignored):
            return found
        path = posixpath.normpath("/" + name).lstrip("/")
        if found_in(root, name):
            why = f"{of} has {name}, but .dockerignore leaves it out, or it is a test or solution"
        elif os.path.lexists(root / path):
            why = f"{name} is a link that leads out of {of}, or nowhere; copy its file there"
        else:
            near = misspelt(posixpath.basename(path), _names(root, posixpath.dirname(path)))
            why = f"there is no {name} in {of}{near}"
    except OSError as error:
        why = f"{name} in {of} can't be read: {error.strerror or error}"
    raise KoderzError(f"{where}: {why}")


def make_folder(root: Path, step: Folder) -> None:
    """Makes the folder of WORKDIR, and those above it, inside of a root."""
    try:
        _Laying(root, "").folders(resolved(root, step.path))
    except OSError as error:
        raise KoderzError(
            f"{step.where}: {step.path} can't be made: {error.strerror or error}"
        ) from None


def copy_into(root: Path, step: Copy, source: Path | None = None) -> None:
    """Lays the files of a COPY or ADD into a root folder.

    `source` is the root of the stage or image that they come from; the context is known. Modes and times are kept,
    missing folders are made with mode 755, owners are left out. Raises KoderzError with the line.
    """
    origin = step.context or source
    laying = _Laying(root, step.mode)
    try:
        for inline in step.inline:
            laying.write(inline, step.target)
        for name in step.sources:
            assert origin
            of = step.image or f"the stage {step.stage}"
            names = [name] if step.context else require_found(step.where, name, origin, (), of)
            for each in names:
                laying.copy(origin, each, step)
        laying.finish()
    except OSError as error:
        raise KoderzError(f"{step.where}: {step.text[:200]}: {error.strerror or error}") from None


class _Laying:
    """Files being laid into a root. Modes and times of folders are set at the end, when nothing is added to them."""

    def __init__(self, root: Path, mode: str) -> None:
        self.root, self._mode = root, mode
        self._folders: list[tuple[Path, int, tuple[int, int] | None]] = []

    def copy(self, origin: Path, name: str, step: Copy) -> None:
        """Copies a file, or the contents of a folder, to where a target leads."""
        here, to = _place(origin, name), resolved(self.root, step.target)
        if here.is_dir():
            self.folders(to)
            self._contents(
                here, to, here.relative_to(origin).as_posix(), _ignored_files(step.ignored)
            )
        elif not (step.unpacks and self._unpack(here, to)):
            self._file(here, self._named(step.target, to, posixpath.basename(name.rstrip("/"))))

    def write(self, inline: Inline, target: str) -> None:
        """Writes a file of the Dockerfile itself."""
        here = self._free(self._named(target, resolved(self.root, target), inline.name))
        here.write_bytes(inline.text.encode())
        here.chmod(self._changed(0o644, is_folder=False))

    def finish(self) -> None:
        """Sets modes and times of folders."""
        for path, mode, times in reversed(self._folders):
            path.chmod(mode)
            if times:
                os.utime(path, ns=times)

    def folders(self, path: str) -> None:
        """Makes the folders of a path without links that aren't there."""
        here = self.root
        for name in filter(None, path.split("/")):
            here /= name
            if not os.path.lexists(here):
                self._open(here.parent)
                here.mkdir()
                here.chmod(0o755)
            elif here.is_symlink() or not here.is_dir():
                raise NotADirectoryError(20, f"{path} isn't a folder")

    def _named(self, target: str, to: str, name: str) -> str:
        """The path of a file: that which is named, or in the folder that is."""
        if target.endswith("/") or (self.root / to.lstrip("/")).is_dir():
            self.folders(to)
            return posixpath.join(to, name)
        self.folders(posixpath.dirname(to))
        return to

    def _contents(self, folder: Path, to: str, prefix: str, ignored: _IgnoredFiles) -> None:
        waiting: list[tuple[Path, str, str, os.stat_result | None]] = [(folder, to, prefix, None)]
        while waiting:
            here, to, prefix, made_of = waiting.pop()
            to = resolved(self.root, to)
            if made_of and not (ignored.has_exceptions and prefix in ignored):
                self._folder(made_of, to)
            for entry in sorted(os.scandir(here), key=lambda entry: entry.name):
                path = entry.name if prefix == "." else posixpath.join(prefix, entry.name)
                target = posixpath.join(to, entry.name)
                if path in ignored and not (
                    ignored.has_exceptions and entry.is_dir(follow_symlinks=False)
                ):
                    continue
                if entry.is_symlink():
                    self.folders(to)
                    self._link(Path(entry.path), target)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), target, path, entry.stat()))
                elif entry.is_file():
                    self.folders(to)
                    self._file(Path(entry.path), target)

    def _folder(self, like: os.stat_result, to: str) -> None:
        """Makes a folder with the mode and times of another, unless there is one."""
        here = self.root / to.lstrip("/")
        if not here.is_dir():
            self.folders(to)
            mode = self._changed(stat.S_IMODE(like.st_mode), is_folder=True)
            self._folders.append((here, mode, (like.st_atime_ns, like.st_mtime_ns)))

    def _open(self, folder: Path) -> None:
        """Lets a folder take files until the end, whatever its mode is."""
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            self._folders.append((folder, mode, None))
            folder.chmod(mode | stat.S_IRWXU)

    def _free(self, to: str) -> Path:
        """The place of a file, from which a file or link is removed."""
        here = self.root / to.lstrip("/")
        self._open(here.parent)
        if here.is_dir() and not here.is_symlink():
            raise IsADirectoryError(21, f"{to} is a folder, which a file can't replace")
        here.unlink(missing_ok=True)
        return here

    def _file(self, source: Path, to: str) -> None:
        here = self._free(to)
        copy_file(source, here)
        if self._mode:
            here.chmod(self._changed(stat.S_IMODE(here.stat().st_mode), is_folder=False))

    def _link(self, source: Path, to: str) -> None:
        here, times = self._free(to), source.lstat()
        here.symlink_to(source.readlink())
        os.utime(here, ns=(times.st_atime_ns, times.st_mtime_ns), follow_symlinks=False)

    def _changed(self, mode: int, *, is_folder: bool) -> int:
        """A mode, as --chmod has it."""
        return changed_mode(self._mode, mode, is_folder=is_folder) if self._mode else mode

    def _unpack(self, path: Path, to: str) -> bool:
        """Unpacks an archive into a folder; False where it is none."""
        with path.open("rb") as raw:
            try:
                with (
                    decompressed(raw) as stream,
                    tarfile.open(fileobj=stream, mode="r|", tarinfo=Member) as archive,
                ):
                    if archive.next() is None:
                        return False
            except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError):
                return False
            raw.seek(0)
            self.folders(to)
            with damage(path), decompressed(raw) as stream:
                self._members(stream, to)
        return True

    def _members(self, stream: IO[bytes], to: str) -> None:
        left = _MOST_UNPACKED
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=Member) as archive:
            for number, member in enumerate(archive):
                names = [name for name in member.name.split("/") if name not in ("", ".")]
                left -= member.size if member.isreg() else 0
                if ".." in names or left < 0 or number > _MOST_MEMBERS:
                    raise ValueError(
                        f"its member {member.name[:100]!r} leaves its folder, or there is too much of it"
                    )
                forget(archive)
                if names:
                    folder = resolved(self.root, posixpath.join(to, *names[:-1]))
                    self.folders(folder)
                    self._member(archive, member, posixpath.join(folder, names[-1]), to)

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, to: str, top: str) -> None:
        mode = self._changed(member.mode & 0o7777, is_folder=member.isdir())
        times = (int(member.mtime * 10**9) if 0 <= member.mtime < _LAST_TIME else 0,) * 2
        if member.isdir():
            self.folders(to := resolved(self.root, to))
            self._folders.append((self.root / to.lstrip("/"), mode, times))
        elif member.issym():
            self._free(to).symlink_to(member.linkname)
        elif member.islnk():
            other = resolved(self.root, posixpath.join(top, member.linkname.lstrip("/")))
            os.link(self.root / other.lstrip("/"), self._free(to), follow_symlinks=False)
        elif member.isreg() and (content := archive.extractfile(member)):
            here = self._free(to)
            with here.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            here.chmod(mode)
            os.utime(here, ns=times)


def changed_mode(change: str, mode: int, *, is_folder: bool) -> int:
    """A mode after `chmod`: a number in octal, or changes as u=rwX,go+r. Raises ValueError for what is neither."""
    if re.fullmatch(r"[0-7]{1,4}", change):
        return int(change, 8)
    for clause in change.split(","):
        if not (found := _SYMBOLIC.fullmatch(clause)):
            raise ValueError(f"--chmod={change[:40]} is no mode, such as 755 or u=rwX,go=rX")
        who, how, letters = found.groups()
        runs = is_folder or mode & 0o111
        bits = sum(
            {"r": 4, "w": 2, "x": 1}[letter]
            for letter in {*letters.replace("X", "x" if runs else "")}
        )
        for each in {*(who.replace("a", "ugo") or "ugo")}:
            shift = {"u": 6, "g": 3, "o": 0}[each]
            mode = mode & ~(7 << shift) if how == "=" else mode
            mode = mode & ~(bits << shift) if how == "-" else mode | bits << shift
    return mode
