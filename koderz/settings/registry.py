"""Registries of things chosen by name: koderz' own, and those of other packages' entry points."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError, raised_at
from koderz.settings.schema import Settings
from tracker.registry import find


@dataclass(frozen=True, slots=True)
class Registry(Mapping[str, str]):
    """The names of one kind, each with the `module:attribute` that it stands for."""

    kind: str  # "suite"
    group: str  # of the entry points by which other packages add theirs
    known: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)  # the dataclass of those that have options of their own
    makers: Mapping[str, str] = field(default_factory=dict)  # what makes those whose names begin so, of the rest

    def __getitem__(self, name: str) -> str:
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def find(self, name: str) -> Any:
        """The object with this name. Raises KoderzError, which lists the known names, if there is none."""
        if prefix := self._prefix(name):
            return find(self.kind, prefix, self.makers, "")(name.removeprefix(prefix))
        return find(self.kind, name, self.known, self.group)

    def _prefix(self, name: str) -> str:
        """The prefix of a name whose object has to be made; empty for any other name."""
        return next((each for each in self.makers if name.startswith(each) and name not in self.known), "")

    def has(self, name: str) -> bool:
        """Whether the name is known here or to another package."""
        return name in self.known or name in self.of_others()

    def is_file(self, name: str) -> bool:
        """Whether the name refers to an object in the user's own file, see `find_in_file`."""
        return ":" in name and name not in self.known and not self._prefix(name)

    def of_others(self) -> set[str]:
        """The names that other packages add."""
        from importlib.metadata import entry_points

        return {entry.name for entry in entry_points(group=self.group)}

    def options_of(self, name: str) -> type | None:
        """The dataclass of an object's options; for another package's object, its attribute `options`."""
        if self.is_file(name):
            return None
        if name not in self.known:
            found: type | None = getattr(self.find(name), "options", None)
            return found
        return find(f"{self.kind} with options", name, self.options, "") if name in self.options else None

    def options_in(self, name: str, settings: Settings | None) -> Any:
        """The object's options in these settings, else their defaults; None if it has none."""
        struct = self.options_of(name)
        return struct and (settings.of(struct) if settings else struct())


def find_in_file(flag: str, name: str) -> Any:
    """The object that `FILE:NAME` refers to. Raises KoderzError beginning with the flag that names it."""
    file, _, attribute = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise KoderzError(f"{flag} {name}: there is no file {path}; give FILE:NAME")
    spec = importlib.util.spec_from_file_location(f"koderz{flag.replace('-', '_')}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise KoderzError(f"{flag} {name}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except KoderzError as error:  # such as a member that is misspelt
        raise KoderzError(f"{flag} {name}: {error}") from error
    except (Exception, SystemExit) as error:  # the user's own file may do anything
        what = f"{type(error).__name__}: {error}{raised_at(error)}"
        raise KoderzError(f"{flag} {name}: {path} can't be loaded: {what}") from error
    if not hasattr(module, attribute):
        raise KoderzError(f"{flag} {name}: {path} defines no {attribute}")
    return getattr(module, attribute)


def digest_of_file(name: str) -> str:
    """The digest of the file of a `FILE:NAME`, 16 hex digits."""
    return hashlib.sha256(Path(name.rpartition(":")[0]).read_bytes()).hexdigest()[:16]
