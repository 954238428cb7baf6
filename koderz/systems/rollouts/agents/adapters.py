"""The interface of adapters for agents' command lines, and helpers to find installed programs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from koderz.systems.rollouts.additions import Addition


class Dirs(NamedTuple):
    """The places in an agent's sandbox."""

    program: str  # its own executable
    home: str  # a folder of its own, which is empty
    workdir: str  # the repository, in which it begins
    url: str  # of the bridge, without /v1
    token: str  # the key to it
    additions: tuple[Addition, ...] = ()  # of the kinds that the adapter `takes`, with their paths there


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
