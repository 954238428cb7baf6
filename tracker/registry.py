"""Finds code by its name: in one of our registries, or in an entry point of another package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from tracker.errors import KoderzError


def find(kind: str, name: str, known: Mapping[str, str], group: str) -> Any:
    """The object registered as `name`; `known` maps names to `module:attribute`.

    Only where it isn't there, the entry points of `group` are looked through. Raises KoderzError, naming
    what there is, where nobody knows it.
    """
    if name in known:
        module, _, attribute = known[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    from importlib.metadata import entry_points  # which takes 15 ms

    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            raise KoderzError(f"{kind} {name!r}: {entry.value} can't be loaded: {error}") from error
    raise KoderzError(f"there is no {kind} {name!r}" + (f"; choose from {', '.join(known)}" if known else ""))
