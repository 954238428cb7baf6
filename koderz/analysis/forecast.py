"""The forecast of a run before anything is asked: by its plan, and by what experiments of finished runs took."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from koderz.analysis.blocks import Heading, Table, as_html
from koderz.analysis.catalogue import load_catalogue
from koderz.analysis.statistics import normal_quantile
from koderz.engines.local import batched_roles
from koderz.engines.resources import listed_tariff, own_prices
from koderz.engines.reuse import OnRecord, on_record, recorded_replies
from koderz.models import Price, parse_model_name
from koderz.models.prices import batch_price_of
from koderz.models.tariffs import Tariff
from koderz.plans.arms import Arm, opened_models
from koderz.plans.estimate import (
    NOT_TRIED,
    Amount,
    Cells,
    Consumption,
    Ending,
    Estimate,
    Figure,
    Foreseen,
    History,
    Share,
    estimate,
    expected_calls,
)
from koderz.plans.plan import Plan
from koderz.settings.layers import options_in
from koderz.settings.options import fields_of
from koderz.settings.schema import Settings
from koderz.types import MAIN
from koderz_tracker.files import open_own
from koderz_tracker.records import PASSES

if TYPE_CHECKING:
    from koderz_tracker.summary import Summary

_MOST_RUNS = 20  # that are read, the newest first: so many take 0.1 s
_MOST_EXPERIMENTS = 5000
_SAMPLING = frozenset({"temperature", "top_p", "max_tokens", "context", "use_memory"})
_ONE_SIDED = 0.9  # of a range that holds four times in five
_FEWEST_REPEATS = 5  # more than the tasks they are of, for what repeats of a task differ by
_LIKENESS = (
    "with the same model and settings",
    "with the same model and other settings",
    "with other models",
)


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
        return _taken(
            [result for each in alike for result in each.results], cells, len(alike), best
        )

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
    # by model and task
    values: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        uses = _by_model(result, cells.arm)
        for model in cells.tokens_in:
            values[model][result.problem_id].append(
                [float(number) for number in uses.get(model, (0, 0, 0))]
            )
    exact = likeness == 0
    amounts = {
        model: _predicted(by_task, model, cells, exact=exact)
        for model, by_task in values.items()
        # without calls it had no part in them
        if exact or any(calls for each in by_task.values() for calls, *_ in each)
    }
    counted = (
        f"{len(results):,} experiment{'s' * (len(results) != 1)} of {runs} run{'s' * (runs != 1)}"
    )
    return Consumption(
        amounts,
        f"by {counted} {_LIKENESS[likeness]}; four in five such runs should stay within the ranges",
    )


def _by_model(result: _PastResult, arm: Arm) -> dict[str, tuple[float, float, float]]:
    """Calls and tokens in and out of an experiment, by model, for the roles that the arm has."""
    found: dict[str, tuple[float, float, float]] = {}
    for role, use in result.uses().items():
        if model := arm.models.get(role):
            calls, tokens_in, tokens_out = found.get(model, (0.0, 0.0, 0.0))
            found[model] = calls + use.calls, tokens_in + use.tokens_in, tokens_out + use.tokens_out
    return found


def _predicted(
    by_task: Mapping[str, list[list[float]]], model: str, cells: Cells, *, exact: bool
) -> Amount:
    """The prediction for one model. If settings differ, prompts are bounded by the plan's lengths."""
    price = cells.prices.get(model) or Price(0, 0)
    if not exact:
        count = sum(cells.samples.values())
        mean = fmean(each[1] for values in by_task.values() for each in values)
        least, most = (limit / count for limit in cells.tokens_in[model])
        factor = min(max(mean, least), most) / mean if mean else 1.0
        by_task = {
            task: [[a, factor * b, c] for a, b, c in values] for task, values in by_task.items()
        }
    made, asked, answered = (
        _figure({task: [each[part] for each in values] for task, values in by_task.items()}, cells)
        for part in range(3)
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
    squares = math.fsum(
        (value - means_of_all[task]) ** 2 for task, values in by_task.items() for value in values
    )
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


_UNPRICED = "price unknown; put it into koderz.toml under [prices]"


@dataclass(frozen=True)
class Forecast:
    """A plan with the estimate of its calls, tokens and cost, and the tariffs of its models by name."""

    plan: Plan
    estimate: Estimate
    tariffs: Mapping[str, Tariff | None]
    on_record: OnRecord | None = None  # what --reuse would find

    @property
    def document(self) -> dict[str, Any]:
        """The forecast as JSON has it."""
        return {
            "config": self.plan.record.config,
            "planned": self.plan.record.planned,
            # US dollars a million tokens, and how they are known; null where they aren't
            "prices": {
                name: tariff
                and {
                    "input": tariff.price.input,
                    "output": tariff.price.output,
                    "origin": tariff.origin,
                }
                for name, tariff in self.tariffs.items()
            },
            "estimate": self.estimate,
            **({"reuse": self.on_record} if self.on_record else {}),
            **(
                {"batches": {"cost": self._cost_in_batches, "rounds": self._rounds}}
                if self._in_batches
                else {}
            ),
        }

    @cached_property
    def _in_batches(self) -> dict[str, float]:
        """The models that are asked in batches, and the share of their live price that they cost there."""
        found = {}
        for arm, role in batched_roles(self.plan):
            name = arm.models[role]
            found[name] = 0.5
            if tariff := self.tariffs.get(name):
                own = batch_price_of(parse_model_name(name), own_prices(self.plan))
                price, live = tariff.in_batches(own).price, tariff.price
                found[name] = (price.input + price.output) / (live.input + live.output or 1.0)
        return found

    @property
    def _cost_in_batches(self) -> tuple[float, float] | None:
        """The least and the most that the plan costs in batches, in US dollars; None if a price is unknown."""
        shares = [
            (share.cost, self._in_batches.get(share.model, 1.0)) for share in self.estimate.models
        ]
        ends = [(cost[0] * part, cost[1] * part) for cost, part in shares if cost]
        return (
            (sum(low for low, _ in ends), sum(high for _, high in ends))
            if len(ends) == len(shares)
            else None
        )

    @property
    def _rounds(self) -> tuple[int, int]:
        """The least and the most rounds of batches: as many as an experiment has calls after each other."""
        roles = {(arm.name, role) for arm, role in batched_roles(self.plan)}
        calls = [
            each.calls
            for arm, _, each in expected_calls(self.plan)
            if (arm.name, each.role) in roles
        ]
        return int(max((low for low, _ in calls), default=0)), int(
            max((high for _, high in calls), default=0)
        )

    def lines(self, sampled: Summary | None = None) -> list[str]:
        """The forecast in lines, and first what a sample of the tasks came to."""
        other = "else " if sampled else ""
        return [
            *([_sample_line(sampled, len(self.plan.tasks))] if sampled else ()),
            f"PLAN (nothing {other}is asked, nothing {other}is written)",
            *self._figures(sampled is not None),
        ]

    def _figures(self, sampled: bool = False) -> Iterator[str]:
        plan, guess = self.plan, self.estimate
        config: Mapping[str, Any] = plan.record.config
        tasks = plan.tasks
        named = tasks[0].id if len(tasks) == 1 else f"{tasks[0].id} … {tasks[-1].id}"
        yield f"Suite: {plan.suite.name} ({plan.suite.source})"
        yield f"Tasks: {len(tasks)} ({named})"
        yield f"Mode: {plan.record.mode}; samples: {plan.record.samples}; temperature: {config['temperature']:g}"
        yield from (
            f"Model: {name}: {tariff or _UNPRICED}" for name, tariff in self.tariffs.items()
        )
        yield f"Cost: {_cost(guess)}"
        if self._in_batches:
            cost, live = self._cost_in_batches, guess.cost
            price = (
                f"at most {_dollars(cost[1])} instead of {_dollars(live[1])}"
                if cost and live
                else "price unknown"
            )
            rounds = f"{_span(*self._rounds)} round{'s' * (self._rounds[1] != 1)} of up to 24 h"
            yield f"In batches: {price}, in {rounds}"
        yield from (
            f"  {each.model} ({', '.join(each.roles)}): {_cost(each)}, {_amount(each, 'calls')} calls"
            for each in (guess.models if len(guess.models) > 1 else ())
        )
        if self.on_record:
            yield self.on_record.line.replace("reuse", "Reuse", 1)
        yield f"Experiments: {guess.experiments:,}"
        yield f"Calls: {_amount(guess, 'calls')}"
        for each in guess.depths:
            at_most = "cost unknown" if each.cost is None else f"at most {_dollars(each.cost[1])}"
            yield f"  at depth {each.depth}: at most {each.calls[1]:,} calls, {at_most}"
        yield f"Tokens in: {_amount(guess, 'tokens_in', about='about ')}"
        yield f"Tokens out: {_amount(guess, 'tokens_out', about='about ')}"
        yield from _basis(guess, sampled) if guess.calls[1] else ()
        yield from (_foretold(guess.decision),) if guess.decision else ()
        yield from plan.suite.outline(plan)

    def _repr_html_(self) -> str:
        rows = [line.strip().partition(": ")[::2] for line in self._figures()]
        return as_html(
            [Heading("Plan: nothing is asked, nothing is written"), Table((), rows, ruled=False)]
        )


def forecast_of(plan: Plan, environ: Mapping[str, str] = os.environ) -> Forecast:
    """The forecast of a plan, by the prices that are known and by runs on record. No model is asked."""
    opened = opened_models(plan.arms, plan.settings.roles_elsewhere)
    tariffs = {key: listed_tariff(plan, key, environ) for key in opened}
    for key, (name, _) in opened.items():  # by which an estimate looks a role's model up
        tariffs.setdefault(name, tariffs[key])
    prices = {name: tariff.price if tariff else None for name, tariff in tariffs.items()}
    replies = recorded_replies(plan)
    found = on_record(plan, replies, environ) if replies else None
    return Forecast(plan, estimate(plan, prices, history_of(plan)), tariffs, found)


def _foretold(decision: Foreseen) -> str:
    """The line on when a run that stops once it is decided will be, and on what it costs by then."""
    percent, parts = (f"{100 * share:g}" for share in (decision.difference, decision.parts))
    better = (
        f"{percent} points"
        if decision.measure == PASSES
        else f"{percent} % of the range of {decision.measure}"
    )
    who = (
        f"If B is {better} better"
        if decision.compared == 1
        else f"If an arm is {better} better than {decision.a}"
    )
    ends = ", ".join(
        _ending(each, decision, is_first=not at) for at, each in enumerate(decision.endings)
    )
    return f"{who} and the two part on {parts} % of tasks: decided {ends}"


def _ending(ending: Ending, decision: Foreseen, *, is_first: bool) -> str:
    """The tasks by which a run is decided in some of the cases, and the cost of so many."""
    often = {0.5: "half of the cases", 0.9: "nine of ten"}[ending.chance]
    of = f" of {decision.planned:,} {decision.unit}" if is_first else ""
    if ending.tasks is None or ending.tasks > decision.planned:
        tasks = "more than 20,000" if ending.tasks is None else f"{ending.tasks:,}"
        return f"by the end{of} in fewer than {often} (which takes {tasks})"
    cost = "cost unknown" if ending.cost is None else f"about {_span_of(*ending.cost)}"
    return f"{'after ' if is_first else ''}{ending.tasks:,}{of} in {often} ({cost})"


def _sample_line(sampled: Summary, tasks: int) -> str:
    """A line on what a sample of a plan's tasks cost, where it is kept, and why it stopped if it did."""
    asked, spent = len(sampled.config["problems"]), _dollars(sampled.paid.get("total", 0.0))
    done = sum(len(arm.results) for arm in sampled.arms.values()) + len(sampled.faults)
    ended = (
        ""
        if sampled.status == "complete"
        else f" ({sampled.status} after {done} of {sampled.planned} experiments)"
    )
    known = "" if all(arm.summary.cost_known for arm in sampled.arms.values()) else "at least "
    planned = f"{tasks:,} task{'s' * (tasks != 1)}"
    return f"SAMPLE: {asked} of {planned} cost {known}{spent}{ended}, kept as run {sampled.run_id}"


def _basis(guess: Estimate, sampled: bool) -> Iterator[str]:
    """The basis of the likely figures, one line for all arms that share it, and how to know more."""
    for words in dict.fromkeys(guess.basis.values()):
        arms = ", ".join(arm for arm, basis in guess.basis.items() if basis == words)
        which = "" if len({*guess.basis.values()}) == 1 else f" of {arms}"
        yield f"Likely figures{which}: {words}"
    if guess.likely and guess.likely.cost_range and (cost := guess.likely.cost_range)[0] < cost[1]:
        yield f"Likely cost: {_span_of(*cost)}"
    unknown = any(words.endswith(NOT_TRIED) for words in guess.basis.values())
    if unknown and not sampled and (guess.cost is None or guess.cost[1]):
        yield "To ask three tasks and see what they cost: --dry-run --sample 3"


def _amount(guess: Estimate | Share, name: str, about: str = "") -> str:
    """The likely number, and the most that it can be; the span where nothing is known."""
    low, high = getattr(guess, name)
    figure = getattr(guess.likely, name) if guess.likely else None
    if figure is None or figure == low == high:
        return f"{about}{_span(low, high)}"
    return f"about {figure:,}{f' (at most {high:,})' if low < high else ''}"


def _cost(guess: Estimate | Share) -> str:
    """The likely cost, and the most that it can be."""
    if guess.cost is None:
        return "unknown, since a price is"
    low, high = guess.cost
    if guess.likely is None or guess.likely.cost is None:
        return f"about {_dollars(high)}" if low == high else _span_of(low, high)
    return (
        f"about {_dollars(guess.likely.cost)}{f' (at most {_dollars(high)})' if low < high else ''}"
    )


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _span_of(low: float, high: float) -> str:
    return _dollars(high) if low == high else f"{_dollars(low)} to {_dollars(high)}"


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}"
