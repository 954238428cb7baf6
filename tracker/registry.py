"""Finds code by its name, of koderz or of another package, and refuses misspelt members of what others subclass."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Protocol, runtime_checkable

from koderz_tracker.errors import KoderzError

SYSTEMS = "koderz.systems"
"""The entry points of systems: values that name what they add by kind, which is a group's name without `koderz.`."""

_SHOWN = 8  # names in a message
_ALIKE = 0.8  # of difflib's ratio: `zeroshot` and `zero-shot` have 0.94, `nope` and `none` 0.75


@runtime_checkable
class Adding(Protocol):
    """A system, as far as a registry knows it."""

    def names(self, kind: str) -> Mapping[str, str]:
        """The `module:attribute` of everything that it adds of a kind, such as `sinks`, by name."""
        ...


def find(kind: str, name: str, known: Mapping[str, str], group: str) -> Any:
    """The object registered as `name`; `known` maps names to `module:attribute`.

    Only where it isn't there, the entry points of `group` are looked through, and the systems of other packages.
    Raises KoderzError, naming what there is, where nobody knows it.
    """
    if name in known:
        return _resolved(known[name])
    from importlib.metadata import entry_points  # which takes 15 ms

    added = _added_by(_loaded(tuple(sys.path)).every, group)
    targets = [
        *(entry.value for entry in entry_points(group=group, name=name)),
        *filter(None, [added.get(name)]),
    ]
    for target in targets:
        try:
            return _resolved(target)
        except KoderzError as error:
            raise KoderzError(f"{kind} {name!r}: {error}") from error
        except (ImportError, AttributeError) as error:
            raise KoderzError(f"{kind} {name!r}: {target} can't be loaded: {error}") from error
        except Exception as error:  # a package of somebody else's may do anything
            raise KoderzError(
                f"{kind} {name!r}: {target} can't be loaded: {_message(error)}"
            ) from error
    there = [
        each
        for each in (*known, *sorted({*added, *entry_point_names(group)} - {*known}))
        if each[-1:] != "*"
    ]
    # The nearest name that there is, else some of them.
    from difflib import get_close_matches  # which nobody needs whose names are right

    if near := get_close_matches(name, there, 1, _ALIKE):
        instead = f"; did you mean {near[0]}?"
    elif not there:
        instead = ""
    else:
        instead = f"; choose from {', '.join(there[:_SHOWN])}{', …' if len(there) > _SHOWN else ''}"
    raise KoderzError(f"there is no {kind} {name!r}{instead}")


def names_of_others(group: str) -> set[str]:
    """The names that other packages add, by entry points of the group or by their systems."""
    return {*entry_point_names(group), *_added_by(systems_of_others(), group)}


def names_in(group: str) -> set[str]:
    """The same, and the names that koderz' own systems add."""
    return {*entry_point_names(group), *_added_by(_loaded(tuple(sys.path)).every, group)}


def systems_of_others() -> Sequence[Any]:
    """The values of other packages' systems. One that can't be loaded is left out, see `broken_systems`."""
    return [*_loaded(tuple(sys.path)).others.values()] if entry_point_names(SYSTEMS) else ()


def broken_systems() -> Mapping[str, str]:
    """Why systems of other packages can't be loaded, in one line each, by the names of their entry points."""
    return _loaded(tuple(sys.path)).broken if entry_point_names(SYSTEMS) else {}


class _Loaded:
    """The systems that entry points name, and why some of them can't be loaded, by the entry points' names."""

    def __init__(self) -> None:
        self.own: dict[str, Adding] = {}
        self.others: dict[str, Adding] = {}
        self.broken: dict[str, str] = {}

    @property
    def every(self) -> Sequence[Adding]:
        """All that can be loaded, koderz' own first."""
        return [*self.own.values(), *self.others.values()]


