"""A benchmark run as an MLflow run: curves, figures, a table and files.

Metrics are named `<measure>/<arm>`, so that MLflow draws the arms of one measure beside each other. Rates are
fractions from 0 to 1, like those of `mlflow.genai.evaluate`; costs are US dollars, times seconds.
What concerns the run and not the quality of answers, faults included, is under `run/`.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tracker.index import ENDS, load_index, read_records
from tracker.journal import NAME
from tracker.messages import text_of
from tracker.parts import completes
from tracker.records import Attempt, Call, Experiment, Fault, Plan, encode
from tracker.sinks.json import encode_summary
from tracker.sinks.mlflow.page import Page, Point, as_param, milliseconds, points, scores_of, source_tags
from tracker.stories import Stories
from tracker.summary import Arm, Summary

TABLE = "results.json"
_CURVE_POINTS = 1000  # of one curve, about; a chart shows no more
_PROMPTS_FROM = 20  # experiments that are looked through for prompts
_ARTIFACTS_FROM = 20  # experiments that are looked through for artifacts before it is said that there are none
_STATUS = {
    "complete": "FINISHED",
    "incomplete": "FAILED",
    "failed": "FAILED",
    "interrupted": "KILLED",
    "stopped": "KILLED",
}


def first_page(plan: Plan, name: str) -> Page:
    """The run as it is before anything has ended."""
    tags = {
        **_user_tags(plan),
        **source_tags(plan),
        **identity(plan, name),
        "mlflow.runType": "genai_evaluate",
        "koderz.kind": "run",
        "koderz.mode": plan.mode,
        "koderz.model": str(plan.config.get("local_model") or ""),
    }
    environment = {f"environment.{key}": value for key, value in plan.environment.items() if value is not None}
    given = {"model": plan.config.get("local_model"), **plan.config, **environment}
    params = {key: as_param(value) for key, value in given.items() if value is not None}
    return Page(name=name, start=milliseconds(plan.time), params=params, tags=tags)


def identity(plan: Plan, name: str) -> dict[str, str]:
    """The tag by which the MLflow run is found again."""
    return {"koderz.experiment_id" if plan.run_id is None else "benchmark_run_id": name}


def _user_tags(plan: Plan) -> dict[str, str]:
    """What `--tag` gave: `K=V` as it is, a single word as `WORD=true`."""
    pairs = (str(tag).partition("=") for tag in plan.config.get("tags") or ())
    return {key.strip(): value.strip() if equals else "true" for key, equals, value in pairs if key.strip()}


def latest_page(plan: Plan, name: str, summary: Summary, *, is_worked_on: bool) -> Page:
    """The run with its figures. Those that `curve` tells are left to it."""
    over, is_whole = summary.status != "unfinished", not completes(plan)
    tags = {
        "koderz.status": summary.status,
        "koderz.reason": summary.reason,
        "koderz.faults": str(len(summary.faults)),
        "mlflow.note.content": _note(summary, _rates(summary) if is_whole else _means(summary)),
        "mlflow.loggedArtifacts": json.dumps([{"path": TABLE, "type": "table"}]),
    }
    end = milliseconds(summary.end_time)
    return Page(
        name=name,
        start=milliseconds(plan.time),
        end=None if is_worked_on and not over else end,
        status=_STATUS.get(summary.status, "RUNNING" if is_worked_on else "KILLED"),
        tags=tags,
        points=list(_figures(summary, end, is_whole=is_whole)),
    )


def outcomes_of(folder: Path) -> Iterator[Experiment | Fault]:
    """Every end of every experiment, in the order of the journal."""
    journal = folder / NAME
    spans = [entry.span for entry in load_index(journal) if entry.code in ENDS]
    for record in read_records(journal, spans):
        if isinstance(record, Experiment | Fault):
            yield record


@dataclass(slots=True)
class _Running:
    """The results of one arm so far."""

    latest: dict[str, Experiment] = field(default_factory=dict)  # by experiment
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)
    steps: int = 0

    def take(self, outcome: Experiment | Fault) -> None:
        self.steps += 1
        if before := self.latest.pop(outcome.experiment_id, None):
            self._count(before, -1)
        if isinstance(outcome, Experiment):
            self.latest[outcome.experiment_id] = outcome
            self._count(outcome, +1)

    def figures(self) -> dict[str, float | None]:
        """The total cost, and the mean of every other measure over the experiments that have it."""
        means = {name: self.sums[name] / count for name, count in self.counts.items() if count}
        return {**means, "cost": self.sums["cost"]} if means else {}

    def _count(self, outcome: Experiment, sign: int) -> None:
        self.sums["cost"] += sign * outcome.cost
        for name, value in scores_of(outcome).items():
            self.sums[name] += sign * value
            self.counts[name] += sign


def curve(plan: Plan, outcomes: Sequence[Experiment | Fault], *, after: int = 0, whole: bool = True) -> Iterator[Point]:
    """Every arm's measures as they stood after each outcome but the first `after`.

    Points only ever get added as the journal grows, so that sending them again changes nothing. Of a large
    run only every so-manieth is told, and with `whole` the last of each arm, so that a curve ends where
    the run does. There are none where results are whole only with what others tell.
    """
    if completes(plan):
        return
    stride = max(1, plan.planned // len(plan.arms) // _CURVE_POINTS)
    last = {outcome.arm: number for number, outcome in enumerate(outcomes)} if whole else {}
    arms = {arm.name: _Running() for arm in plan.arms}
    for number, outcome in enumerate(outcomes):
        arm = arms.setdefault(outcome.arm, _Running())
        arm.take(outcome)
        if (number >= after and arm.steps % stride == 0) or last.get(outcome.arm) == number:
            named = {f"{key}/{outcome.arm}": value for key, value in arm.figures().items()}
            yield from points(named, milliseconds(outcome.time), arm.steps)


def _figures(summary: Summary, time: int, *, is_whole: bool) -> Iterator[Point]:
    """All apart from the curves; what these would tell, too, of results that aren't whole before the end."""
    for solver, arm in summary.arms.items():
        figures = ({} if is_whole else _completed_figures(arm)) | _arm_figures(arm)
        yield from points({f"{key}/{solver}": value for key, value in figures.items()}, time)
    compared = asdict(summary.comparison) if summary.comparison else {}
    if (rate := compared.pop("success_rate_improvement", None)) is not None:
        yield from points({"comparison/passed_difference": rate / 100}, time)
    numbers = {f"comparison/{key}": value for key, value in compared.items() if isinstance(value, int | float)}
    yield from points(numbers, time)
    whole = {
        "run/planned": summary.planned,
        "run/faults": len(summary.faults),
        "run/duration_seconds": summary.duration_seconds,
        "run/paid": summary.paid["total"],
    }
    yield from points(whole, time)


