"""The resources that experiments of finished runs took, as likely figures for a similar plan."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from koderz.analysis.catalogue import load_catalogue
from koderz.analysis.statistics import normal_quantile
from koderz.models import Price
from koderz.plans.arms import Arm
from koderz.plans.estimate import Amount, Cells, Consumption, Figure, History
from koderz.plans.plan import Plan
from koderz.settings.layers import options_in
from koderz.settings.options import fields_of
from koderz.settings.schema import Settings
from koderz.types import MAIN
from koderz_tracker.files import open_own

_MOST_RUNS = 20  # that are read, the newest first: so many take 0.1 s
_MOST_EXPERIMENTS = 5000
_SAMPLING = frozenset({"temperature", "top_p", "max_tokens", "context", "use_memory"})
_ONE_SIDED = 0.9  # of a range that holds four times in five
_FEWEST_REPEATS = 5  # more than the tasks they are of, for what repeats of a task differ by
_LIKENESS = ("with the same model and settings", "with the same model and other settings", "with other models")


class _Use(msgspec.Struct):
    calls: int
    tokens_in: int
    tokens_out: int


class _PastResult(msgspec.Struct):
    problem_id: str
    solver: str = ""
    model: str = ""
    calls: int | None = None  # as older files leave it out
    tokens_in: int = 0
    tokens_out: int = 0
    roles: dict[str, _Use] | None = None
    cost_by_tier: dict[str, float] | None = None

    def uses(self) -> Mapping[str, _Use]:
        """Calls and tokens by role; empty if unknown."""
        if self.roles is not None:
            return self.roles
        if self.calls is None or (self.cost_by_tier or {}).keys() - {"local", "compute"}:
            return {}
        return {MAIN: _Use(self.calls, self.tokens_in, self.tokens_out)}


class _ArmResults(msgspec.Struct):
    results: list[_PastResult] = []
    simulated: bool | None = None  # None: as the run


class _Run(msgspec.Struct):
    """The needed part of a summary; other fields are skipped unread."""

    config: dict[str, Any] = {}
    arms: dict[str, _ArmResults] = {}
    simulated: bool = False


_DECODER = msgspec.json.Decoder(_Run)


class _ArmHistory(NamedTuple):
    """The experiments of one arm of a run."""

    likeness: int  # the index of its words in _LIKENESS
    results: Sequence[_PastResult]


def history_of(plan: Plan) -> History:
    """The history of the plan: runs of its suite and models in its results folder."""
    runs: list[_Run] = []
    arms = {arm.solver.name for arm in plan.arms}
    seen = 0
    for row in load_catalogue(plan.settings.results).rows:
        if len(runs) == _MOST_RUNS or seen > _MOST_EXPERIMENTS:
            break
        # A run may have arms like the plan's, as far as its line in the catalogue tells.
        if row.suite != plan.record.suite or row.imported or row.run_id == plan.record.run_id:
            is_alike = False
        elif row.mode in ("matrix", plan.record.mode):  # whose arms may go by names of their own
            is_alike = True
        else:
            is_alike = any(arm.judged and (arm.solved_by or arm.solver) in arms for arm in row.arms)
        if is_alike and (run := _read(plan.settings.results, row.run_id)):
            runs.append(run)
            seen += sum(arm.judged for arm in row.arms)

    def known(cells: Cells) -> Consumption | None:
        found = [each for run in runs if (each := _found(run, plan, cells.arm))]
        if not found:
            return None
        best = min(each.likeness for each in found)
        alike = [each for each in found if each.likeness == best]
        return _taken([result for each in alike for result in each.results], cells, len(alike), best)

    return known


def _read(results: Path, run_id: str) -> _Run | None:
    try:
        with open_own(results / f"{run_id}.json") as file:
            return _DECODER.decode(file.read())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # it goes on, or the list says what is wrong with it


def _found(run: _Run, plan: Plan, arm: Arm) -> _ArmHistory | None:
    """The experiments of the arm's solver; those of the simulated model only if it is asked now."""
    simulated = arm.record.simulated
    results = [
        result
        for each in run.arms.values()
        if (run.simulated if each.simulated is None else each.simulated) == simulated
        for result in each.results
        if result.solver == arm.solver.name and result.uses()
    ]
    same = [result for result in results if result.model == arm.model]
    if not results:
        return None
    if not same:
        return _ArmHistory(2, results)
    is_equal = not arm.parameters and not run.config.get("matrix") and _equal(run.config, plan)
    return _ArmHistory(0 if is_equal else 1, same)


