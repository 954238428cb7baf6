"""Parts of a summary that its suite or a solver owns, found by the names in its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tracker.errors import KoderzError
from tracker.registry import find

if TYPE_CHECKING:
    from pathlib import Path

    from tracker.records import Plan, Record
    from tracker.summary import Result

GROUP = "koderz.summaries"
"""The entry points of other packages' parts: instances of `Part`. The name of one is its key in the summary."""

_T = TypeVar("_T")

KNOWN = {"calibration": "tracker.calibration:CALIBRATION"}


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


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A value of a curve at a step."""

    name: str
    step: int
    value: float
    time: str  # ISO 8601


@dataclass(frozen=True, slots=True)
class Data:
    """Rows that a run worked on."""

    name: str
    digest: str
    rows: int
    context: str  # what they were for, such as `test`


class Part:
    """A key of a run's summary that a suite or a solver owns, and what its experiments tell elsewhere.

    Subclasses override what they have to tell.
    """

    completes: bool = False
    """Whether results are whole only with what `completed` adds, which may come of experiments that end later."""

    scores: Sequence[str] = ()
    """The metrics among those of `completed` that are scores, as the measures are that the suite declares."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> Mapping[str, Any]:  # noqa: ARG002
        """What stands under its key, if anything: what JSON can hold, of the plan and the results of each arm alone."""
        return {}

    def of_arm(self, plan: Plan, arm: str, results: Sequence[Result]) -> Mapping[str, Any]:  # noqa: ARG002
        """What the summary of an arm has besides, which JSON can hold."""
        return {}

    def completed(self, plan: Plan, folder: Path, results: Sequence[Result]) -> Sequence[Result]:  # noqa: ARG002
        """The results with what only other experiments of the run tell, such as the score of a baseline."""
        return results

    def excerpt(self, story: Sequence[Record]) -> str:  # noqa: ARG002
        """What the memory of an experiment, given its records, tells besides; empty for nothing."""
        return ""

    def steps(self, story: Sequence[Record]) -> Iterable[Step]:  # noqa: ARG002
        """What the trace of an experiment, given its records, shows in place of its calls."""
        return ()

    def curve(self, plan: Plan, story: Sequence[Record]) -> Iterable[CurvePoint]:  # noqa: ARG002
        """How an experiment, given its records, went along."""
        return ()

    def data(self, plan: Plan) -> Iterable[Data]:  # noqa: ARG002
        """The rows that the plan's tasks consist of."""
        return ()

    def prompts(self, plan: Plan, folder: Path) -> Iterable[FoundPrompt]:  # noqa: ARG002
        """The prompts that the run has found, once what they are chosen from has ended."""
        return ()


@cache  # looking through entry points takes 15 ms
def part_of(name: str) -> Part:
    """The part of that name. Raises KoderzError where nobody has it."""
    return cast("Part", find("part of a summary", name, KNOWN, GROUP))


def parts_of(plan: Plan, results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """What the parts that a plan names make of a run; of one that isn't installed here, or fails, why."""
    found: dict[str, Any] = {}
    for name in plan.parts:
        try:
            found[name] = part_of(name).summary(plan, results)
        except KoderzError as error:
            found[name] = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 it may be anybody's code, and the summary is worth more
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return {name: value for name, value in found.items() if value}


def completed(plan: Plan, folder: Path, results: Sequence[Result]) -> Sequence[Result]:
    """The results as the parts that a plan names complete them."""
    for name in plan.parts:
        with suppress(Exception):  # `parts_of` says what is wrong with a part
            results = part_of(name).completed(plan, folder, results)
    return results


def completes(plan: Plan) -> bool:
    """Whether a part that the plan names completes results."""
    return any(from_parts(plan, lambda part: [part.completes]))


def from_parts(plan: Plan, ask: Callable[[Part], Iterable[_T]]) -> list[_T]:
    """What the parts that a plan names say, one after the other.

    Nothing of one that isn't there, or fails: `parts_of` says why.
    """
    found: list[_T] = []
    for name in plan.parts:
        with suppress(Exception):
            found += [*ask(part_of(name))]
    return found
