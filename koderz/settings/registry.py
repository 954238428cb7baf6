"""Registries of things chosen by name: koderz' own, those of other packages' entry points, and a user's own.

A user's own stands in a file, as `FILE:NAME`, or was handed over by a program or a notebook. The latter lives in the
process alone, under a name such as `program:best_of_three`, which settings and records hold. Its source is recorded
beside the name, and its digest is what a resumed run is held against.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import marshal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from koderz.errors import KoderzError, raised_at
from koderz.settings.schema import Settings
from koderz.settings.systems import Optioned, names_of_other_systems, own_names
from koderz_tracker.registry import find, names_of_others

T = TypeVar("T", bound=Optioned)


@dataclass(frozen=True)
class Registry(Mapping[str, str], Generic[T]):
    """Names of one kind of extension and the `module:attribute` that each stands for: the core's, then the systems'."""

    kind: str  # "suite"
    # "suites": the member of `System` by which systems add theirs; packages' entry points: koderz.suites
    plural: str
    adapted: Callable[[Any, str], T]
    """The extension that a loaded object stands for, which is the object itself if it is one; raises KoderzError."""
    core: Mapping[str, str] = field(default_factory=dict)
    # the dataclasses of those that have options
    core_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The group of entry points by which other packages add theirs."""
        return f"koderz.{self.plural}"

    @cached_property
    def known(self) -> Mapping[str, str]:
        """koderz' own."""
        named = {**self.core, **own_names(self.plural)}
        return {name: target for name, target in named.items() if not name.endswith("*")}

    @cached_property
    def makers(self) -> Mapping[str, str]:
        """By how names begin, functions that make all that aren't known by their names."""
        named = {**names_of_other_systems(self.plural), **own_names(self.plural)}
        return {name[:-1]: target for name, target in named.items() if name.endswith("*")}

    @cached_property
    def options(self) -> Mapping[str, str]:
        """The dataclasses of those of koderz' own that have options, by their names."""
        named = {**self.core_options, **own_names("options")}
        return {name: named[key] for name in self.known if (key := f"{self.kind}.{name}") in named}

    def __getitem__(self, name: str) -> str:
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def __hash__(self) -> int:
        return hash(self.kind)

    def load(self, name: str) -> T:
        """The extension of a name. Raises KoderzError with the known names for an unknown one."""
        if prefix := self._prefix(name):
            return self.adapted(
                find(self.kind, prefix, self.makers, "")(name.removeprefix(prefix)), name
            )
        if name.endswith(".py") and name not in self.known:
            raise KoderzError(
                f"--{self.kind} {name}: say which of the file's, too: {_members_of(name)}"
            )
        return self.adapted(find(self.kind, name, self.known, self.group), name)

    def _prefix(self, name: str) -> str:
        """How the name of what has to be made begins; empty for any other."""
        return (
            ""
            if name in self.known
            else next((each for each in self.makers if name.startswith(each)), "")
        )

    def has(self, name: str) -> bool:
        """Whether the name stands for something, of ours or of another package."""
        return name in self.known or name in self.of_others()

    def is_file(self, name: str) -> bool:
        """Whether it names what the user's own file defines, see `find_in_file`."""
        return ":" in name and name not in self.known and not self._prefix(name)

    def names(self) -> list[str]:
        """All names that there are, those of other packages last."""
        return [*self.known, *sorted(self.of_others())]

    def of_others(self) -> set[str]:
        """The names that other packages add."""
        return {
            name
            for name in names_of_others(self.group) - self.known.keys()
            if not name.endswith("*")
        }

    def options_of(self, name: str) -> type | None:
        """The dataclass of an extension's options, named by its system; of another package, its `options`."""
        if self.is_file(name):
            return None
        if name not in self.known:
            named = names_of_other_systems("options")
            key = f"{self.kind}.{name}"
            if key not in named:
                return self.load(name).options
            found: type | None = find("dataclass of options", key, named, "")
            return found
        return (
            find("dataclass of options", name, self.options, "") if name in self.options else None
        )

    def options_in(self, name: str, settings: Settings | None) -> Any:
        """The object's options in these settings, else their defaults; None if it has none."""
        struct = self.options_of(name)
        return struct and (settings.of(struct) if settings else struct())


