"""Finds code by its name: in one of our registries, or in an entry point of another package."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
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
        except KoderzError as error:
            raise KoderzError(f"{kind} {name!r}: {error}") from error
        except Exception as error:  # a package of somebody else's may do anything
            raise KoderzError(f"{kind} {name!r}: {entry.value} can't be loaded: {error}") from error
    for names in _named_by_systems(group):
        if name in names:
            return _resolved(names[name])
    raise KoderzError(f"there is no {kind} {name!r}" + (f"; choose from {', '.join(known)}" if known else ""))


def names_of_others(group: str) -> set[str]:
    """The names that other packages add, by entry points of the group or by their systems."""
    return {*entry_point_names(group), *(name for names in _named_by_systems(group) for name in names)}


def systems_of_others() -> Iterator[Any]:
    """The values of other packages' systems. One that can't be loaded is left out."""
    names = entry_point_names(SYSTEMS)
    if not names:
        return
    from importlib.metadata import entry_points

    for entry in entry_points(group=SYSTEMS):
        try:
            if entry.name in names:
                yield entry.load()
        except (ImportError, AttributeError):  # that it is broken is for a command of its own to say
            continue


def entry_point_names(group: str) -> set[str]:
    """The names of a group's entry points in the other packages that are installed.

    Read from their metadata as installers write it, at a tenth of the cost of `importlib.metadata`.
    """
    names: set[str] = set()
    for folder in dict.fromkeys(sys.path):
        with suppress(OSError):  # a folder of the path that isn't there, or a file
            for package in os.listdir(folder or "."):  # noqa: PTH208 a path object for each of hundreds takes time
                if package.endswith((".dist-info", ".egg-info")) and not package.startswith("koderz-"):
                    with suppress(OSError, UnicodeDecodeError):  # most have none
                        text = _read(os.path.join(folder, package, "entry_points.txt"))  # noqa: PTH118
                        names.update(_names_in(text, group) if f"[{group}]" in text else ())
    return names


def _named_by_systems(group: str) -> Iterator[Mapping[str, str]]:
    return (system.names(group.partition(".")[2]) for system in systems_of_others())


def _resolved(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def _names_in(text: str, group: str) -> set[str]:
    """The names in one section of an `entry_points.txt`."""
    names, section = set(), ""
    for line in text.splitlines():
        name, equals, _ = line.partition("=")
        if line.startswith("["):
            section = line.strip()
        elif equals and section == f"[{group}]" and not line.startswith(("#", ";")):
            names.add(name.strip())
    return names
