"""A benchmark run as MLflow runs: one for each arm with its scores, below one of the run itself with its files.

An arm's run is what `mlflow.genai.evaluate` makes, so that MLflow sets arms against each other: its metrics are means
of scores, named as there (`passed/mean`, from 0 to 1), and beside them cost, tokens, latency and iterations. A run of
one arm is that arm's. All figures stand in tags and in `figures.json`; faults are in no score.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from koderz_tracker import records
from koderz_tracker.errors import cause_counts
from koderz_tracker.index import ENDS, load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.outline import stopped_early, went_on
from koderz_tracker.parts import completes, from_parts
from koderz_tracker.records import Experiment, Fault, Plan
from koderz_tracker.sinks.mlflow.page import (
    Page,
    Point,
    as_param,
    cleaned_tag,
    has_several_arms,
    milliseconds,
    passes,
    points,
    scores_of,
    source_tags,
)
from koderz_tracker.summary import ArmResults, Figures, Summary

LAYOUT = "arms"
"""The tag `koderz.layout` of runs with this layout; runs of earlier versions have none."""

TABLE, FIGURES = "results.json", "figures.json"
_AVERAGES = {"arithmetic": "mean", "geometric": "geometric_mean", "median": "median"}
_EVALUATION = {"mlflow.runType": "genai_evaluate"}
_ARM_PARAMS = ("suite", "temperature", "seed", "samples")
# of an arm's run, unless it has more scores; each is a column of MLflow's table of runs
_MOST_METRICS = 8
_NAMED_MODELS = 2  # in the name of a run
_CURVE_POINTS = 1000  # of one curve, about; a chart shows no more
_STATUS = {
    "complete": "FINISHED",
    "incomplete": "FAILED",
    "failed": "FAILED",
    "interrupted": "KILLED",
    "stopped": "KILLED",
}


def first_page(plan: Plan, name: str) -> Page:
    """The run before anything has ended."""
    tags = {
        **_user_tags(plan),
        **source_tags(plan),
        **identity(plan, name),
        **cleaned_tag(plan),
        **({} if has_several_arms(plan) else _EVALUATION),
        "koderz.kind": "run",
        "koderz.layout": LAYOUT,
        "koderz.mode": plan.mode,
        "koderz.model": str(plan.config.get("local_model") or ""),
    }
    environment = {
        f"environment.{key}": value for key, value in plan.environment.items() if value is not None
    }
    given = {"model": plan.config.get("local_model"), **plan.config, **environment}
    params = {key: as_param(value) for key, value in given.items() if value is not None}
    return Page(name=run_name(plan, name), start=milliseconds(plan.time), params=params, tags=tags)


def first_arm_page(plan: Plan, name: str, arm: records.Arm, parent: str) -> Page:
    """The evaluation run of an arm before anything has ended, below MLflow's run `parent`."""
    tags = {
        **_user_tags(plan),
        **source_tags(plan),
        **_EVALUATION,
        "koderz.simulated": str(plan.is_simulated(arm.name)).lower(),
        "koderz.kind": "arm",
        "koderz.arm": arm.name,
        "koderz.solver": arm.solver,
        "koderz.mode": plan.mode,
        "koderz.model": plan.model_of(arm.name),
        "mlflow.parentRunId": parent,
    }
    roles = {f"role.{role}": model for role, model in arm.models.items() if role != "main"}
    given = {
        **{name: plan.config[name] for name in _ARM_PARAMS if plan.config.get(name) is not None},
        "model": plan.model_of(arm.name),
        "arm": arm.name,
        "solver": arm.solver,
        **roles,
        **arm.parameters,
    }
    params = {key: as_param(value) for key, value in given.items() if value is not None}
    return Page(
        name=run_name(plan, name, arm), start=milliseconds(plan.time), params=params, tags=tags
    )


def run_name(plan: Plan, name: str, arm: records.Arm | None = None) -> str:
    """`MODEL · ARM · RUN` for an arm, `MODEL, MODEL · MODE · RUN` for a run of several; models without their provider.

    The model comes first, since MLflow's lists cut names at their end.
    """
    arms = [arm] if arm else plan.arms
    models = dict.fromkeys(plan.model_of(each.name).rpartition("/")[2] for each in arms)
    named = [model for model in models if model]
    told = ", ".join(named[:_NAMED_MODELS]) + (
        f" and {more} more" if (more := len(named) - _NAMED_MODELS) > 0 else ""
    )
    way = arms[0].title if len(arms) == 1 else plan.mode
    return " · ".join(filter(None, (told, way, name)))


