"""The keys of files that users write: an unknown one, or one that lacks, is told with the nearest that there is."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from koderz.errors import KoderzError

_SHOWN = 20


def require_keys(table: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raises KoderzError naming the first unknown key, and the one that it is nearest to."""
    for key in table:
        if key not in known:
            raise KoderzError(f"{where}: unknown key {key!r}; {meant(key, known)}")


def meant(name: str, known: Collection[str]) -> str:
    """Suggestion in place of an unknown name: the nearest one, else all known names."""
    if near := difflib.get_close_matches(name, known, 1):
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(sorted(known)[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}"


def misspelt(name: str, given: Collection[str]) -> str:
    """Which of the keys that are given looks like the one that lacks, to be put behind the message; or nothing."""
    keys = {key.strip().casefold(): key for key in given if key != name}
    near = difflib.get_close_matches(name.casefold(), keys, 1)
    return f"; is {keys[near[0]]!r} meant for it?" if near else ""
