"""Things that an agent gets beyond its task: skills, MCP servers, context files, memories and system prompts.

All of it is copied into koderz' cache by its digest before anything starts, and is mounted from there: a run of hours
sees one state of a folder, whatever is edited meanwhile.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.archives import tarfile_with_filters as tarfile
from koderz.settings.paths import cache_folder
from koderz.settings.systems import own_names
from koderz.suites.dataset import require_keys
from koderz.systems.workspaces.folders import files_below, leads_out, made_whole

Kind = Literal["skill", "mcp", "context", "memory", "system_prompt"]
KINDS: Mapping[str, Kind] = {
    "skills": "skill",
    "mcp": "mcp",
    "context": "context",
    "memory": "memory",
    "system_prompt": "system_prompt",
}
"""The kind of addition that each key of a configuration's entry or arm names."""

_MOUNTED = "/opt/koderz/additions"  # in the sandbox
_SKILLS = (
    "You have skills: folders of instructions, with scripts and references beside them. Before you work on something "
    "that a skill is for, read its SKILL.md with a command."
)
_UNUSED = {".git", "__pycache__", ".DS_Store"}  # what lies in a folder without being part of it
_LAUNCHERS = re.compile(r"(?:python[\d.]*|node|npx|uvx?|bunx?|deno|bash|sh|env|run|-.*)")
_TABLE, _SERVER_NAME = dict[str, str], re.compile(r"[\w-]{1,64}", re.ASCII)
_SERVER_KEYS = {
    "command": str,
    "args": list[str],
    "env": _TABLE,
    "type": str,
    "url": str,
    "headers": _TABLE,
}
LARGEST_TEXT = 96 << 10  # bytes of all texts of an arm, which are one argument of a command
_LARGEST = 256 << 20  # bytes of all that an addition has
_HEAD = re.compile(r"\A\ufeff?---[ \t\r]*\n(.*?)^---[ \t\r]*$", re.MULTILINE | re.DOTALL)
_SECONDS = 60.0  # of git


@dataclass(frozen=True, slots=True)
class Addition:
    """A thing that an agent gets beyond its task: a skill, MCP server, context file, memory or system prompt.

    A task's own folder of skills, and its own servers, are additions of each arm.
    """

    kind: Kind
    # as shown in the arm's name: the skill's, the server's, or the file's, with @REVISION where one is named
    name: str
    # the absolute folder or file on this machine that is mounted; empty for a server by command or URL
    path: str
    digest: str  # sha256 of all that is mounted, taken before the start
    # {command, args, env}, or {type, url, headers}
    server: Mapping[str, Any] = field(default_factory=dict, hash=False)
    # of a context, memory or system prompt; of a skill what it is for
    text: str = field(default="", repr=False)
    inside: bool = False  # whether `path` lies in the task's image, and holds several skills

    @property
    def bare_name(self) -> str:
        """Its name without a revision."""
        return self.name.partition("@")[0] or self.name

    @property
    def is_apart(self) -> bool:
        """Whether a server doesn't work beside the agent. koderz' own doesn't, as its package has answers of tasks."""
        return (
            "url" in self.server or "hosts" in self.server or self.server.get("command") == "koderz"
        )

    @property
    def place(self) -> str:
        """The place of a server in words."""
        if "url" in self.server:
            return f" at {urlsplit(self.server['url']).netloc}"
        hosts = f" that reaches {', '.join(self.server['hosts'])}" if "hosts" in self.server else ""
        return f" in a sandbox of its own{hosts}" if self.is_apart else " in the agent's sandbox"

    @property
    def mounted(self) -> Addition:
        """The addition with its paths as they are in the sandbox."""
        if self.inside or not self.path:
            return self
        place = f"{_MOUNTED}/{self.digest[:16]}/{Path(self.path).name}"
        words = [
            str(word).replace(f"{self.path}/", f"{place}/") for word in self.server.get("args", ())
        ]
        return replace(
            self, path=place, server={**self.server, "args": words} if words else self.server
        )