def identity(plan: Plan, name: str) -> dict[str, str]:
    """The tag by which the MLflow run can be found again."""
    return {"koderz.experiment_id" if plan.run_id is None else "benchmark_run_id": name}


def _user_tags(plan: Plan) -> dict[str, str]:
    """The tags given by `--tag`: `K=V` as it is, a single word as `WORD=true`."""
    pairs = (str(tag).partition("=") for tag in plan.config.get("tags") or ())
    return {
        key.strip(): value.strip() if equals else "true"
        for key, equals, value in pairs
        if key.strip()
    }


def latest_page(plan: Plan, name: str, summary: Summary, *, is_worked_on: bool) -> Page:
    """The run at present, with its scores if it has one arm; scores that have a `curve` are left out."""
    tags = {
        "koderz.status": summary.status,
        "koderz.reason": summary.reason,
        "koderz.fault_causes": cause_counts(fault["cause"] for fault in summary.faults),
        **_as_tags(_run_figures(summary)),
        "mlflow.note.content": _note(plan, summary, list(summary.arms)),
        "mlflow.loggedArtifacts": json.dumps([{"path": TABLE, "type": "table"}]),
    }
    page = _latest(plan, run_name(plan, name), summary, is_worked_on=is_worked_on)
    if has_several_arms(plan):
        return replace(page, tags=tags)
    (arm,) = summary.arms.values()
    points = _arm_points(plan, arm, milliseconds(summary.end_time))
    return replace(page, tags=tags | _as_tags(_arm_figures(arm)), points=points)


def latest_arm_page(
    plan: Plan, name: str, summary: Summary, arm: str, *, is_worked_on: bool
) -> Page:
    """An arm's run at present, except for the scores that have a `curve`."""
    own = summary.arms[arm]
    tags = {
        "koderz.status": summary.status,
        "koderz.faults": str(sum(fault["arm"] == arm for fault in summary.faults)),
        "koderz.fault_causes": cause_counts(
            fault["cause"] for fault in summary.faults if fault["arm"] == arm
        ),
        **_as_tags(_arm_figures(own)),
        "mlflow.note.content": _note(plan, summary, [arm]),
        "mlflow.loggedArtifacts": json.dumps([{"path": TABLE, "type": "table"}]),
    }
    page = _latest(plan, run_name(plan, name, plan.arm(arm)), summary, is_worked_on=is_worked_on)
    return replace(page, tags=tags, points=_arm_points(plan, own, milliseconds(summary.end_time)))


