"""The content of an MLflow run, made without MLflow: params, tags and metrics, also for an experiment's nested run."""

from __future__ import annotations

import getpass
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from koderz_tracker.parts import completes, from_parts
from koderz_tracker.records import Attempt, Call, Experiment, Fault, Plan, Record, encode

_CHILD_PARAMS = ("suite", "temperature", "max_iterations", "feedback", "seed")
_MILLISECOND = 1000


_UNNAMEABLE = re.compile(r"[^/\w.\- :]")  # what MLflow has no place for in a metric's name

# PostgreSQL takes no U+0000 in a text, and UTF-8 no half of a character
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_ESCAPED_NULL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
CLEANED = "U+FFFD stands for each U+0000, which databases can't hold; the journal has the text"
"""The tag `koderz.cleaned` of what was sent so."""


def clean(text: str) -> str:
    """The text with U+FFFD in place of what a store can't hold."""
    return _UNSTORABLE.sub("\ufffd", text)


def cleaned(value: Any) -> Any:
    """A value of JSON with all its texts clean."""
    match value:
        case str():
            return clean(value)
        case Mapping():
            return {cleaned(key): cleaned(each) for key, each in value.items()}
        case list() | tuple():
            return [cleaned(each) for each in value]
    return value


def cleaned_tag(*records: Record) -> dict[str, str]:
    """The tag that says so, if a text of these records is sent clean."""
    is_cleaned = any(
        b"\\u0000" in (data := encode(each)) and _ESCAPED_NULL.search(data) for each in records
    )
    return {"koderz.cleaned": CLEANED} if is_cleaned else {}


class Point(NamedTuple):
    """One value of a metric."""

    key: str
    value: float
    time: int  # milliseconds since 1970
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of one run in MLflow."""

    name: str
    start: int  # milliseconds since 1970
    end: int | None = None
    status: str = "RUNNING"
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()


def milliseconds(time: str) -> int:
    """A journal's local time as milliseconds since 1970."""
    return int(datetime.fromisoformat(time).timestamp() * _MILLISECOND)


def child_page(
    plan: Plan, story: Sequence[Record], outcome: Experiment | Fault, parent: str
) -> Page:
    """The nested run of one experiment."""
    if isinstance(outcome, Fault):
        child_note = f"**Fault**, which says nothing about the model: {outcome.reason}"
    else:
        how = "passed" if outcome.success else f"did not pass ({outcome.cause or outcome.verdict})"
        note = f" {outcome.note}" if outcome.note else ""
        child_note = (
            f"{outcome.problem_id} {how} after "
            f"{outcome.iterations} attempt{'s' * (outcome.iterations != 1)}.{note}"
        )
    tags = {
        **source_tags(plan),
        **cleaned_tag(*story),
        "koderz.simulated": str(plan.is_simulated(outcome.arm)).lower(),
        "koderz.kind": "experiment",
        "koderz.experiment_id": outcome.experiment_id,
        "koderz.solver": outcome.solver,
        "koderz.arm": outcome.arm,
        "koderz.sample": str(outcome.sample),
        "koderz.outcome": word_of(outcome),
        "koderz.fault": outcome.reason if isinstance(outcome, Fault) else "",
        "koderz.cause": outcome.cause,
        "problem_id": outcome.problem_id,
        "mlflow.parentRunId": parent,
        "mlflow.note.content": child_note,
    }
    params = {
        "model": plan.config.get("local_model"),
        "mode": plan.mode,
        "solver": outcome.solver,
        "problem": outcome.problem_id,
        "sample": outcome.sample if plan.samples > 1 else None,
        **{name: plan.config.get(name) for name in _CHILD_PARAMS},
    }
    return Page(
        name=child_name(plan, outcome),
        start=begun(story[0]),
        end=milliseconds(outcome.time),
        status="FAILED" if isinstance(outcome, Fault) else "FINISHED",
        params={name: as_param(value) for name, value in params.items() if value is not None},
        tags=tags,
        points=[*_attempt_points(story), *_outcome_points(plan, outcome)],
    )


def child_name(plan: Plan, outcome: Experiment | Fault) -> str:
    """`HumanEval/3 · iterative`, with the sample where there are several."""
    sample = f" · sample {outcome.sample}" if plan.samples > 1 else ""
    return f"{outcome.problem_id} · {outcome.arm}{sample}"


