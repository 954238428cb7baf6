"""Options: the fields of a typed, frozen dataclass, each with its help, bounds and risks.

Flags, `KODERZ_*` variables, keys of koderz.toml and the record of a plan are all made from them. Whoever has options of
its own declares such a dataclass:

@dataclass(frozen=True, slots=True)
class RulerOptions:
    ruler_tasks: tuple[str, ...] = option(("vt",), "Tasks of the benchmark.", "NAME", listed=True)
    tasks_per_length: int = option(20, "Tasks of each length.", "N", bounds=(1, 10_000))
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from koderz.errors import KoderzError

_KEY = "koderz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The description of an option beyond its name, type and default."""

    help: str = ""
    metavar: str | None = None
    flags: tuple[str, ...] = ()  # others than --field-name
    bounds: tuple[float, float] | None = None  # of a number, ends included
    check: Callable[[Any], str] | None = None  # what is wrong with a value; empty: nothing
    # what any value but the default could do that its user may not want
    risk: str | Callable[[Any], str] = ""
    names_models: bool = False  # its words are models, or ROLE=MODEL, that are going to be asked
    names_files: bool = False  # whether its words are files or folders, or NAME=FILE
    # what the model that it names does for a solver; of a yes or no: what no does without
    role: str = ""
    changeable: bool = False  # whether it may differ when a run is taken up again
    is_secret: bool = False  # a key, which is on no record
    # of a list: whether a variable holds one value, with its blanks and commas
    is_verbatim: bool = False
    # whether it is recorded without what could be a secret in it, see `Scrubber.address`
    is_address: bool = False
    listed: bool = False  # whether its flag takes several words: --flag a b c
    instead: bool = False  # whether it takes the place of the setting of its name
    panel: str = ""  # the heading in the help
    common: bool = False  # whether short help shows it
    # who reads it where not every run does: a key of `koderz.engines.sources.READERS`
    reader: str = ""
    # the value of runs whose record is from before there was this option; None: the default
    unrecorded: Any = None


