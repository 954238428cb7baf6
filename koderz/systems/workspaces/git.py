"""Checkouts of a commit and the diffs against it, by a git that trusts nothing of what it reads.

No hook, configuration, filter, attribute, credential helper, submodule or file monitor of a repository is ever used;
diffs are taken with an index and objects of koderz' own, whatever has become of the checkout's `.git`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox.process import reap
from koderz.systems.workspaces.folders import keep_only
from koderz.systems.workspaces.snapshots import (
    Listing,
    changes,
    copy_tree,
    diffable,
    fits,
    is_rules,
    link_tree,
    undiffable,
)

# of applying a diff, from the strictest on
WAYS = ("git apply", "git apply --ignore-whitespace", "patch --fuzz=5")

_MAIN = "refs/heads/main"
_CLONE = "clone"  # in a store: what is the `.git` of each checkout that is a clone
_BASELINE = "baseline"  # in a store: a checkout that is only read
_ATTRIBUTES = (
    "* -text -eol -crlf -ident -filter -working-tree-encoding !diff -export-subst -export-ignore\n"
)
_SECONDS = 600.0
_SOURCE = re.compile(rb"^(?:copy|rename) (?:from|old) (.*\S)", re.MULTILINE)
_PATCH = ("--strip=1", "--fuzz=5", "--unified", "--batch", "--forward", "--get=0", "--quiet")
_OFF = (
    *(
        "core.fsmonitor",
        "core.autocrlf",
        "core.logAllRefUpdates",
        "submodule.recurse",
        "fetch.recurseSubmodules",
    ),
    *("maintenance.auto", "advice.detachedHead"),
)
_SETTINGS = {
    **dict.fromkeys(_OFF, "false"),
    **dict.fromkeys(("core.hooksPath", "core.attributesFile", "core.excludesFile"), "/dev/null"),
    **dict.fromkeys(("core.fileMode", "core.symlinks"), "true"),
    "credential.helper": "",
    "protocol.allow": "never",
    **dict.fromkeys(("protocol.file.allow", "protocol.https.allow"), "always"),
    "safe.directory": "*",
    "init.templateDir": "",
    "init.defaultBranch": "main",
    "init.defaultObjectFormat": "sha1",
    "init.defaultRefFormat": "files",
    "gc.auto": "0",
}
_IDENTITY = {"NAME": "koderz", "EMAIL": "koderz@localhost", "DATE": "2000-01-01T00:00:00Z"}
_ENVIRONMENT = {
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in _IDENTITY.items()
    },
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_NO_REPLACE_OBJECTS": "1",
}


def require_git() -> None:
    """Raises KoderzError where there is none."""
    if shutil.which("git") is None:
        raise KoderzError("git is missing, by which checkouts and diffs are made; install it")


class GitError(KoderzError):
    """A git command failed."""


class Change(NamedTuple):
    """Change of a checkout since its commit."""

    diff: str
    removed: Sequence[str]  # so that it could be taken, as `path: why`


class DiffTooLargeError(GitError):
    """A diff is larger than it may be. `diff` is its beginning."""

    def __init__(self, diff: str, limit: int) -> None:
        super().__init__(f"the diff is larger than {limit >> 20} MB")
        self.diff = diff


@dataclass(frozen=True, slots=True)
class Store:
    """A folder as it was made, from which checkouts are made, and against which diffs are taken."""

    folder: Path  # a bare repository of one commit
    commit: str
    # checkouts are copies of it, not clones
    kept: Listing | None = field(default=None, repr=False, compare=False)

    async def checkout(self, folder: Path) -> None:
        """A copy of the folder as it was made in the empty `folder`.

        Else a clone with a `.git` that knows of this commit alone and of no remote.
        """
        if self.kept:
            await asyncio.to_thread(copy_tree, self.kept, folder)
            return
        await asyncio.to_thread(shutil.copytree, self.folder / _CLONE, folder / ".git")
        await _git("reset", "-q", "--hard", self.commit, inside=folder)

    async def baseline(self) -> Path:
        """A checkout that all share, and that is only read."""
        shared = self.folder / _BASELINE
        if not shared.exists():
            with tree_of(shared) as tree:
                await self.checkout(tree)
                with contextlib.suppress(OSError):  # another was quicker
                    _seal(tree, shared)
        return shared

    async def listing(self) -> Listing:
        """The listing of a checkout that nobody has changed."""
        if self.kept:
            return self.kept
        return await asyncio.to_thread(Listing.of, await self.baseline())

    async def patched(self, folder: Path, diff: bytes) -> str:
        """A checkout in the empty `folder` with a diff applied in the first of the `WAYS` in which it fits: that way.

        Raises GitError, and leaves the folder empty, where it fits in none, or makes symbolic links or a `.git`.
        """
        await self.checkout(folder)
        links = _links(folder)
        try:
            # some are published without the last line end
            way = await _loosely_applied(diff.removesuffix(b"\n") + b"\n", folder)
            if _links(folder) - links:
                raise GitError("the diff makes symbolic links")
        except BaseException:
            _clear(folder)
            raise
        return way

    async def diff(self, folder: Path, limit: int) -> str:
        """Difference between a checkout and its commit in the form of `git apply`, new and binary files included.

        Ignored files are left out, as is what git takes for its own: repositories, and so a task's history. Where a
        text isn't UTF-8, all files are taken for binary ones. Raises DiffTooLargeError above `limit` bytes, and before
        git reads what is sure to be above.
        """
        return (await self.change(folder, limit)).diff

    async def change(self, folder: Path, limit: int) -> Change:
        """The same diff, and what an honest change doesn't have and the diff can't. The checkout stays as it is."""
        before = await self.listing()
        with (
            tempfile.TemporaryDirectory(dir=self.folder.parent) as own,
            contextlib.closing(await asyncio.to_thread(Listing.of, folder)) as now,
        ):
            # git sees what is laid there, and nothing else
            git_dir, shown = Path(own, "git"), Path(own, "tree")
            _lean_on(self.folder, git_dir)
            where = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(shown)}
            shutil.copyfile(self.folder / "index", git_dir / "index")
            seen = diffable(now)
            found = await asyncio.to_thread(changes, diffable(before), seen)
            rules = {path for path in seen.files() if is_rules(path, seen)}
            await asyncio.to_thread(link_tree, seen, rules, shown)
            new = {path for path in found.present if path not in before.entries}
            new -= await _ignored(sorted(new), shown, where)
            present = [path for path in found.present if path in new or path in before.entries]
            if not fits(present, before, seen, limit):
                raise DiffTooLargeError("", limit)
            await asyncio.to_thread(link_tree, seen, {*present} - rules, shown)
            await _index(found.gone, "--force-remove", inside=shown, environment=where)
            await _index(present, "--add", "--replace", inside=shown, environment=where)
            form = (
                "--binary",
                "--full-index",
                "--no-renames",
                "--no-ext-diff",
                "--no-textconv",
                "--no-color",
            )
            words = ("diff", "--cached", *form, self.commit)
            diff = await _git(*words, inside=shown, environment=where, limit=limit)
            dropped = undiffable(now, seen, before)
            try:
                return Change(diff.decode(), dropped)
            except UnicodeDecodeError:
                _ignore_attributes(git_dir, "* -diff\n")
                whole = await _git(*words, inside=shown, environment=where, limit=limit)
                return Change(whole.decode(), dropped)


async def _ignored(paths: Sequence[str], folder: Path, where: Mapping[str, str]) -> set[str]:
    """The paths among new ones that files named .gitignore leave out."""
    if not paths:
        return set()
    # ./ in front, as `:` begins a pattern
    words, own = ("check-ignore", "-z", "--stdin"), [f"./{path}" for path in paths]
    found = await _git(*words, inside=folder, environment=where, stdin=_nul(own), accepted=(0, 1))
    return {os.fsdecode(path).removeprefix("./") for path in found.split(b"\0") if path}


async def _index(
    paths: Sequence[str], *words: str, inside: Path, environment: Mapping[str, str]
) -> None:
    """Puts files into the index, or takes them out of it."""
    if paths:
        command = ("update-index", *words, "-z", "--stdin")
        await _git(*command, inside=inside, environment=environment, stdin=_nul(paths))


def _nul(paths: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


@contextmanager
def tree_of(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` for a tree that is to become a store's."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as tree:
        yield Path(tree)


async def export(
    source: str, commit: str, tree: Path, *, subdir: str = "", paths: Iterable[str] = ()
) -> None:
    """Puts the files of a commit into the empty folder `tree`: those below `subdir`, and of them those below `paths`.

    `source`: the path of a repository or bundle, or a URL of file:// or https://. Raises GitError.
    """
    if "://" in source and not source.startswith(("file://", "https://")):
        raise GitError(
            f"{source}: repositories are taken from a path, a bundle, file:// or https:// only"
        )
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        git_dir = Path(folder, "source.git")
        await _git("init", "-q", "--bare", str(git_dir))
        _ignore_attributes(git_dir)
        wanted = await _fetched(source, commit, git_dir) + (
            f":{subdir.strip('/')}" if subdir.strip("/") else ""
        )
        where = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(tree)}
        await _git("read-tree", wanted, inside=tree, environment=where)
        await _git("checkout-index", "-a", "-f", inside=tree, environment=where)
    if excepted := [PurePosixPath(path.strip("/")) for path in paths]:
        keep_only(tree, excepted)


async def _fetched(source: str, commit: str, git_dir: Path) -> str:
    """The whole hash of a commit, which the repository has then: alone where it is stated so and given so."""
    wanted: list[tuple[str, ...]] = [("+refs/*:refs/source/*",), (commit,)]
    if exact := re.fullmatch(r"([0-9a-f]{40})((?:\^|~\d+)*)", commit):
        steps = sum(int(number or 1) for number in re.findall(r"[\^~](\d*)", exact[2]))
        wanted.insert(0, (exact[1], f"--depth={steps + 1}"))
    for name, *options in wanted:
        try:
            await _git("fetch", "-q", "--no-tags", *options, "--", source, name, inside=git_dir)
            return (
                (await _git("rev-parse", "--verify", f"{commit}^{{commit}}", inside=git_dir))
                .decode()
                .strip()
            )
        except GitError as error:
            failed = error
    raise failed


async def unignored(folder: Path, rules: str) -> Sequence[str]:
    """The files below a folder that files of the name `rules`, there or in folders below, don't leave out."""
    with tempfile.TemporaryDirectory() as own:
        await _git("init", "-q", "--bare", own)
        where = {"GIT_DIR": own, "GIT_WORK_TREE": str(folder)}
        words = ("ls-files", "-o", "-z", f"--exclude-per-directory={rules}")
        listed = await _git(*words, inside=folder, environment=where)
    return [os.fsdecode(path) for path in listed.split(b"\0") if path]