def read_additions(kind: Kind, said: str, base: Path) -> tuple[Addition, ...]:
    """The additions that a text names, found from the working directory, else from `base`.

    Of skills it is `DIR[@REV]`, one skill or a folder of several; of MCP servers a file with `mcpServers`, a URL or a
    command; of the others `FILE[@REV]`. Raises KoderzError if there is none, or if it can't be used.
    """
    if kind == "mcp":
        return tuple(_servers(said, base))
    with _at_revision(said, base) as (source, revision):
        if kind == "skill":
            found = (
                [source / "SKILL.md"]
                if (source / "SKILL.md").is_file()
                else sorted(source.glob("*/SKILL.md"))
            )
            if not found:
                raise KoderzError(f"{said}: a skill is a folder with a SKILL.md, and there is none")
            if away := [file for file in found if leads_out(file, source)]:
                raise KoderzError(f"{away[0].parent} is, or has, a link that leaves {said}")
            return tuple(
                replace(
                    _kept(
                        kind,
                        f"{file.parent.name}{revision}",
                        _below(file.parent, f"{file.parent.name}/", "evals"),
                    ),
                    text=head[1].strip() if (head := _HEAD.match(_text(file))) else "",
                )
                for file in found
            )
        # a store of koderz', which koderz serves
        if kind == "memory" and (source / "memory.db").is_file():
            if "memory" not in own_names("commands"):
                raise KoderzError(
                    f"{said}: it is served by the system memory, which this installation of koderz lacks"
                )
            files = {f"{source.name}/{each.name}": each for each in source.glob("memory.db*")}
            served = {"command": "koderz", "args": ["memory", "serve"]}
            return (_kept("mcp", f"{source.name}{revision}", files, served),)
        if source.is_dir() and kind != "memory":
            raise KoderzError(f"{said} is a folder; {kind.replace('_', ' ')} is a file of text")
        files = _below(source, f"{source.name}/") if source.is_dir() else {source.name: source}
        # a folder, or a database: its bytes have a 0
        is_store = source.is_dir() or (kind == "memory" and b"\0" in source.read_bytes()[:1024])
        text = "" if is_store else _text(source)
        return (replace(_kept(kind, f"{source.name}{revision}", files), text=text),)


def told_of(additions: Iterable[Addition]) -> str:
    """The text on additions for the system prompt of an agent that has no other place for them.

    A skill isn't in it, but what it is for and where it is opened.
    """
    found = {kind: [each for each in additions if each.kind == kind] for kind in KINDS.values()}
    parts = [
        each.text.strip() for kind in ("system_prompt", "context", "memory") for each in found[kind]
    ]
    if found["skill"]:
        places = [
            f"{each.path}/*/SKILL.md" if each.inside else f"{each.path}/SKILL.md"
            for each in found["skill"]
        ]
        listed = [
            f"{place}\n{each.text}".strip()
            for place, each in zip(places, found["skill"], strict=True)
        ]
        parts.append("\n\n".join([_SKILLS, *listed]))
    return "\n\n".join(parts)


def sources_of(kind: Kind, said: str, base: Path) -> list[Path]:
    """The files and folders of this machine that a text has shown to an agent."""
    if kind == "mcp":
        servers, beside = _stated(said, base)
        return (
            []
            if "://" in said
            else [place for each in servers.values() for place in _named(each, beside).values()]
        )
    bare = _found(said, base) or _found(said.rpartition("@")[0], base)
    return [bare or base / said]


def _found(name: str, base: Path) -> Path | None:
    """The place with this name as seen from the working directory, or else from `base`."""
    places = (Path(os.path.abspath(each)) for each in (Path(name), base / name))  # noqa: PTH100 a link keeps its name
    return next((place for place in places if name and place.exists()), None)


