"""A check of classes that others subclass: a misspelt member is refused instead of being ignored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from koderz_tracker.errors import KoderzError

_ALIKE = 0.8  # of difflib's ratio: `mesures` and `measures` have 0.93, `score` and `source` 0.73


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
            raise KoderzError(f"{owner} has no member `{name}`" + (f"; did you mean `{near[0]}`?" if near else ""))


def _public(cls: type) -> Iterator[str]:
    """The public names that the body of a class binds or annotates."""
    names = {**vars(cls).get("__annotations__", {}), **vars(cls)}
    return (name for name in names if not name.startswith("_"))