def word_of(outcome: Experiment | Fault) -> str:
    """The verdict, or `fault`."""
    return "fault" if isinstance(outcome, Fault) else outcome.verdict


def scores_of(plan: Plan, outcome: Experiment) -> dict[str, float]:
    """The scores of an experiment: `passed` (0 or 1), `score`, and the metrics that its suite declares as measures.

    `passed` is left out where nothing passes, or others tell what does (`tracker.parts.completes`). Where a suite
    declares nothing, all metrics of what it grades are scores. Costs, tokens and counts of attempts are none.
    """
    metrics = outcome.metrics or {}
    declared = {measure.name for measure in plan.measures}
    if declared:
        metrics = {name: value for name, value in metrics.items() if name in declared}
    elif outcome.score is None:
        metrics = {}
    graded = metrics if outcome.score is None else {"score": outcome.score, **metrics}
    finite = {name: value for name, value in graded.items() if math.isfinite(value)}
    return (
        finite
        if completes(plan) or not passes(plan)
        else {"passed": float(outcome.success), **finite}
    )


def passes(plan: Plan) -> bool:
    """Whether experiments of the plan pass or fail; true unless its suite declares otherwise."""
    return plan.headline is None or bool(plan.headline.passed)


def has_several_arms(plan: Plan) -> bool:
    """Whether each arm has an evaluation run of its own below the run's. A single arm shares the run itself."""
    return len(plan.arms) > 1


def begun(record: Record) -> int:
    """When the recorded action began, as far as known; for a call, when the reply was requested."""
    waited = record.latency if isinstance(record, Call) else 0.0
    return milliseconds(record.time) - int(waited * _MILLISECOND)


def source_tags(plan: Plan) -> dict[str, str]:
    """The tags for user, code and version, named as by MLflow's own clients."""
    return {
        "benchmark_run_id": plan.run_id or "",
        "koderz.simulated": str(plan.simulated).lower(),
        **({"koderz.generated": plan.generated} if plan.generated else {}),
        "koderz.version": str(plan.environment.get("koderz", "")),
        "mlflow.source.name": "koderz benchmark" if plan.run_id else "koderz run",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": plan.environment.get("git_commit") or "",
        "mlflow.user": _user(),
    }


def as_param(value: Any) -> str:
    """A setting as text for people."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return orjson.dumps(value).decode()


def _outcome_points(plan: Plan, outcome: Experiment | Fault) -> Iterator[Point]:
    figures: dict[str, float | None] = {"cost": outcome.cost}
    if isinstance(outcome, Experiment):
        names = ("calls", "cost", "tokens_in", "tokens_out", "latency", "duration_seconds")
        metrics = {f"metric/{name}": value for name, value in (outcome.metrics or {}).items()}
        own = {} if completes(plan) else {"iterations": outcome.iterations}
        figures = {
            **scores_of(plan, outcome),
            **own,
            **{name: getattr(outcome, name) for name in names},
            **metrics,
        }
    yield from points(figures, milliseconds(outcome.time))


def points(figures: Mapping[str, float | None], time: int, step: int = 0) -> Iterator[Point]:
    """A metric point for each figure that is a number."""
    for key, value in figures.items():
        if value is not None and math.isfinite(value):
            yield Point(_UNNAMEABLE.sub("-", key), float(value), time, step)


def curve_points(plan: Plan, story: Sequence[Record]) -> Iterator[Point]:
    """The course of an experiment, from the parts that its suite adds to runs."""
    for each in from_parts(plan, lambda part: part.curve(plan, story)):
        yield from points({each.name: each.value}, milliseconds(each.time), each.step)


def _attempt_points(story: Sequence[Record]) -> Iterator[Point]:
    """For each attempt: whether it passed, and the cost since the one before."""
    paid = 0.0
    for record in story:
        if isinstance(record, Call):
            paid += record.cost
        elif isinstance(record, Attempt):
            figures = {"attempt/passed": float(record.passed), "attempt/cost": paid}
            yield from points(figures, milliseconds(record.time), record.number)
            paid = 0.0


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "unknown"