async def stored(tree: Path, folder: Path, *, keep: bool = False) -> Store:
    """A new store at `folder` of all that is in `tree`, which it takes, as a commit with a fixed author and date.

    With `keep` checkouts are copies of the folder as it is; else they are clones of the commit.
    """
    await _git("init", "-q", "--bare", str(folder))
    _ignore_attributes(folder)
    listing = await asyncio.to_thread(Listing.of, tree)
    seen = diffable(listing)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        where = {"GIT_DIR": str(folder), "GIT_WORK_TREE": own}
        await asyncio.to_thread(link_tree, seen, seen.files(), Path(own))
        await _index([*seen.files()], "--add", inside=Path(own), environment=where)
    written = (await _git("write-tree", inside=folder)).decode().strip()
    commit = (await _git("commit-tree", written, "-m", "Baseline", inside=folder)).decode().strip()
    await _git("update-ref", _MAIN, commit, inside=folder)
    (folder / "index").unlink(missing_ok=True)
    await _git("read-tree", commit, inside=folder)  # an index that knows of no file's times
    if keep:
        await asyncio.to_thread(_seal, tree, folder / _BASELINE)
        return Store(folder, commit, replace(listing, tree=folder / _BASELINE))
    await _git("repack", "-a", "-d", "-q", inside=folder)
    with tempfile.TemporaryDirectory(dir=folder) as clone:
        await _git(
            "clone", "-q", "--no-hardlinks", "--no-tags", "--no-checkout", str(folder), clone
        )
        await _git("remote", "remove", "origin", inside=Path(clone))
        shutil.copyfile(folder / "index", Path(clone, ".git/index"))
        _ignore_attributes(Path(clone, ".git"))
        shutil.move(Path(clone, ".git"), folder / _CLONE)
    return Store(folder, commit)