def _equal(config: Mapping[str, Any], plan: Plan) -> bool:
    """Whether a run had the plan's settings, as far as calls depend on them."""
    core = fields_of(Settings)
    names = [
        field.name
        for field, _ in options_in(plan.settings)
        if not field.about.changeable and (field.name in _SAMPLING or field.name not in core)
    ]
    now = msgspec.to_builtins(plan.record.config)
    return all(name not in config or name not in now or config[name] == now[name] for name in names)


def _taken(results: Sequence[_PastResult], cells: Cells, runs: int, likeness: int) -> Consumption:
    """The prediction for the cells from these experiments."""
    values: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))  # by model and task
    for result in results:
        uses = _by_model(result, cells.arm)
        for model in cells.tokens_in:
            values[model][result.problem_id].append([float(number) for number in uses.get(model, (0, 0, 0))])
    exact = likeness == 0
    amounts = {
        model: _amount(by_task, model, cells, exact=exact)
        for model, by_task in values.items()
        if exact or any(calls for each in by_task.values() for calls, *_ in each)  # else it had no part in them
    }
    counted = f"{len(results):,} experiment{'s' * (len(results) != 1)} of {runs} run{'s' * (runs != 1)}"
    return Consumption(
        amounts, f"by {counted} {_LIKENESS[likeness]}; four in five such runs should stay within the ranges"
    )


def _by_model(result: _PastResult, arm: Arm) -> dict[str, tuple[float, float, float]]:
    """Calls and tokens in and out of an experiment, by model, for the roles that the arm has."""
    found: dict[str, tuple[float, float, float]] = {}
    for role, use in result.uses().items():
        if model := arm.models.get(role):
            calls, tokens_in, tokens_out = found.get(model, (0.0, 0.0, 0.0))
            found[model] = calls + use.calls, tokens_in + use.tokens_in, tokens_out + use.tokens_out
    return found


def _amount(by_task: Mapping[str, list[list[float]]], model: str, cells: Cells, *, exact: bool) -> Amount:
    """The prediction for one model. If settings differ, prompts are bounded by the plan's lengths."""
    price = cells.prices.get(model) or Price(0, 0)
    if not exact:
        count = sum(cells.samples.values())
        mean = fmean(each[1] for values in by_task.values() for each in values)
        least, most = (limit / count for limit in cells.tokens_in[model])
        factor = min(max(mean, least), most) / mean if mean else 1.0
        by_task = {task: [[a, factor * b, c] for a, b, c in values] for task, values in by_task.items()}
    made, asked, answered = (
        _figure({task: [each[part] for each in values] for task, values in by_task.items()}, cells) for part in range(3)
    )
    costs = {
        task: [max(1.0, a) * price.cost(b / max(1.0, a), c / max(1.0, a)) for a, b, c in values]
        for task, values in by_task.items()
    }
    return Amount(made, asked, answered, _figure(costs, cells))


def _figure(by_task: Mapping[str, Sequence[float]], cells: Cells) -> Figure:
    """The sum over the cells: a task's own mean if known, else the overall mean; its range by Student's t."""
    every = [value for values in by_task.values() for value in values]
    mean = fmean(every)
    means = {task: fmean(values) for task, values in by_task.items()}
    freedom = len(every) - len(by_task)
    if freedom < _FEWEST_REPEATS:
        means_of_all, freedom = dict.fromkeys(by_task, mean), len(every) - 1
    else:
        means_of_all = means
    squares = math.fsum((value - means_of_all[task]) ** 2 for task, values in by_task.items() for value in values)
    new = sum(count for task, count in cells.samples.items() if task not in by_task)
    total, variance = new * mean, new + new**2 / len(every)
    for task, count in cells.samples.items():
        if task in by_task:
            total += count * means[task]
            variance += count + count**2 / len(by_task[task])
    if not freedom:
        return Figure(total / 2, total, 2 * total)
    # Student's t, by the first terms of its expansion (Abramowitz and Stegun 26.7.5).
    z = normal_quantile(_ONE_SIDED)
    quantile = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    spread = quantile * math.sqrt(variance * squares / freedom)
    least = min(every) * sum(cells.samples.values())
    return Figure(max(total - spread, min(least, total)), total, total + spread)
