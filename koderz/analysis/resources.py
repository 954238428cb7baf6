"""Resources that experiments had: arms are compared only where those of the same task were the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from koderz.analysis.pairs import Side
from koderz.errors import KoderzError

HELD = ("cpus", "memory_mb", "storage_mb", "network", "agent_seconds", "verifier_seconds")
"""The resources that are compared, among those of `Result.resources`."""

UNEQUAL = "unequal resources"


def unequal_resources(sides: Sequence[Side]) -> list[str]:
    """A phrase for each resource of which two sides had different amounts on a task, with the first such task.

    Nothing for results on whose resources nothing is recorded.
    """
    held = [(side, _held(side)) for side in sides]
    found: dict[str, str] = {}
    for (a, of_a), (b, of_b) in combinations(held, 2):
        for name, phrase in _differing(a.label, of_a, b.label, of_b):
            found.setdefault(name, phrase)
    return [*found.values()]


def require_equal_resources(*compared: Sequence[Side]) -> None:
    """Raises KoderzError, which names the resources, if sides that are compared had different ones on a task."""
    if differing := next(filter(None, map(unequal_resources, compared)), []):
        names = ", ".join(phrase.partition(" ")[0] for phrase in differing)
        raise KoderzError(f"unequal resources: {names} ({differing[0]}); --unequal-resources compares all the same")


def _held(side: Side) -> dict[str, list[Mapping[str, Any]]]:
    """The resources of each task's results, as far as they are recorded."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in side.results:
        if result.resources:
            found.setdefault(result.problem_id, []).append(result.resources)
    return found


def _differing(
    a: str, of_a: Mapping[str, Sequence[Mapping[str, Any]]], b: str, of_b: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, str]]:
    for name in HELD:
        for task in of_a:
            left, right = (sorted({_message(each.get(name)) for each in own.get(task, ())}) for own in (of_a, of_b))
            if left and right and left != right:
                yield name, f"{name} of {task} is {' and '.join(left)} in {a}, {' and '.join(right)} in {b}"
                break


def _message(value: Any) -> str:
    if value is None:
        return "unlimited"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