def _seal(tree: Path, baseline: Path) -> None:
    tree.rename(baseline)
    tree.mkdir()  # for whoever made it, and removes it


async def apply(diff: bytes, checkout: Path, *words: str) -> None:
    """Applies a diff to a clean checkout, wholly or not at all. GitError where it doesn't fit, or would leave it."""
    _require_own_sources(diff)
    if not diff.strip():
        return
    with tempfile.TemporaryDirectory() as own:
        where = {}
        if "--3way" not in words:  # which asks for the objects of the checkout's own
            _lean_on(None, Path(own))
            where = {"GIT_DIR": own, "GIT_WORK_TREE": str(checkout)}
        command = ("apply", "--binary", "--whitespace=nowarn", *words, "-")
        await _git(*command, inside=checkout, environment=where, stdin=diff)


async def touched(diff: bytes) -> Sequence[str]:
    """The paths of the files that a diff changes. Raises GitError for what is none."""
    listed = await _git("apply", "--numstat", "-z", "-", stdin=diff) if diff.strip() else b""
    return [os.fsdecode(each.split(b"\t", 2)[2]) for each in listed.split(b"\0") if each]


def _require_own_sources(diff: bytes) -> None:
    """Raises GitError where a diff copies what isn't the checkout's: `git apply` looks at where copies go alone."""
    for source in _SOURCE.findall(diff):
        is_quoted = source.startswith(b'"')
        inner_path(
            source[1:-1].decode("unicode_escape", "replace") if is_quoted else os.fsdecode(source)
        )


