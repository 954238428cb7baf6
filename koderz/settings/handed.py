"""Functions and objects that a program or a notebook hands over where a command line names them by `FILE:NAME`.

They live in the process alone, under names such as `program:best_of_three`, which settings and records hold. Their
source is recorded beside the name, and its digest is what a resumed run is held against.
"""

from __future__ import annotations

import hashlib
import inspect
import marshal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from koderz.errors import KoderzError

PROGRAM = "program"
"""What stands before the colon, where another name has a file."""

NAMING = {"suite": "--suite", "solver": "--solver", "solvers": "--solvers", "scorer": "--scorer", "metric": "--metric"}
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
        given = tuple(_named(NAMING[name], each) for each in value) if several else _named(NAMING[name], value)
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
    within = (
        value.func if isinstance(value, partial) else getattr(value, "function", value)
    )  # of a `koderz.extend.solver`
    called = getattr(within, "__name__", type(within).__name__)
    if not called.isidentifier():
        raise KoderzError(f"{flag}: a {called.strip('<>')} has no name to be recorded by; write a function with def")
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
            raise KoderzError(f"{flag}: Python has no source of {called}; define it in a file or a cell") from None
        return "", hashlib.sha256(marshal.dumps(code)).hexdigest()[:16]
    return source, hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]
