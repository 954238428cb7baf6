"""What differs between two runs' settings or environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koderz.settings.schema import OF_SINKS

# Tasks are matched one by one; the others change no result.
_OF_NO_MATTER = frozenset({"problems", "results", "grace", *OF_SINKS})


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each name with its two values where they are not the same; None for one that is missing. Nested by dots."""
    flat_a, flat_b = _flat(a), _flat(b)
    return {
        name: (flat_a.get(name), flat_b.get(name))
        for name in dict.fromkeys([*flat_a, *flat_b])
        if flat_a.get(name) != flat_b.get(name)
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif prefix or name not in _OF_NO_MATTER:
            found[f"{prefix}{name}"] = value
    return found
