"""Finds code by its name: in one of our registries, or in an entry point of another package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tracker.errors import KoderzError

SYSTEMS = "koderz.systems"
"""The entry points of systems: values that name what they add by kind, which is a group's name without `koderz.`."""


def find(kind: str, name: str, known: Mapping[str, str], group: str) -> Any:
    """The object registered as `name`; `known` maps names to `module:attribute`.

    Only where it isn't there, the entry points of `group` are looked through, and the systems of other packages.
    Raises KoderzError, naming what there is, where nobody knows it.
    """
    if name in known:
        return _resolved(known[name])
    from importlib.metadata import entry_points  # which takes 15 ms

    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise KoderzError(f"{kind} {name!r}: {entry.value} can't be loaded: {error}") from error
    for names in _named_by_systems(group):
        if name in names:
            return _resolved(names[name])
    raise KoderzError(f"there is no {kind} {name!r}" + (f"; choose from {', '.join(known)}" if known else ""))


def names_of_others(group: str) -> set[str]:
    """The names that other packages add, by entry points of the group or by their systems."""
    from importlib.metadata import entry_points

    return {*entry_points(group=group).names, *(name for names in _named_by_systems(group) for name in names)}


def systems_of_others() -> Iterator[Any]:
    """The values of other packages' systems. One that can't be loaded is left out."""
    return _systems() if _are_there_others() else iter(())


def _systems() -> Iterator[Any]:
    from importlib.metadata import entry_points

    for entry in entry_points(group=SYSTEMS):
        try:
            yield entry.load()
        except (ImportError, AttributeError):  # that it is broken is for a command of its own to say
            continue


def _are_there_others() -> bool:
    """Whether another package names a system, at a tenth of the cost of `importlib.metadata`."""
    places = (Path(place).glob("*.dist-info/entry_points.txt") for place in sys.path if place)
    return any(
        f"[{SYSTEMS}]".encode() in file.read_bytes()
        for files in places
        for file in files
        if not file.parent.name.startswith("koderz-")
    )


def _named_by_systems(group: str) -> Iterator[Mapping[str, str]]:
    return (system.names(group.partition(".")[2]) for system in _systems())


def _resolved(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