def option(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:  # noqa: A002 as typer has it
    """Declares a field that is an option. `more` are the other fields of `Option`."""
    about = Option(help=help, metavar=metavar, **more)
    return dataclasses.field(default=default, metadata={_KEY: about})


def one_of(known: Iterable[str]) -> Callable[[Iterable[str]], str]:
    """A check that all words of a list are among the known ones."""
    names = tuple(known)

    def wrong(words: Iterable[str]) -> str:
        unknown = [word for word in words if word not in names]
        return f"there is no {unknown[0]!r}; there are {', '.join(names)}" if unknown else ""

    return wrong


def no_option(default: Any) -> Any:
    """Declares a field that no flag, variable or file can set."""
    return dataclasses.field(default=default, metadata={_KEY: None})


@dataclass(frozen=True, slots=True)
class Field:
    """One option of a dataclass."""

    name: str
    type: Any
    default: Any
    about: Option

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def flags(self) -> tuple[str, ...]:
        """The option's names on the command line."""
        return self.about.flags or (
            (flag_of(f"no_{self.name}"),) if self.is_negated else (self.flag,)
        )

    @property
    def plain_type(self) -> Any:
        """The option's type without None."""
        if typing.get_origin(self.type) in (types.UnionType, typing.Union):
            return next(each for each in typing.get_args(self.type) if each is not type(None))
        return self.type

    @property
    def item_type(self) -> Any:
        """The type of a list's items; None if the option is no list."""
        return typing.get_args(self.type)[0] if typing.get_origin(self.type) is tuple else None

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that may be chosen; empty if the option is not a choice."""
        kind = self.plain_type
        return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()

    @property
    def is_negated(self) -> bool:
        """Whether the option is on by default and turned off by `--no-name`."""
        return self.default is True

    def read(self, value: Any, where: str, *, lax: bool = False) -> Any:
        """Converts a value to the option's type and checks its bounds. Raises KoderzError beginning with `where`.

        `lax` reads numbers and booleans from text, and lists from words.
        """
        shown = "***" if self.about.is_secret else repr(value)
        if lax and isinstance(value, str) and self.item_type:
            value = (value,) if self.about.is_verbatim else tuple(value.replace(",", " ").split())
        if lax and isinstance(value, str) and self.plain_type is bool:
            value = _TRUTH.get(value.lower(), value)
        try:
            converted = msgspec.convert(value, self.type, strict=not lax, dec_hook=_path)
        except msgspec.ValidationError as error:
            raise KoderzError(f"{where}: invalid value {shown}; {self._expected(error)}") from None
        if self.about.check and converted is not None and (wrong := self.about.check(converted)):
            raise KoderzError(f"{where}: invalid value {shown}; {wrong}")
        low, high = self.about.bounds or (float("-inf"), float("inf"))
        for number in converted if isinstance(converted, tuple) else (converted,):
            if isinstance(number, int | float) and not low <= number <= high:
                raise KoderzError(
                    f"{where}: invalid value {number}; it must be between {_number(low)} and {_number(high)}"
                )
        return converted

    def risk(self, value: Any) -> str:
        """The harm that this value could do without the user's consent; empty if none."""
        if not value or value == self.default:
            return ""
        return self.about.risk(value) if callable(self.about.risk) else self.about.risk

    def models(self, value: Any) -> tuple[str, ...]:
        """The models that the value names."""
        if not value or isinstance(value, bool) or not (self.about.names_models or self.about.role):
            return ()
        return tuple(word.rpartition("=")[2] for word in _words(value))

    def files(self, value: Any) -> tuple[Path, ...]:
        """The files and folders that the value names."""
        if value and self.plain_type is Path:
            return tuple(Path(word) for word in _words(value))
        if not value or not self.about.names_files:
            return ()
        return tuple(Path(word.rpartition("=")[2]) for word in _words(value))

    def _expected(self, error: msgspec.ValidationError) -> str:
        if self.choices:
            return f"choose from {', '.join(self.choices)}"
        text = str(error)
        return text[:1].lower() + text[1:]


def _words(value: Any) -> list[str]:
    """The texts of a value, which may be somebody else's and of any kind."""
    every = value if isinstance(value, list | tuple) else [value]
    return [str(word) for word in every if isinstance(word, str | Path)]


@cache
def fields_of(struct: type) -> Mapping[str, Field]:
    """The options of a dataclass, by name. Raises KoderzError for a class with fields that can't be options."""
    if not dataclasses.is_dataclass(struct):
        raise KoderzError(f"the options {struct.__qualname__} are no dataclass")
    kinds = typing.get_type_hints(struct)
    found = {}
    for each in dataclasses.fields(struct):
        about = each.metadata.get(_KEY, Option())
        if about is not None:
            if each.default is dataclasses.MISSING:
                raise KoderzError(f"the option {struct.__qualname__}.{each.name} has no default")
            found[each.name] = Field(each.name, kinds[each.name], each.default, about)
    return found


def flag_of(name: str) -> str:
    """The flag of an option's name: `--max-cost` for `max_cost`."""
    return f"--{name.replace('_', '-')}"


def without_effect(flag: str, reader: str) -> KoderzError:
    """The error of an option that was given, and that only `reader` would read, which isn't there."""
    return KoderzError(f"{flag} has no effect here: only {reader} reads it")


def plain(value: Any) -> Any:
    """The value of an option as JSON."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def as_words(struct: Any) -> str:
    """The values of a dataclass of options as text, in the order of its fields."""
    kind: Any = type(struct)
    return " ".join(str(getattr(struct, name)) for name in fields_of(kind))


_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _path(kind: type[Any], value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        if "\0" in value:
            raise ValueError("no path has a null character")
        return Path(value)
    raise TypeError(f"Expected `str`, got `{type(value).__name__}`")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
