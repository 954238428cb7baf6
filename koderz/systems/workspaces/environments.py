"""Environments of this machine that stand in for images: an interpreter with what was installed beside it."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Mount
from koderz.suites.dataset import require_keys
from koderz.systems.workspaces import userland

WHICH = ("format", "repo", "id")


class Selected(Protocol):
    """A row of a dataset, as far as rules select by it."""

    @property
    def format(self) -> str: ...
    @property
    def repo(self) -> str: ...
    @property
    def id(self) -> str: ...


class RowRule(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a rule that selects rows."""

    format: str = "*"
    repo: str = "*"  # as a row has it, or the URL or path that it stands for
    id: str = "*"

    def fits(self, row: Selected) -> bool:
        """Whether the rule applies to a row."""
        return all(self.fits_by(name, row) for name in WHICH)

    def fits_by(self, name: str, row: Selected) -> bool:
        """Whether the rule's value for one of `WHICH` applies to a row."""
        text, pattern = getattr(row, name), getattr(self, name)
        return fits(text, pattern) or (name == "repo" and fits(text, f"*/{pattern}"))


class EnvironmentRule(RowRule, frozen=True):
    """The requirements of matching rows that are prepared on this machine."""

    source: str = ""
    path: str = ""
    python: str = ""
    install: tuple[str, ...] = ()
    downloads: str = ""


AnyRule = TypeVar("AnyRule", bound=RowRule)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter of this machine, with the folders that belong to it."""

    executable: str
    path: str  # the folder of its programs
    prefixes: tuple[str, ...]

    @property
    def mounts(self) -> list[Mount]:
        """Its folders, as a command sees them."""
        return [Mount(Path(prefix), prefix) for prefix in self.prefixes]


def interpreter_of(rule: EnvironmentRule, flag: str) -> Interpreter:
    """The interpreter that a rule names, or python3. Raises KoderzError, naming the flag, if it doesn't run."""
    path = rule.python or shutil.which("python3") or "python3"
    if (found := userland.python_at(path)) is None:
        raise KoderzError(f"{flag}: {path} is no Python that runs")
    prefixes = tuple(entry.source for entry in userland.prefixes(found))
    return Interpreter(found.executable, f"{found.prefixes[0]}/bin", prefixes)


def first_fitting(rules: Iterable[EnvironmentRule], row: Selected) -> EnvironmentRule | None:
    """The first rule that applies to a row."""
    return next((rule for rule in rules if rule.fits(row)), None)


def read_environments(path: Path, flag: str) -> tuple[EnvironmentRule, ...]:
    """The `[[environments]]` of a file. Raises KoderzError, naming the flag and the file, for anything else in it."""
    where = f"{flag} {path}"
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        require_keys(table, ("environments",), where)
        rows = table.get("environments")
        for number, row in enumerate(rows if isinstance(rows, list) else (), 1):
            if isinstance(row, dict):
                require_keys(
                    row,
                    EnvironmentRule.__struct_fields__,
                    f"{where}: [[environments]] number {number}",
                )
        rules = msgspec.convert(rows or (), tuple[EnvironmentRule, ...])
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise KoderzError(f"{where}: {error}") from None
    return tuple(beside(path, rule, "source", "python", "downloads") for rule in rules)


def beside(path: Path, rule: AnyRule, *names: str) -> AnyRule:
    """The rule with its paths resolved against the file's folder."""
    given = {name: str(getattr(rule, name)) for name in names}
    paths = {
        name: str(path.parent.absolute() / text)
        for name, text in given.items()
        if text and "://" not in text
    }
    return msgspec.structs.replace(rule, **paths)


def fits(text: str, pattern: str) -> bool:
    """Whether a pattern of the shell matches a text, whatever its case."""
    return fnmatchcase(text.lower(), pattern.lower())
