"""Parts of a summary that its suite or a solver owns: functions of a run's results, found by the names in its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tracker.errors import KoderzError
from tracker.registry import find

if TYPE_CHECKING:
    from pathlib import Path

    from tracker.records import Plan, Record
    from tracker.summary import Result

GROUP = "koderz.summaries"
"""The entry points of other packages' parts. The name of one is its key in the summary."""

KNOWN = {"calibration": "tracker.calibration:calibration"}

Part = Callable[["Plan", Mapping[str, Sequence["Result"]]], Mapping[str, Any]]
"""Takes the plan, and the results of each arm by its name; returns what JSON can hold. A pure function of these.

One may have an attribute `complete`, a function of the plan, the run's folder and the results: what these are with what
only other experiments tell, such as the score of a baseline. And an attribute `excerpt`, a function of the records of
an experiment: what its memory tells besides, such as the prompt that it found; empty for nothing. An
attribute `steps`, a function of the same: the Steps that its trace shows in place of its calls. And an attribute
`prompts`, a function of the plan and the run's folder: the FoundPrompts of what has come to its end.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of an experiment. Times are ISO 8601."""

    name: str
    begun: str
    ended: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FoundPrompt:
    """A prompt that a run has found, for a registry of prompts."""

    name: str
    messages: Sequence[Mapping[str, str]]  # role and content, with `{{variable}}`
    tags: Mapping[str, str]


def part_of(name: str) -> Part:
    """The part of that name. Raises KoderzError where nobody has it."""
    return cast("Part", find("part of a summary", name, KNOWN, GROUP))


def parts_of(plan: Plan, results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """What the parts that a plan names come to. One that isn't installed, or fails, says so in its own place."""
    found: dict[str, Any] = {}
    for name in plan.parts:
        try:
            found[name] = part_of(name)(plan, results)
        except KoderzError as error:
            found[name] = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 it may be anybody's code, and the summary is worth more
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found


def completed(plan: Plan, folder: Path, results: list[Result]) -> list[Result]:
    """The results as the parts that a plan names complete them; as they are where one isn't installed, or fails."""
    for name in plan.parts:
        with suppress(Exception):  # `parts_of` tells of what isn't there, and a summary is worth more than the rest
            results = [*getattr(part_of(name), "complete", _as_they_are)(plan, folder, results)]
    return results


def completes(plan: Plan) -> bool:
    """Whether a part that the plan names has something to complete results by."""
    return any(_has(name, "complete") for name in plan.parts)


def excerpts(plan: Plan, story: Sequence[Record]) -> Iterator[str]:
    """What the parts that a plan names tell of an experiment; nothing of one that isn't installed, or fails."""
    for name in plan.parts:
        with suppress(Exception):
            if told := getattr(part_of(name), "excerpt", _nothing)(story):
                yield told


def steps_of(plan: Plan, story: Sequence[Record]) -> list[Step]:
    """The steps that a part which the plan names makes of an experiment; none of one that isn't there, or fails."""
    for name in plan.parts:
        with suppress(Exception):
            if found := [*getattr(part_of(name), "steps", _no_steps)(story)]:
                return found
    return []


def found_prompts(plan: Plan, folder: Path) -> list[FoundPrompt]:
    """The prompts that the parts which a plan names have found; none of one that isn't there, or fails."""
    found: list[FoundPrompt] = []
    for name in plan.parts:
        with suppress(Exception):
            found += getattr(part_of(name), "prompts", _no_prompts)(plan, folder)
    return found


def _no_steps(_story: Sequence[Record]) -> Sequence[Step]:
    return ()


def _no_prompts(_plan: Plan, _folder: Path) -> Sequence[FoundPrompt]:
    return ()


def _has(name: str, attribute: str) -> bool:
    with suppress(Exception):
        return hasattr(part_of(name), attribute)
    return False


def _nothing(_story: Sequence[Record]) -> str:
    return ""


def _as_they_are(_plan: Plan, _folder: Path, results: list[Result]) -> list[Result]:
    return results