def _arm_figures(arm: Arm) -> dict[str, float | None]:
    figures = arm.summary
    low, high = (bound / 100 for bound in figures.success_rate_interval or (math.nan, math.nan))
    names = "successes avg_cost cost_per_success baseline_cost tokens_in tokens_out avg_latency"
    return {
        "problems": figures.total_problems,
        **{name: getattr(figures, name) for name in names.split()},
        "passed_low": low,
        "passed_high": high,
        **{name.replace("@", "_at_"): value for name, value in figures.pass_at_k.items()},
        **dict(_added(arm.more)),
    }


def _added(more: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures with intervals over tasks that parts add to an arm: `tasks/speedup_base`, and where it ends."""
    for name, found in more.items():
        if isinstance(found, Mapping) and isinstance(found.get("value"), int | float):
            yield f"tasks/{name}", found["value"]
            for end, bound in zip(("low", "high"), found.get("interval") or (), strict=False):
                yield f"tasks/{name}_{end}", bound
        elif isinstance(found, Mapping):
            yield from _added({f"{name}/{key}": each for key, each in found.items()})


def _completed_figures(arm: Arm) -> dict[str, float | None]:
    figures, rate = arm.summary, arm.summary.success_rate
    means = {name: mean.mean for name, mean in figures.measures.items()}
    return {"passed": None if rate is None else rate / 100, "cost": figures.total_cost, **means}


def _note(summary: Summary, table: Iterable[str]) -> str:
    """The run's description, in Markdown."""
    lines = [*(f"**{caution}.**\n" for caution in summary.cautions), *table]
    if summary.faults:
        lines.append(f"\n{len(summary.faults)} of {summary.planned} experiments ended in a fault, which is no verdict.")
    lines.append(f"\nStatus: {summary.status}{f' ({summary.reason})' if summary.reason else ''}")
    return "\n".join(lines)


def _means(summary: Summary) -> Iterator[str]:
    """The means of what each arm is measured by."""
    measures = {name: arm.summary.measures for name, arm in summary.arms.items()}
    names = [*dict.fromkeys(name for found in measures.values() for name in found)]
    yield f"| | {' | '.join((*names, 'cost'))} |"
    yield "|---" * (len(names) + 2) + "|"
    for arm, found in measures.items():
        cells = [f"{found[name].mean:.4g}" if name in found else "" for name in names]
        yield f"| {arm} | {' | '.join(cells)} | ${summary.arms[arm].summary.total_cost:.4f} |"


def _rates(summary: Summary) -> Iterator[str]:
    """How often each arm passed."""
    yield "| | success rate | 95 % Wilson interval | cost | avg iterations |"
    yield "|---|---|---|---|---|"
    for solver, arm in summary.arms.items():
        figures = arm.summary
        rate = interval = iterations = ""
        if figures.success_rate is not None and figures.success_rate_interval:
            rate = f"{figures.success_rate:.1f} % "
            interval = "{:.1f} to {:.1f}".format(*figures.success_rate_interval)
            iterations = f"{figures.avg_iterations:.1f}"
        passed = f"({figures.successes}/{figures.total_problems})"
        yield f"| {solver} | {rate}{passed} | {interval} | ${figures.total_cost:.4f} | {iterations} |"


def write_files(folder: Path, summary: Summary, stories: Stories, into: Path) -> None:
    """What goes along with the run: summary, plan, prompts, table, and the report once it is there."""
    with (into / "summary.json").open("wb") as file:
        file.writelines(encode_summary(summary))
    plan = orjson.loads(encode(stories.plan))
    (into / "plan.json").write_bytes(orjson.dumps(plan, option=orjson.OPT_INDENT_2))
    (into / TABLE).write_bytes(orjson.dumps(_table(summary)))
    _write_prompts(summary, stories, into / "prompts")
    _write_artifacts(summary, stories, into / "experiments")
    for report in (folder.with_suffix(".html"), folder / "report.html"):
        if report.exists():
            (into / "report.html").write_bytes(report.read_bytes())
            break


_COLUMNS = (
    "problem_id", "solver", "sample", "success", "verdict", "cause", "iterations", "cost", "tokens_in", "tokens_out",
    "latency", "experiment_id",
)  # fmt: skip


def _table(summary: Summary) -> dict[str, Any]:
    """Every experiment, as MLflow shows tables: it groups by the first column and compares by the second."""
    several = len({result.sample for result in summary.results}) > 1
    rows = [_row({name: getattr(result, name) for name in _COLUMNS}, several=several) for result in summary.results]
    faults = [{**fault, "verdict": "fault", "cause": fault["reason"]} for fault in summary.faults]
    rows += [_row(fault, several=several) for fault in faults]
    return {"columns": ["experiment", "outcome", *_COLUMNS], "data": rows}


def _row(known: dict[str, Any], *, several: bool) -> list[Any]:
    sample = f" · sample {known['sample']}" if several else ""
    cause = f" ({known['cause']})" if known["cause"] else ""
    attempts = f" after {known['iterations']} attempts" if (known.get("iterations") or 0) > 1 else ""
    name = f"{known['problem_id']} · {known['solver']}{sample}"
    return [name, f"{known['verdict']}{cause}{attempts}", *(known.get(column) for column in _COLUMNS)]


def _write_prompts(summary: Summary, stories: Stories, into: Path) -> None:
    """One conversation of each purpose and solver, as it was sent."""
    into.mkdir()
    named: dict[str, Sequence[dict[str, Any]]] = {}
    for result in summary.results[:_PROMPTS_FROM]:
        for call in stories.of(result.experiment_id):
            if isinstance(call, Call):
                named.setdefault(f"{result.solver}-{call.purpose}", call.messages)
    for name, messages in named.items():
        text = "\n\n".join(f"# {message['role']}\n\n{text_of(message)}" for message in messages)
        (into / f"{name.replace('/', '_')}.md").write_text(text, encoding="utf-8", errors="replace")


def _write_artifacts(summary: Summary, stories: Stories, into: Path) -> None:
    """What the last attempt of each experiment left as texts, such as a diff or a log, in a folder by its id."""
    for number, result in enumerate(summary.results):
        attempts = [record for record in stories.of(result.experiment_id) if isinstance(record, Attempt)]
        texts = {name: text for name, text in (attempts[-1].artifacts if attempts else {}).items() if type(text) is str}
        for name, text in texts.items():
            place = into / result.experiment_id / name.replace("/", "_")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", errors="replace")
        if number == _ARTIFACTS_FROM and not into.exists():
            return  # its suite leaves none
