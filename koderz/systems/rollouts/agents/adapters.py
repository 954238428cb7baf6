"""The interface of adapters for agents' command lines, and helpers to find installed programs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from koderz.errors import KoderzError
from koderz.settings.systems import names_of, required
from koderz.systems.rollouts.additions import KINDS, Addition
from koderz_tracker.registry import find

ACP = "acp:"
"""How the name of an agent begins that speaks the Agent Client Protocol; its command follows."""

_MAKER = {ACP: "koderz.systems.rollouts.agents.acp:AcpAgent"}  # loaded when it is used: it has adapters, too

ANY = frozenset(KINDS.values())
_OWN = ("koderz", "scripted", "oracle", "nop")
"""koderz' own agents, which are given additions of every kind; only the first reads them by itself."""

# What fails here ends as a program that can't be started, since an agent without its arm would be another arm's.
_LAYING = """while [ "$1" != -- ]; do
  case $1 in
  copy) mkdir -p "$3" && cp -R "$2/." "$3" ;;
  write) mkdir -p "${3%/*}" && printf '%s\\n' "$2" > "$3" ;;
  esac || exit 127
  shift 3
done
shift
exec "$@"
"""


class Dirs(NamedTuple):
    """The places in an agent's sandbox."""

    program: str  # its own executable
    home: str  # a folder of its own, which is empty
    workdir: str  # the repository, in which it begins
    url: str  # of the bridge, without /v1
    token: str  # the key to it
    additions: tuple[Addition, ...] = ()  # of the kinds that the adapter takes, with their paths there

    def texts(self, *kinds: str) -> str:
        """The texts of additions of these kinds, one after the other."""
        return "\n\n".join(each.text.strip() for kind in kinds for each in self.additions if each.kind == kind)

    @property
    def servers(self) -> Mapping[str, Mapping[str, Any]]:
        """The MCP servers that the agent is given, by name."""
        return {each.bare_name: each.server for each in self.additions if each.kind == "mcp"}


class Event(NamedTuple):
    """An event of an agent's work, as the agent reports it."""

    kind: str  # "tool", "message", "reasoning", "error" or "end"
    text: str = ""


class Package(NamedTuple):
    """A program and the folders that it needs to run."""

    program: str
    folders: tuple[str, ...]


class Adapter(Protocol):
    """An adapter for an agent's command line."""

    install: str  # the command that installs it

    def find(self) -> Package | None:
        """The installed program; None if it isn't installed."""
        ...

    def command(self, prompt: str, model: str, dirs: Dirs) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command to run, and its environment."""
        ...

    def events(self, line: str) -> Iterable[Event]:
        """The events in a line that the agent prints."""
        ...


@runtime_checkable
class VersionedAdapter(Adapter, Protocol):
    """An adapter for a program that prints its version with arguments other than `--version`."""

    version_arguments: Sequence[str]


@runtime_checkable
class AddingAdapter(Adapter, Protocol):
    """An adapter for an agent that takes skills, servers or texts beyond its task, of the kinds of `Addition`."""

    takes: Collection[str]


def require_taken(agent: str, additions: Iterable[Addition], where: str = "") -> None:
    """Raises KoderzError that names the first addition which an agent can't be given."""
    takes: Collection[str] = ()
    if agent in names_of("agents") or agent.startswith(ACP):
        adapter = adapter_of(agent)
        takes = adapter.takes if isinstance(adapter, AddingAdapter) else ()
    elif agent in _OWN:
        takes = ANY
    for each in additions:
        kind = each.kind.replace("_", " ")
        if each.kind not in takes:
            known = ", ".join(sorted(takes)).replace("_", " ") or "nothing beyond its task"
            raise KoderzError(
                f"{where}the agent {agent} can't be given {each.name} ({kind}); it takes {known}: "
                "name another agent, or leave it out"
            )
        if agent == "koderz" and each.inside and "url" in each.server:
            raise KoderzError(f"{where}{each.name} is reached by HTTP from within the sandbox: name another agent")
        if each.kind == "memory" and not each.text and agent not in _OWN[1:]:
            raise KoderzError(f"{where}{each.name}: the agent {agent} takes a memory that is a file of text")


def laid_out(argv: Sequence[str], dirs: Dirs, *, skills: str = "", texts: Mapping[str, str]) -> list[str]:
    """The command, before which the skills are copied into the folder `skills`, and texts written to files.

    An agent writes into its configuration, so that it has copies.
    """
    words = []
    for each in dirs.additions:
        if each.kind == "skill":
            words += ["copy", each.path, skills if each.inside else f"{skills}/{each.bare_name}"]
    for path, text in texts.items():
        words += ["write", text, path] if text else []
    return ["sh", "-c", _LAYING, "sh", *words, "--", *argv]


def adapter_of(name: str) -> Adapter:
    """The adapter with this name, or for `acp:COMMAND`. Raises KoderzError for an unknown one."""
    is_acp = name.startswith(ACP)
    found: Adapter = find("agent", ACP, _MAKER, "")(name.removeprefix(ACP)) if is_acp else required("agents", name)
    return found


def version_command(adapter: Adapter, package: Package) -> Sequence[str]:
    """The command that prints the version of an adapter's program."""
    arguments = adapter.version_arguments if isinstance(adapter, VersionedAdapter) else ("--version",)
    return [package.program, *arguments]


def npm_package(name: str, pattern: str, *, up: int = 0) -> Package | None:
    """The native program of an npm package whose command is in PATH, found by `pattern` near its folder.

    `up`: how many folders above that of the program are needed. A program that is no package's is taken as it is.
    """
    found = shutil.which(name)
    if found is None:
        return None
    path = Path(found).resolve()
    scopes = [folder for folder in path.parents if folder.name.startswith("@") and folder.parent.name == "node_modules"]
    native = [each for scope in scopes for each in (*scope.glob(pattern), *scope.glob(f"*/node_modules/*/{pattern}"))]
    program = next(iter(sorted(native)), path)
    return Package(str(program), (str(program.parents[up] if native else program),))


def python_package(name: str) -> Package | None:
    """A Python program in PATH, with its environment and the interpreter behind that."""
    found = shutil.which(name)
    if found is None:
        return None
    program = Path(found).resolve()
    with program.open("rb") as file:
        first = file.readline(4096).decode("utf-8", "replace").strip()
    interpreter = Path(first.removeprefix("#!").split(" ")[0])
    folders = {str(program)}
    if interpreter.name.startswith("python"):
        folders |= {str(path.parent.parent) for path in (interpreter, Path(os.path.realpath(interpreter)))}
    return Package(str(program), tuple(sorted(folders)))


def parsed(line: str) -> dict[str, Any]:
    """The object in a line of JSON; empty for any other line."""
    if not line.startswith("{"):
        return {}
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