@contextmanager
def _at_revision(said: str, base: Path) -> Iterator[tuple[Path, str]]:
    """The file or folder as it is, or with `@REV` as it was at that revision of its repository, and `@REV`."""
    if found := _found(said, base):
        yield found, ""
        return
    name, at, revision = said.rpartition("@")
    if not at or revision.startswith("-"):  # which git would take for an option
        raise KoderzError(f"there is no file or folder {said}")
    place = _found(name, base) or Path(os.path.abspath(base / name))  # noqa: PTH100
    # It may be gone since then, and folders above it with it, so that git is asked from the top of the repository.
    near = next(folder for folder in (place, *place.parents) if folder.is_dir())
    root = Path(_git(near, said, "rev-parse", "--show-toplevel").decode().strip())
    inner = (near.resolve() / place.relative_to(near)).relative_to(root).as_posix()
    commit = _git(root, said, "rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()
    objects = root / _git(root, said, "rev-parse", "--git-path", "objects").decode().strip()
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as folder:
        # Its settings could name filters, which are programs: a repository of koderz' own only reads its objects.
        _git(Path(own), said, "init", "-q", "--bare")
        alone = {
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        words = (f"--prefix={place.name}/", commit) if inner == "." else (commit, inner)
        archive = _git(Path(own), said, "archive", "--format=tar", *words, environment=alone)
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
                opened.extractall(folder, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise KoderzError(f"{said} can't be unpacked: {error}") from None
        yield Path(folder, place.name if inner == "." else inner), f"@{revision}"


def _git(
    folder: Path, said: str, *words: str, environment: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | dict(
        environment
    )
    try:
        done = subprocess.run(
            ["git", "--literal-pathspecs", "-C", str(folder), *words],  # noqa: S607
            capture_output=True,
            env=own,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise KoderzError(f"{said}: git can't be asked for that revision: {error}") from None
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise KoderzError(
            f"{said}: there is no such file or folder, and git has no such revision: {' '.join(why)}"
        )
    return done.stdout


def _below(folder: Path, prefix: str, hidden: str = "") -> dict[str, Path]:
    """The files of a folder, by their paths with `prefix` before; without those of a folder `hidden` in it."""
    found = {}
    for path, file in files_below(folder).items():
        parts = path.split("/")
        if parts[0] != hidden and _UNUSED.isdisjoint(parts):
            found[f"{prefix}{path}"] = file
    return found


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            found = opened.read(LARGEST_TEXT + 1)
        if len(found) > LARGEST_TEXT:
            raise KoderzError(f"{file} has more than {LARGEST_TEXT >> 10} KB")
        return found.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise KoderzError(f"{file} can't be read as text: {error}") from None


def _servers(said: str, base: Path) -> Iterator[Addition]:
    servers, beside = _stated(said, base)
    for name, server in servers.items():
        named = _named(server, beside)
        files: dict[str, Path] = {}
        for word, place in named.items():
            inner = f"{name}/{_inner(word)}"
            if place.is_dir():
                files |= _below(place, inner if inner == f"{name}/" else f"{inner}/")
            else:
                files[inner] = place
        yield _kept("mcp", name, files, server, {word: _inner(word) for word in named})


def _stated(said: str, base: Path) -> tuple[dict[str, dict[str, Any]], Path]:
    """The servers that a file, a URL or a command states, by name, and the folder that their files lie beside."""
    if "://" in said.partition(" ")[0]:
        host = urlsplit(said).hostname or ""
        return {host.split(".")[0] or "server": {"type": "http", "url": said}}, base
    file = _found(said, base)
    if file is None or not file.is_file() or file.suffix != ".json":
        try:
            words = shlex.split(said)
        except ValueError as error:
            raise KoderzError(
                f"MCP server {said!r}: no command that a shell could read ({error})"
            ) from None
        if not words:
            raise KoderzError("an MCP server needs a file with mcpServers, a URL or a command")
        name = next(
            (Path(word).stem for word in words if not _LAUNCHERS.fullmatch(Path(word).name)),
            "server",
        )
        return {server_name(name): {"command": words[0], "args": words[1:]}}, Path.cwd()
    try:
        servers = json.loads(_text(file))["mcpServers"]
        found = {str(name): dict(server) for name, server in servers.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise KoderzError(
            f'{file}: no MCP servers; it has to read {{"mcpServers": {{NAME: {{"command": …}}}}}}'
        ) from None
    for name, server in found.items():
        where = f"{file}: mcpServers.{name}"
        require_keys(server, _SERVER_KEYS, where)
        try:
            for key, value in server.items():
                msgspec.convert(value, _SERVER_KEYS[key])
        except msgspec.ValidationError as error:
            raise KoderzError(f"{where}.{key}: {str(error)[:1].lower()}{str(error)[1:]}") from None
        if not _SERVER_NAME.fullmatch(name) or ("command" in server) == ("url" in server):
            raise KoderzError(
                f"{where} needs a name of letters, digits, - and _, and either a command or a url"
            )
    return found, file.parent


def server_name(name: str) -> str:
    """A name that agents can make those of tools of."""
    return re.sub(r"[^\w-]+", "-", name, flags=re.ASCII).strip("-")[:64] or "server"


def _named(server: Mapping[str, Any], beside: Path) -> dict[str, Path]:
    """The files and folders that a server's arguments name, by the argument.

    A file is one that is there; a folder is written with a slash, as `./server`, since any word may be a folder's name.
    """
    words = [word for word in server.get("args", ()) if word and not word.startswith("-")]
    places = {word: beside / word for word in words}
    return {
        word: place
        for word, place in places.items()
        if place.is_file() or (place.is_dir() and "/" in word and not word.startswith("/"))
    }


def _inner(word: str) -> str:
    """The path below a server's folder of what an argument names; of what lies elsewhere its name alone."""
    path = os.path.normpath(word)
    if path.startswith(("/", "..")):
        return Path(path).name
    return "" if path == "." else path


def _kept(
    kind: Kind,
    name: str,
    files: Mapping[str, Path],
    server: Mapping[str, Any] | None = None,
    words: Mapping[str, str] | None = None,
) -> Addition:
    """The addition made of these files, which are copied into the cache below the digest of all of it."""
    digest = hashlib.sha256(json.dumps([kind, server], sort_keys=True).encode())
    if sum(file.stat().st_size for file in files.values()) > _LARGEST:
        raise KoderzError(
            f"{name}: the {kind} has more than {_LARGEST >> 20} MB; name a folder with less in it"
        )
    try:
        contents = {
            path: (file.read_bytes(), bool(file.stat().st_mode & 0o100))
            for path, file in files.items()
        }
        for path, (content, executable) in sorted(contents.items()):
            digest.update(
                f"\0{path}\0{executable:d}{len(content)}\0".encode("utf-8", "surrogateescape")
            )
            digest.update(content)
        folder = cache_folder() / "additions" / digest.hexdigest()
        _copy(contents, folder)
        kept = {path: file.read_bytes() for path, file in files_below(folder).items()}
    except OSError as error:
        raise KoderzError(
            f"{name}: the {kind} can't be copied into koderz' cache: {error}"
        ) from None
    if kept != {path: content for path, (content, _) in contents.items()}:
        raise KoderzError(f"{folder} has changed since koderz copied {name} there; remove it")
    path = str(folder / min(contents).split("/")[0]) if contents else ""
    args = [
        f"{path}/{words[word]}" if words and word in words else word
        for word in (server or {}).get("args", ())
    ]
    return Addition(
        kind,
        name,
        path,
        digest.hexdigest(),
        {**server, "args": args} if server and args else server or {},
    )


def _copy(contents: Mapping[str, tuple[bytes, bool]], folder: Path) -> None:
    """Puts contents and whether each is executable into a folder that is there whole or not at all."""
    if folder.is_dir() or not contents:
        return
    with made_whole(folder) as whole:
        for path, (content, executable) in contents.items():
            (whole / path).parent.mkdir(parents=True, exist_ok=True)
            (whole / path).write_bytes(content)
            (whole / path).chmod(0o755 if executable else 0o644)
        for each in [whole, *whole.rglob("*")]:
            if each.is_dir():  # which users of other sandboxes read
                each.chmod(0o755)


USED = "used"
"""The fact of a rollout that says of each thing whose use can be told whether the agent used it."""


def used_in(additions: Iterable[Addition], actions: Sequence[str]) -> Mapping[str, Any]:
    """The facts of a rollout's verdict on what its agent used; none if it has nothing whose use can be told.

    `actions`: the tools that the agent called with what it gave them, as its own stream and its model's replies have
    them. A skill is used where a file of its folder is named, or the tool `Skill` opens it, and a server where a tool
    of its is called. Context files, memories and system prompts stand in every prompt.
    """
    marks = {
        each.name: _mark_of(each)
        for each in additions
        if each.kind in ("skill", "mcp") and not each.inside
    }
    found = {name: any(mark.search(action) for action in actions) for name, mark in marks.items()}
    return {USED: found} if found else {}


def _mark_of(addition: Addition) -> re.Pattern[str]:
    name = re.escape(addition.name.partition("@")[0])
    if addition.kind == "mcp":
        return re.compile(rf"\A(?:mcp__)?{name}__")
    # Each agent has its skills in a folder of another name; `ls` of all of them opens none.
    return re.compile(
        rf"\ASkill\b.*[\"']{name}[\"']|\b(?:skills|additions/\w+)/{name}\b|\b{name}/SKILL\.md"
    )