@cache
def _loaded(_path: tuple[str, ...]) -> _Loaded:
    """The systems of the packages on a path."""
    from importlib.metadata import entry_points

    found = _Loaded()
    for entry in entry_points(group=SYSTEMS):
        is_own = entry.value.startswith(f"{SYSTEMS}.")
        try:
            system = entry.load()
            if not isinstance(system, Adding):
                raise TypeError("it is no koderz.extend.System")
            (found.own if is_own else found.others)[entry.name] = system
        except Exception as error:  # noqa: BLE001 a package of somebody else's may do anything
            if not is_own:  # of its own, koderz may be installed without some
                why = " ".join(_message(error).split())
                found.broken[entry.name] = f"{entry.value} can't be loaded: {why}"
    return found


def _added_by(systems: Iterable[Adding], group: str) -> dict[str, str]:
    """The names and targets that systems add to an entry-point group."""
    return {
        name: target
        for system in systems
        for name, target in system.names(group.partition(".")[2]).items()
    }


def entry_point_names(group: str) -> set[str]:
    """The names of a group's entry points in the other packages that are installed."""
    heading = f"[{group}]"
    return {
        name
        for text in _entry_points(tuple(sys.path))
        if heading in text
        for name in _names_in(text, heading)
    }


@cache
def _entry_points(path: tuple[str, ...]) -> Sequence[str]:
    """The entry points of all packages on a path but koderz, as far as they extend it.

    Read from their metadata as installers write it, at a tenth of the cost of `importlib.metadata`.
    """
    found = []
    for folder in dict.fromkeys(path):
        with suppress(OSError):  # a folder of the path that isn't there, or a file
            for package in os.listdir(folder or "."):  # noqa: PTH208 a path object for each of hundreds takes time
                if package.endswith((".dist-info", ".egg-info")) and not package.startswith(
                    "koderz-"
                ):
                    with suppress(OSError, UnicodeDecodeError):  # most have none
                        listed = os.path.join(folder, package, "entry_points.txt")  # noqa: PTH118
                        with open(listed, encoding="utf-8") as file:  # noqa: PTH123
                            found.append(file.read())
    return [text for text in found if "[koderz." in text]


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, KoderzError) else f"{type(error).__name__}: {error}"


def _resolved(target: str) -> Any:
    module, _, attribute = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def _names_in(text: str, heading: str) -> set[str]:
    """The names in one section of an `entry_points.txt`."""
    names, section = set(), ""
    for line in text.splitlines():
        name, equals, _ = line.partition("=")
        if line.startswith("["):
            section = line.strip()
        elif equals and section == heading and not line.startswith(("#", ";")):
            names.add(name.strip())
    return names


class Extensible:
    """Base of a class that others subclass: a subclass that misspells a member isn't created.

    A member is any public attribute, method or annotation of the classes above. A subclass may have public names of
    its own, except those that are nearly a member's name and not one themselves; such a helper begins with an
    underscore. Attributes that `__init__` alone sets aren't looked at.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises KoderzError naming the misspelt member, and the one that it resembles."""
        super().__init_subclass__(**options)
        require_members(cls)


def require_members(cls: type) -> None:
    """Raise KoderzError if a public name in the class body is nearly the name of an inherited member, and isn't one."""
    members = {name for base in cls.__mro__[1:] for name in _public(base)}
    for name in set(_public(cls)) - members if members else ():
        from difflib import get_close_matches  # which few classes need

        if near := get_close_matches(name, members, 1, _ALIKE):
            raise KoderzError(f"{cls.__name__} has no member `{name}`; did you mean `{near[0]}`?")


def require_known(owner: str, names: Iterable[str], members: Collection[str]) -> None:
    """Raise KoderzError for a name that is no member of the owner, with the member that it resembles, if one does."""
    for name in names:
        if name not in members:
            from difflib import get_close_matches

            near = get_close_matches(name, members, 1)
            raise KoderzError(
                f"{owner} has no member `{name}`" + (f"; did you mean `{near[0]}`?" if near else "")
            )


def _public(cls: type) -> Iterator[str]:
    """The public names that the body of a class binds or annotates."""
    names = {**vars(cls).get("__annotations__", {}), **vars(cls)}
    return (name for name in names if not name.startswith("_"))