async def _loosely_applied(diff: bytes, checkout: Path) -> str:
    _require_own_sources(diff)
    errors: list[GitError] = []
    for way, words in zip(WAYS, ((), ("--ignore-whitespace",)), strict=False):
        try:
            await apply(diff, checkout, *words)
        except GitError as error:
            errors.append(error)
        else:
            return way
    try:
        await patch(diff, checkout)
    except GitError:
        raise errors[0] from None
    return WAYS[-1]


async def patch(diff: bytes, checkout: Path) -> None:
    """Applies a diff as `patch` does, with lines of context that may differ. Raises GitError where it doesn't fit."""
    _require_own_sources(diff)
    words = (*_PATCH, "--no-backup-if-mismatch", "--reject-file=-")
    with tempfile.TemporaryDirectory(dir=checkout.parent) as aside:
        git_dir = (checkout / ".git").rename(Path(aside, "git"))  # patch doesn't know what it is
        await _run("patch", words, inside=checkout, environment={}, stdin=diff)
        _put_back(git_dir, checkout)


def _put_back(git_dir: Path, checkout: Path) -> None:
    if next(checkout.rglob(".git"), None):
        raise GitError("the diff makes a .git")
    git_dir.rename(checkout / ".git")


def _clear(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _links(tree: Path) -> set[tuple[Path, Path]]:
    """The symbolic links in a tree, and what they lead to."""
    return {(path, path.readlink()) for path in tree.rglob("*") if path.is_symlink()}


def write(tree: Path, path: str, content: bytes, *, executable: bool = False) -> None:
    """Writes a file below `tree`; whatever stands in its way there goes, links too. KoderzError for a path outside."""
    parts = inner_path(path).parts
    folder = tree
    for part in parts[:-1]:
        folder /= part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
    place = folder / parts[-1]
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    descriptor = os.open(
        place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if executable else 0o644
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def restore(tree: Path, path: str, before: Path) -> None:
    """Makes what is at a path below `tree` what it is below `before`, a file, a link or nothing; follows no link."""
    for parent in reversed(inner_path(path).parents[:-1]):
        if (before / parent).is_symlink():
            path = parent.as_posix()
            break
    old, place = before / path, tree / path
    if old.is_symlink():
        write(tree, path, b"")
        place.unlink()
        place.symlink_to(old.readlink())
    elif old.is_file():
        write(tree, path, old.read_bytes(), executable=bool(old.stat().st_mode & 0o100))
    elif place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def inner_path(path: str) -> PurePosixPath:
    """A relative path that stays where it begins. Raises GitError for any other."""
    pure = PurePosixPath(path)
    if (
        not pure.parts
        or pure.is_absolute()
        or ".." in pure.parts
        or ".git" in pure.parts
        or "\0" in path
    ):
        raise GitError(f"the path {path!r} leads out of the repository, or into its .git")
    return pure


def _ignore_attributes(git_dir: Path, more: str = "") -> None:
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info/attributes").write_text(_ATTRIBUTES + more)


def _lean_on(store: Path | None, git_dir: Path) -> None:
    """Makes a repository without settings, which sees the objects of another, and puts none there."""
    for name in ("objects/info", "refs"):
        (git_dir / name).mkdir(parents=True)
    (git_dir / "HEAD").write_text(f"ref: {_MAIN}\n")
    if store:
        (git_dir / "objects/info/alternates").write_text(f"{store / 'objects'}\n")
    _ignore_attributes(git_dir)


async def _git(
    *words: str,
    inside: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    limit: int = 1 << 28,
    accepted: Collection[int] = (0,),
) -> bytes:
    """Run git and return its output. Raises GitError with git's message, DiffTooLargeError above `limit` bytes."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    variables = {**_ENVIRONMENT, **(environment or {})}
    command = [*settings, *words]
    return await _run(
        "git",
        command,
        inside=inside,
        environment=variables,
        stdin=stdin,
        limit=limit,
        accepted=accepted,
    )


async def _run(
    name: str,
    words: Iterable[str],
    *,
    inside: Path | None,
    environment: Mapping[str, str],
    stdin: bytes | None,
    limit: int = 1 << 28,
    accepted: Collection[int] = (0,),
) -> bytes:
    """The same of any program."""
    program = shutil.which(name)
    if program is None:
        raise Unreachable(f"{name} is missing, by which checkouts and diffs are made; install it")
    process = await asyncio.create_subprocess_exec(
        *(program, *words),
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=inside or "/",
        env={"PATH": os.environ.get("PATH", os.defpath), **environment},
    )
    assert process.stdout
    assert process.stderr
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors, _ = await asyncio.gather(
                _limited(process.stdout, limit), process.stderr.read(), _fed(process.stdin, stdin)
            )
            await process.wait()
    except TimeoutError:
        raise GitError(f"{name} takes longer than {_SECONDS:.0f} s") from None
    finally:
        await reap(process)
    if process.returncode not in accepted:
        messages = errors.decode(errors="replace").strip().splitlines() or [
            f"exit code {process.returncode}"
        ]
        why = next((line for line in messages if line.startswith("fatal: ")), messages[-1])
        raise GitError(f"{name}: {why[:500]}")
    return output


async def _limited(stream: asyncio.StreamReader, limit: int) -> bytes:
    output = bytearray()
    # to the end: a process whose output nobody reads isn't seen to end
    while part := await stream.read(1 << 16):
        output += part[: limit + 1 - len(output)]
    if len(output) > limit:
        raise DiffTooLargeError(output[:limit].decode(errors="replace"), limit)
    return bytes(output)


async def _fed(stream: asyncio.StreamWriter | None, data: bytes | None) -> None:
    if stream and data is not None:
        with contextlib.suppress(OSError):
            stream.write(data)
            await stream.drain()
        stream.close()
