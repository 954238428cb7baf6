"""Parts of a summary that a suite or a solver owns; the plan names them. One is for all: `calibration`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from koderz_tracker.errors import KoderzError
from koderz_tracker.registry import Extensible, find

if TYPE_CHECKING:
    from pathlib import Path

    from koderz_tracker.records import Fault, Plan, Record
    from koderz_tracker.results import Result


_T = TypeVar("_T")

KNOWN = {"calibration": "koderz_tracker.parts:CALIBRATION"}


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
    """A prompt that a run has found, as entered into a registry of prompts."""

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
    """Rows of a dataset that a run worked on."""

    name: str
    digest: str
    rows: int
    context: str  # what they were for, such as `test`


class Part(Extensible):
    """A key of a run's summary that a suite or a solver owns, and its additions to traces, memories and curves.

    Subclasses override what they have to tell.
    """

    completes: bool = False
    """Whether results are complete only after `completed`, which may need experiments that end later."""

    scores: Sequence[str] = ()
    """Metrics added by `completed` that are scores, as the suite's declared measures are."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> Mapping[str, Any]:  # noqa: ARG002
        """This key's value in the summary, as JSON, from the plan and each arm's results; empty to leave it out."""
        return {}

    def with_faults(
        self,
        plan: Plan,  # noqa: ARG002
        found: Mapping[str, Any],
        results: Mapping[str, Sequence[Result]],  # noqa: ARG002
        faults: Sequence[Fault],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """The value that `summary` found, with figures on the experiments that ended in faults."""
        return found

    def of_apart(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> Mapping[str, Any]:  # noqa: ARG002
        """This key's value, or more of it, from each arm's results on tasks that stand apart from all figures."""
        return {}

    def of_arm(self, plan: Plan, arm: str, results: Sequence[Result]) -> Mapping[str, Any]:  # noqa: ARG002
        """Keys that this part adds to the summary of one arm, as JSON."""
        return {}

    def completed(self, plan: Plan, folder: Path, results: Sequence[Result]) -> Sequence[Result]:  # noqa: ARG002
        """The results, completed with values that need other experiments of the run, such as a baseline's score."""
        return results

    def excerpt(self, story: Sequence[Record]) -> str:  # noqa: ARG002
        """Text to add to the memory of an experiment, from its records; empty to add none."""
        return ""

    def steps(self, story: Sequence[Record]) -> Iterable[Step]:  # noqa: ARG002
        """The steps that the trace of an experiment shows in place of its calls, from its records."""
        return ()

    def curve(self, plan: Plan, story: Sequence[Record]) -> Iterable[CurvePoint]:  # noqa: ARG002
        """The course of a value over an experiment, from its records."""
        return ()

    def data(self, plan: Plan) -> Iterable[Data]:  # noqa: ARG002
        """The rows of data that the plan's tasks consist of."""
        return ()

    def prompts(self, plan: Plan, folder: Path) -> Iterable[FoundPrompt]:  # noqa: ARG002
        """The prompts that the run has found, once all candidates have been judged."""
        return ()


@cache  # looking through entry points takes 15 ms
def part_of(name: str) -> Part:
    """The part with this name. Raises KoderzError if no package has it."""
    return cast("Part", find("part of a summary", name, KNOWN, "koderz.summaries"))


def parts_of(
    plan: Plan,
    results: Mapping[str, Sequence[Result]],
    faults: Sequence[Fault] = (),
    apart: Mapping[str, Sequence[Result]] | None = None,
) -> dict[str, Any]:
    """The values of all parts that a plan names; for a part that is missing or fails, its error."""
    found: dict[str, Any] = {}
    for name in plan.parts:
        try:
            part = part_of(name)
            value = part.with_faults(plan, part.summary(plan, results), results, faults)
            found[name] = {**value, **part.of_apart(plan, apart)} if apart else value
        except KoderzError as error:
            found[name] = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 it may be anybody's code, and the summary is worth more
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return {name: value for name, value in found.items() if value}


def completed(plan: Plan, folder: Path, results: Sequence[Result]) -> Sequence[Result]:
    """The results after each part of the plan has completed them."""
    for name in plan.parts:
        with suppress(Exception):  # `parts_of` says what is wrong with a part
            results = part_of(name).completed(plan, folder, results)
    return results


def completes(plan: Plan) -> bool:
    """Whether any part of the plan completes results."""
    return any(from_parts(plan, lambda part: [part.completes]))


def from_parts(plan: Plan, ask: Callable[[Part], Iterable[_T]]) -> list[_T]:
    """The answers of all parts of a plan to `ask`, one after the other.

    Nothing of one that isn't there, or fails: `parts_of` says why.
    """
    found: list[_T] = []
    for name in plan.parts:
        with suppress(Exception):
            found += [*ask(part_of(name))]
    return found


_BIN = 100  # answers


class Calibration(Part):
    """The summary's key `calibration`."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:  # noqa: ARG002
        """For each arm with stated confidences: the calibration error in points and the number of answers."""
        found: dict[str, Any] = {}
        for arm, of_arm in results.items():
            pairs = [((each.metrics or {}).get("confidence"), each.success) for each in of_arm]
            claimed = [
                (confidence, success) for confidence, success in pairs if confidence is not None
            ]
            if claimed:
                found[arm] = {
                    "error": calibration_error(claimed),
                    "answers": len(claimed),
                    "bins": "all",
                }
        return found


def calibration_error(answers: Sequence[tuple[float, bool]]) -> float:
    """The calibration error in points: root mean square of stated confidence (per cent) less the share that is right.

    After Hendrycks et al., as BrowseComp-Plus has it: by bins of 100 in order of confidence, the last one stretched to
    the end. All bins count, unlike in its own loop, which leaves out the last one and so has 0 for fewer than 200.
    """
    ranked = sorted(answers)
    starts = range(0, max(_BIN, len(ranked) - len(ranked) % _BIN), _BIN)
    total = 0.0
    for start in starts:
        members = ranked[start:] if start == starts[-1] else ranked[start : start + _BIN]
        claimed = sum(confidence for confidence, _ in members) / len(members)
        right = 100 * sum(correct for _, correct in members) / len(members)
        total += len(members) / len(ranked) * (claimed - right) ** 2
    return float(total**0.5)


CALIBRATION = Calibration()