def _latest(plan: Plan, name: str, summary: Summary, *, is_worked_on: bool) -> Page:
    is_over = summary.status != "unfinished"
    return Page(
        name=name,
        start=milliseconds(plan.time),
        end=None if is_worked_on and not is_over else milliseconds(summary.end_time),
        status=_STATUS.get(summary.status, "RUNNING" if is_worked_on else "KILLED"),
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

    scores: Callable[[Experiment], Mapping[str, float]]
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

    def means(self) -> dict[str, float | None]:
        """The mean of each score over the experiments that have it."""
        return {
            f"{name}/mean": self.sums[name] / count for name, count in self.counts.items() if count
        }

    def _count(self, outcome: Experiment, sign: int) -> None:
        for name, value in self.scores(outcome).items():
            self.sums[name] += sign * value
            self.counts[name] += sign


def curve(
    plan: Plan, outcomes: Sequence[Experiment | Fault], *, after: int = 0, whole: bool = True
) -> Iterator[tuple[str, Point]]:
    """Each arm's mean scores after each outcome except the first `after`, with the arm's name.

    Points only ever get added as the journal grows, so that sending them again changes nothing. Of a large
    run only every so-manieth is told, and with `whole` the last of each arm, so that a curve ends where
    the run does. There are none where results are whole only with what others tell, nor of measures whose averages are
    taken otherwise.
    """
    if completes(plan):
        return
    others = {measure.name for measure in plan.measures if measure.averaged != "arithmetic"}

    def scores(outcome: Experiment) -> dict[str, float]:
        return {
            name: value for name, value in scores_of(plan, outcome).items() if name not in others
        }

    stride = max(1, plan.planned // len(plan.arms) // _CURVE_POINTS)
    outcomes = [outcome for outcome in outcomes if outcome.problem_id not in plan.apart]
    last = {outcome.arm: number for number, outcome in enumerate(outcomes)} if whole else {}
    arms = {arm.name: _Running(scores) for arm in plan.arms}
    for number, outcome in enumerate(outcomes):
        arm = arms.setdefault(outcome.arm, _Running(scores))
        arm.take(outcome)
        if (number >= after and arm.steps % stride == 0) or last.get(outcome.arm) == number:
            for point in points(arm.means(), milliseconds(outcome.time), arm.steps):
                yield outcome.arm, point


def _arm_points(plan: Plan, arm: ArmResults, time: int) -> Sequence[Point]:
    """The scores without a curve, then cost, tokens, latency and iterations as far as there is a column for them."""
    figures, points_of_scores = arm.summary, _score_points(plan, arm, time)
    scores = {point.key.rpartition("/")[0] for point in points_of_scores}
    if not completes(plan):
        # As in `scores_of`: all metrics of what is graded have curves where the suite declares no measures.
        declared = {measure.name for measure in plan.measures}
        curved = (
            {"score", *declared}
            if declared or "score" not in figures.measures
            else set(figures.measures)
        )
        scores |= curved & figures.measures.keys()
    beside = {
        "cost": figures.total_cost if figures.cost_known else None,
        "tokens": figures.tokens_in + figures.tokens_out,
        "latency": None if figures.avg_latency is None else round(figures.avg_latency, 3),
        "iterations": None if completes(plan) else figures.avg_iterations,
    }
    room = max(0, _MOST_METRICS - len({*scores, "passed"})) if figures.total_problems else 0
    return [*points_of_scores, *list(points(beside, time))[:room]]


def _score_points(plan: Plan, arm: ArmResults, time: int) -> Sequence[Point]:
    """The averages of scores without a curve: those that are no means, and all if only the end gives them."""
    figures = arm.summary
    averages = {measure.name: _AVERAGES[measure.averaged] for measure in plan.measures}
    names = [name for name, average in averages.items() if completes(plan) or average != "mean"]
    names += ["score", *from_parts(plan, lambda part: part.scores)] if completes(plan) else []
    means: dict[str, float | None] = {
        f"{name}/{averages.get(name, 'mean')}": figures.measures[name].mean
        for name in names
        if name in figures.measures
    }
    if completes(plan) and passes(plan) and figures.success_rate is not None:
        means["passed/mean"] = figures.success_rate / 100
    return list(points(means, time))


def _as_tags(figures: Mapping[str, float | None]) -> dict[str, str]:
    return {
        f"koderz.{name}": f"{value:.10g}"
        for name, value in figures.items()
        if value is not None and math.isfinite(value)
    }


def _run_figures(summary: Summary) -> dict[str, float | None]:
    compared = asdict(summary.comparison) if summary.comparison else {}
    if (rate := compared.pop("success_rate_improvement", None)) is not None:
        compared["passed_difference"] = rate / 100
    return {
        "planned": summary.planned,
        "faults": len(summary.faults),
        "duration_seconds": summary.duration_seconds,
        "paid": summary.paid["total"],
        **{
            f"comparison.{key}": value
            for key, value in compared.items()
            if isinstance(value, int | float)
        },
    }


def _arm_figures(arm: ArmResults) -> dict[str, float | None]:
    figures = arm.summary
    low, high = (bound / 100 for bound in figures.success_rate_interval or (math.nan, math.nan))
    bounds = zip(("least", "most"), figures.success_rate_bounds or (), strict=False)
    names = "successes avg_cost cost_per_success baseline_cost avg_iterations tokens_in tokens_out avg_latency"
    return {
        "problems": figures.total_problems,
        "tokens_reasoning": figures.tokens_reasoning,
        **{
            f"truncated_{name}": count for name, count in asdict(figures.truncated).items() if count
        },
        "cost": figures.total_cost,
        **{name: getattr(figures, name) for name in names.split()},
        "passed_low": low,
        "passed_high": high,
        **{f"passed_{end}": bound / 100 for end, bound in bounds},
        **{name.replace("@", "_at_"): value for name, value in figures.pass_at_k.items()},
        **dict(_all_pass(figures)),
        **(
            {"reused_calls": figures.reused_calls, "saved_cost": figures.saved_cost}
            if figures.reused_calls
            else {}
        ),
        **(
            {"unread": figures.unread.count, "unread_rate": figures.unread.rate / 100}
            if figures.unread
            else {}
        ),
    }


def _all_pass(figures: Figures) -> Iterator[tuple[str, float]]:
    """pass^k, such as `pass_hat_2`, and the ends of its interval; pass^1 is pass@1."""
    for name, each in figures.pass_hat_k.items():
        if name != "pass^1":
            told = name.replace("^", "_hat_")
            yield told, each.value
            for end, bound in zip(("low", "high"), each.interval or (), strict=False):
                yield f"{told}_{end}", bound


def _added(more: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures that parts add to an arm, such as `tasks/speedup_base`, and the ends of their intervals."""
    for name, found in more.items():
        if isinstance(found, Mapping) and isinstance(found.get("value"), int | float):
            yield f"tasks/{name}", found["value"]
            for end, bound in zip(("low", "high"), found.get("interval") or (), strict=False):
                yield f"tasks/{name}_{end}", bound
        elif isinstance(found, Mapping):
            yield from _added({f"{name}/{key}": each for key, each in found.items()})


def _note(plan: Plan, summary: Summary, arms: Sequence[str]) -> str:
    """The description of a run or an arm's run, in Markdown."""
    table = (_means if completes(plan) else _rates)({name: summary.arms[name] for name in arms})
    lines = [*(f"**{caution}.**\n" for caution in summary.cautions), *table]
    if summary.faults:
        lines.append(
            f"\n{len(summary.faults)} of {summary.planned} experiments ended in a fault, which is no verdict."
        )
    if early := stopped_early(summary.decision, went_on=went_on(summary)):
        lines.append(
            f"\n{early[0].upper()}{early[1:]} tasks; the figures are over all that were asked."
        )
    lines.append(f"\nStatus: {summary.status}{f' ({summary.reason})' if summary.reason else ''}")
    return "\n".join(lines)


def _means(arms: Mapping[str, ArmResults]) -> Iterator[str]:
    """Lines with the means of each arm's measures."""
    measures = {name: arm.summary.measures for name, arm in arms.items()}
    names = [*dict.fromkeys(name for found in measures.values() for name in found)]
    yield f"| | {' | '.join((*names, 'cost'))} |"
    yield "|---" * (len(names) + 2) + "|"
    for arm, found in measures.items():
        cells = [f"{found[name].mean:.4g}" if name in found else "" for name in names]
        yield f"| {arm} | {' | '.join(cells)} | ${arms[arm].summary.total_cost:.4f} |"


def _rates(arms: Mapping[str, ArmResults]) -> Iterator[str]:
    """A table of each arm's success rate."""
    yield "| | success rate | 95 % interval | cost | avg iterations |"
    yield "|---|---|---|---|---|"
    for solver, arm in arms.items():
        figures = arm.summary
        rate = interval = iterations = ""
        if figures.success_rate is not None:
            rate = f"{figures.success_rate:.1f} % "
            bounds = (
                "{:.1f} to {:.1f} ".format(*figures.success_rate_interval)
                if figures.success_rate_interval
                else ""
            )
            interval = f"{bounds}({figures.success_rate_interval_method})"
            if figures.bounds_text:
                interval += f"; {figures.bounds_text}"
            iterations = f"{figures.avg_iterations:.1f}"
        passed = f"({figures.successes}/{figures.total_problems})"
        yield f"| {solver} | {rate}{passed} | {interval} | ${figures.total_cost:.4f} | {iterations} |"


def figures_file(summary: Summary, arms: Sequence[str]) -> bytes:
    """All figures of a run and of the named arms, as JSON."""
    of_arms = {}
    for name in arms:
        arm = summary.arms[name]
        means = {f"mean/{measure}": mean.mean for measure, mean in arm.summary.measures.items()}
        of_arms[name] = {**_arm_figures(arm), **means, **dict(_added(arm.more))}
    return orjson.dumps({"run": _run_figures(summary), "arms": of_arms}, option=orjson.OPT_INDENT_2)