def find_in_file(flag: str, name: str) -> Any:
    """The object that `FILE:NAME` refers to. Raises KoderzError beginning with the flag that names it."""
    if own := handed(name):
        return own.value
    file, _, attribute = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise KoderzError(f"{flag} {name}: there is no file {path}; give FILE:NAME")
    spec = importlib.util.spec_from_file_location(
        f"koderz{flag.replace('-', '_')}_{path.stem}", path
    )
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


def _members_of(file: str) -> str:
    """The `FILE:NAME` of what a file defines, which isn't run for it; `FILE:NAME` itself where that can't be read."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return f"{file}:NAME"
    made = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [
        node.name for node in tree.body if isinstance(node, made) and not node.name.startswith("_")
    ]
    return " or ".join(f"{file}:{name}" for name in names[:3] or ["NAME"])


def digest_of_file(name: str) -> str:
    """The digest of the file of a `FILE:NAME`, 16 hex digits; of what a program handed over, that of its source."""
    if own := handed(name):
        return own.digest
    return hashlib.sha256(Path(name.rpartition(":")[0]).read_bytes()).hexdigest()[:16]


def file_of(name: str) -> Path:
    """The file of a `FILE:NAME`, to be sent elsewhere. Raises KoderzError for what a program handed over."""
    if handed(name):
        raise KoderzError(
            f"{name} lives in this program alone; write it into a file, and name it FILE:NAME"
        )
    return Path(name.rpartition(":")[0])


PROGRAM = "program"
"""What stands before the colon, where another name has a file."""

NAMING = {
    "suite": "--suite",
    "solver": "--solver",
    "solvers": "--solvers",
    "scorer": "--scorer",
    "metric": "--metric",
}
"""The settings that take a function or an object, with their flags."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A function or object that a program handed over, with its source as far as Python knows it."""

    value: Any
    source: str  # empty where the program was read from no file, as by python -c
    digest: str  # 16 hex digits of the source, or of the compiled code where there is none


_HANDED: dict[str, Handed] = {}


def hand_over(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a name in place of each function or object. Raises KoderzError for one without a name."""
    named = dict(settings)
    for name in NAMING.keys() & settings.keys():
        value = settings[name]
        several = name == "solvers" and isinstance(value, list | tuple)
        given = (
            tuple(_named(NAMING[name], each) for each in value)
            if several
            else _named(NAMING[name], value)
        )
        named[name] = given
    return named


def handed(name: str) -> Handed | None:
    """The function or object that was handed over under this name; None for any other name, such as that of a file.

    Raises KoderzError where it was handed over by a program that isn't this one.
    """
    if name in _HANDED or name.partition(":")[0] != PROGRAM:
        return _HANDED.get(name)
    what = name.partition(":")[2]
    raise KoderzError(
        f"{name}: the program that began the run handed {what} over, and this one has not; "
        f"hand it over again, as in koderz.resume(RUN, solver={what})"
    )


def sources_of(names: object) -> dict[str, dict[str, str]]:
    """The sources and digests of what was handed over, of all names that are found in values of settings."""
    words = names if isinstance(names, list | tuple) else [names]
    known = [(word, _HANDED[word]) for word in words if isinstance(word, str) and word in _HANDED]
    return {word: {"source": each.source, "digest": each.digest} for word, each in known}


def _named(flag: str, value: Any) -> Any:
    """The name of what is handed over; what is a name already, or None, as it is."""
    if value is None or isinstance(value, str):
        return value
    # `function` is that of a `koderz.extend.solver`.
    within = value.func if isinstance(value, partial) else getattr(value, "function", value)
    called = getattr(within, "__name__", type(within).__name__)
    if not called.isidentifier():
        raise KoderzError(
            f"{flag}: a {called.strip('<>')} has no name to be recorded by; write a function with def"
        )
    name = f"{PROGRAM}:{called}"
    _HANDED[name] = Handed(value, *_source_of(flag, within, called))
    return name


def _source_of(flag: str, value: Any, called: str) -> tuple[str, str]:
    """The source, and its digest. Closures and defaults are part of it as far as their text is."""
    shown = value if inspect.isroutine(value) or inspect.isclass(value) else type(value)
    try:
        source = inspect.getsource(shown)
    except (OSError, TypeError):
        if (code := getattr(shown, "__code__", None)) is None:
            raise KoderzError(
                f"{flag}: Python has no source of {called}; define it in a file or a cell"
            ) from None
        return "", hashlib.sha256(marshal.dumps(code)).hexdigest()[:16]
    return source, hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]
