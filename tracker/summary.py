"""The summary of a run, computed from its journal alone."""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from koderz_tracker.basis import PASSING, UntilDecided
from koderz_tracker.breakdown import Mean, Slice, breakdown, by_task, mean_of, mean_score
from koderz_tracker.index import load_index, read_records, read_spans
from koderz_tracker.journal import NAME
from koderz_tracker.outline import (
    Outline,
    active_seconds,
    decisions_in,
    last_finished,
    told_batches,
    told_decisions,
    with_calibrations,
)
from koderz_tracker.parts import completed, from_parts, parts_of
from koderz_tracker.rates import pass_at_k_of, success_interval
from koderz_tracker.records import (
    SCHEMA_VERSION,
    Arm,
    Experiment,
    Fault,
    Headline,
    Measure,
    Plan,
    Record,
    time_of,
)
from koderz_tracker.results import (
    ANSWER,
    ChanceEstimate,
    Result,
    Truncated,
    UnreadAnswers,
    clusters_in,
    clusters_of,
    count_of,
    interval_in,
    pass_hat_k_of,
    told_ends,
    untold,
)
from koderz_tracker.runs import read_plan
from koderz_tracker.scrubber import scrubber_of
from koderz_tracker.sequential import (
    chances_along,
    rate_along,
    settled_orders,
    until_decided_in,
    without_intervals,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one arm. Rates are per cent, costs US dollars.

    Where nothing was judged, rates and averages are None and costs, which are always numbers, are 0.
    """

    total_problems: int  # judged experiments
    successes: int  # experiments that passed
    success_rate: float | None  # per cent
    success_rate_interval: tuple[float, float] | None  # its 95 % interval, per cent
    success_rate_interval_method: str | None  # how the interval was computed, or why there is none
    total_cost: float  # US dollars
    avg_cost: float  # US dollars for each experiment
    avg_iterations: float | None  # attempts for each experiment
    cost_known: bool  # whether the price of every call is known
    cost_by_tier: dict[str, float]  # US dollars by tier of models
    cost_per_success: float | None  # US dollars of all experiments, divided by the successes
    baseline_cost: float | None  # what the same local tokens would have cost on the baseline model
    tokens_in: int  # tokens of all requests
    tokens_out: int  # tokens of all replies
    avg_latency: float | None  # seconds of waiting for models, for each experiment
    pass_at_k: dict[str, float]  # by name, such as `pass@5`: a probability from 0 to 1
    verdicts: dict[str, int]  # experiments by verdict
    causes: dict[str, int]  # failed experiments by cause
    measures: dict[str, Mean]  # the mean of the score and of every metric
    # the number of clusters that the tasks form; null: each task stands alone
    clusters: int | None = None
    pass_hat_k: dict[str, ChanceEstimate] = field(default_factory=dict)  # by name, such as `pass^5`
    # replies whose answer couldn't be read; null: the suite reads no answers
    unread: UnreadAnswers | None = None
    tokens_reasoning: int | None = None  # part of `tokens_out` for reasoning; null: no server tells
    # replies that were cut off by their length
    truncated: Truncated = field(default_factory=Truncated)
    success_rate_bounds: tuple[float, float] | None = (
        None  # its faults all failed, all passed; null: no faults, or no rate
    )
    reused_calls: int = 0  # calls that replies on record of other runs answered
    saved_cost: float = 0.0  # US dollars that those replies cost then

    @property
    def rate(self) -> float:
        """The success rate of results, of which there is at least one."""
        assert self.success_rate is not None, "whoever asks has looked whether anything was judged"
        return self.success_rate

    @property
    def interval_text(self) -> str:
        """The interval of the success rate with its method, or the reason for having none, as text for people."""
        method = self.success_rate_interval_method
        if self.success_rate_interval is None:
            return f"no interval: {method.partition(': ')[2]}" if method else "no interval"
        low, high = self.success_rate_interval
        return f"95% interval {low:.1f}% to {high:.1f}% ({method})"

    @property
    def bounds_text(self) -> str:
        """The bounds of the success rate as text for people; empty without faults."""
        if self.success_rate_bounds is None:
            return ""
        return "{:.1f}% with its faults as failures, {:.1f}% as passes".format(
            *self.success_rate_bounds
        )

    @property
    def samples_text(self) -> str:
        """pass@k and pass^k as text for people; empty where tasks have one sample."""
        if len(self.pass_at_k) < 2:
            return ""
        any_of = (f"{name} {100 * value:.1f}%" for name, value in self.pass_at_k.items())
        all_of = (
            f"{name} {each.text}" for name, each in self.pass_hat_k.items() if name != "pass^1"
        )
        return ", ".join([*any_of, *all_of])


@dataclass(frozen=True, slots=True)
class ArmResults:
    """One arm's results, in the order of the plan."""

    results: Sequence[Result]
    summary: Figures
    baseline: str = ""  # the arm that it is compared with; empty: the first
    # what parts add to its summary, see tracker.parts
    more: Mapping[str, Any] = field(default_factory=dict)
    # whether it asks the simulated model, where that isn't as in the run
    simulated: bool | None = None


USUAL = ("zero-shot", "iterative")
"""The arms that are compared if a plan names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One arm against another, over the pairs of task and sample that both were judged on.

    Where there are none, differences of rates and averages are None and those of costs 0. `only_zero_shot` counts what
    the first of the `arms` alone passed, and `only_iterative` the second, whatever they are called.
    """

    problems: int  # pairs of task and sample that were judged in both arms
    success_rate_improvement: float | None  # percentage points
    cost_difference: float  # US dollars, between the totals
    avg_cost_difference: float  # US dollars for each experiment
    iteration_difference: float | None  # between the average numbers of attempts
    both_passed: int  # pairs that passed in both arms
    only_zero_shot: int  # pairs that passed only in the first arm
    only_iterative: int  # pairs that passed only in the second arm
    neither: int  # pairs that passed in neither arm
    arms: tuple[str, str] = USUAL  # the names of the two arms


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summary of one run."""

    run_id: str | None  # null: a single experiment
    mode: str  # the mode or the solver
    start_time: str  # when the first session began
    end_time: str  # when the last session ended
    duration_seconds: float  # the time of all sessions, without pauses between them
    status: str  # complete, incomplete, interrupted, stopped or failed
    reason: str  # why it isn't complete
    planned: int  # planned experiments
    config: dict[str, Any] = field(repr=False)  # the settings of the run
    # by name: the results and the figures of each arm
    arms: dict[str, ArmResults] = field(repr=False)
    comparison: Comparison | None  # the two arms of a comparative run
    # experiments that couldn't be judged, each with reason and cause
    faults: Sequence[dict[str, Any]]
    paid: dict[str, float]  # US dollars: total, and for results, faults and unfinished experiments
    # every arm that asks a model asks the simulated one; in older files, any of them
    simulated: bool
    # calls by model asked and other name
    answered_by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # requests refused because of load, by provider
    throttled: Mapping[str, int] = field(default_factory=dict)
    # replies by a last word that koderz doesn't know
    unknown_ends: Mapping[str, int] = field(default_factory=dict)
    generated: str = ""  # the name of the data if koderz made the tasks up
    # journals of a training's rewards that contain scores of its tasks
    rewarded_in: Sequence[str] = ()
    # the prompt of a judge that is a model, and its caveats
    judge: Mapping[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(repr=False)  # versions and machine
    damaged_lines: int = 0  # unreadable lines of the journal, which are left out
    measures: Sequence[Measure] = ()  # the measures that the suite declares besides success
    headline: Headline = PASSING  # the measure that sums up an arm, and how it is presented
    parts: Mapping[str, Any] = field(default_factory=dict)  # keys that the suite or a solver adds
    breakdown: Sequence[Slice] = ()  # figures by what the suite's tasks have in common
    # when it stops; null: everything that is planned is asked
    until_decided: UntilDecided | None = None
    decision: Mapping[str, Any] | None = None  # the last one of such a run; `arms` has each
    # warnings about its tasks or samples that were known when it was planned
    notes: Sequence[str] = ()
    # by task, a digest of what it asks
    asked: Mapping[str, str] = field(default_factory=dict, repr=False)
    # the batches in which its calls were sent, each as it was last seen
    batches: Sequence[Mapping[str, Any]] = ()
    schema_version: int = SCHEMA_VERSION  # the version of this format

    @property
    def cautions(self) -> list[str]:
        """Warnings to be shown wherever the figures are shown."""
        arms = [name for name in self.arms if self.is_simulated(name)]
        found = []
        if self.simulated:
            found.append("SIMULATED MODEL: these figures say nothing about any real one")
        elif arms:
            found.append(
                f"SIMULATED ARMS, {', '.join(arms)}: their figures say nothing about any real model"
            )
        if self.generated:
            found.append(
                f"GENERATED DATA, {self.generated}: these figures don't belong beside published ones"
            )
        for name, arm in self.arms.items():
            if note := arm.summary.truncated.note(arm.summary.total_problems):
                found.append(f"{name}: {note}" if len(self.arms) > 1 else note)
        found += told_ends(self.unknown_ends)
        if self.rewarded_in:
            found.append(
                f"REWARDED TASKS: models were rewarded on these tasks in {', '.join(self.rewarded_in)}"
            )
        return [*found, *self.notes, *self.judge.get("caveats", ())]

    def is_simulated(self, arm: str) -> bool:
        """Whether the arm with this name uses the simulated model."""
        own = self.arms[arm].simulated
        return self.simulated if own is None else own

    @property
    def results(self) -> Sequence[Result]:
        """The results of all arms, one arm after the other."""
        return [result for arm in self.arms.values() for result in arm.results]

    @property
    def summary(self) -> Figures:
        """The figures of the only arm; in a comparative run, those of the iterative arm."""
        return list(self.arms.values())[-1].summary


KEYS = frozenset(
    {*(item.name for item in fields(Summary)), "results", "summary", "zero_shot", "iterative"}
)
"""The keys that every summary has."""


def summarize(folder: Path) -> Summary:
    """The summary of the run in `folder`, without secrets. Raises JournalError if its journal is damaged."""
    index = load_index(journal := folder / NAME)
    lines = Outline(index)
    plan = read_plan(folder)
    plan = (scrubber := scrubber_of(plan)).record(plan)
    clusters = clusters_in(plan)
    results: list[Result] = []
    faults: list[Fault] = []
    counts = _Counts()
    for record in read_records(journal, index.ends()):
        if isinstance(record, Experiment):
            scrubbed = scrubber.record(record) if record.note or record.facts else record
            results.append(_result(scrubbed, clusters.get(record.problem_id, "")))
        elif isinstance(record, Fault):
            faults.append(scrubber.record(record))
        counts.add(record)
    if plan.parts:
        results = [*completed(plan, folder, results)]
    _sort(plan, results, faults)
    results, aside = _parted(plan, results)
    orders = settled_orders(plan, results, faults)
    arms = {arm.name: _arm(arm, plan, results, faults, counts, orders) for arm in plan.arms}
    of_arms = {name: arm.results for name, arm in arms.items()}
    apart = (
        {name: [result for result in aside if result.arm == name] for name in of_arms}
        if aside
        else {}
    )
    finished = last_finished(journal, lines)
    times = [plan.time, *(time_of(line) for line in read_spans(journal, lines.session_ends))]
    return Summary(
        run_id=plan.run_id,
        mode=plan.mode,
        start_time=plan.time,
        end_time=times[-1],
        duration_seconds=active_seconds(times),
        status=finished.status if finished else "unfinished",
        reason=scrubber.text(finished.reason) if finished else "",
        planned=plan.planned - plan.planned_apart,
        config=plan.config,
        arms=arms,
        comparison=compare_modes(arms, plan.compared or USUAL),
        faults=[_fault(fault, apart=fault.problem_id in plan.apart) for fault in faults],
        paid=_paid(lines.paid, [*results, *aside], faults),
        simulated=plan.simulated,
        answered_by=counts.answered_by,
        throttled=counts.throttled,
        unknown_ends={scrubber.text(word): count for word, count in counts.unknown_ends.items()},
        generated=plan.generated,
        rewarded_in=plan.rewarded_in,
        judge=plan.basis.judge,
        environment=plan.environment,
        damaged_lines=len(index.damaged),
        measures=plan.measures,
        headline=plan.headline or PASSING,
        parts=with_calibrations(_parts(plan, of_arms, faults, apart), journal, lines),
        breakdown=breakdown(plan, of_arms, orders) if plan.groups else (),
        until_decided=until_decided_in(plan),
        decision=told_decisions(plan, decisions_in(folder, index)) if plan.until_decided else None,
        notes=plan.notes,
        asked={
            task: digest for task, digest in zip(plan.tasks, plan.asked, strict=False) if digest
        },
        batches=told_batches(folder, index),
    )


class _Counts:
    """Sums over the experiments of a run that are no part of their results."""

    def __init__(self) -> None:
        # known costs on the baseline model, by arm
        self.baselines: dict[str, list[float]] = defaultdict(list)
        self.answered_by: dict[str, Counter[str]] = defaultdict(Counter)
        self.throttled: Counter[str] = Counter()
        self.unknown_ends: Counter[str] = Counter()

    def add(self, end: Record) -> None:
        if isinstance(end, Experiment):
            if end.baseline_cost is not None:
                self.baselines[end.arm].append(end.baseline_cost)
            for asked, answering in end.answered_by.items():
                self.answered_by[asked].update(answering)
        if isinstance(end, Experiment | Fault):
            self.throttled.update(end.throttled)
            self.unknown_ends.update(end.unknown_ends)


def _parts(
    plan: Plan,
    of_arms: Mapping[str, Sequence[Result]],
    faults: Sequence[Fault],
    apart: Mapping[str, Sequence[Result]],
) -> dict[str, Any]:
    """The parts of the summary that suite and solvers add; faults on tasks that stand apart are none of theirs."""
    own_faults = [fault for fault in faults if fault.problem_id not in plan.apart]
    found = parts_of(plan, of_arms, own_faults, apart) if plan.parts else {}
    return without_intervals(found) if plan.until_decided else found


def _sort(plan: Plan, results: list[Result], faults: list[Fault]) -> None:
    """Sorts results and faults by sample and by the order of the plan's tasks."""
    order = {task: position for position, task in enumerate(plan.tasks)}
    results.sort(key=lambda r: (r.sample, order.get(r.problem_id, len(order))))
    faults.sort(key=lambda f: (f.sample, order.get(f.problem_id, len(order)), f.arm))


def _parted(plan: Plan, results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """The results that figures are about, and those on tasks that stand apart from them."""
    parted: tuple[list[Result], list[Result]] = [], []
    for result in results:
        parted[result.problem_id in plan.apart].append(result)
    return parted


def figures(
    results: Sequence[Result],
    baseline_cost: float | None = None,
    measures: Sequence[Measure] = (),
    order: Sequence[str] | None = None,
    faults: int = 0,
) -> Figures:
    """The figures of an arm's results. `measures` are the measures that the suite declares.

    `order`: the settled tasks of a run that stops once it is decided, along which its intervals are made. `faults`: the
    number of experiments that couldn't be judged. They need not be missing at random, so beside the rate stand its
    bounds. Source: C. F. Manski, "Partial identification of probability distributions" (2003), chapter 1.
    """
    n = len(results)
    successes, absent = sum(result.success for result in results), untold(results)
    total_cost = math.fsum(result.cost for result in results)
    passes, clusters = by_task(results, lambda result: result.success), clusters_of(results)
    usual = interval_in(passes, clusters, success_interval) if order is None else None
    interval, method, chances = (
        *(usual or rate_along(order or (), passes, clusters)),
        pass_hat_k_of(passes, clusters),
    )
    return Figures(
        total_problems=n,
        successes=successes,
        success_rate=100 * successes / n if n else None,
        success_rate_interval=interval,
        success_rate_interval_method=method,
        total_cost=total_cost,
        avg_cost=total_cost / n if n else 0.0,
        avg_iterations=sum(result.iterations for result in results) / n
        if n and "iterations" not in absent
        else None,
        cost_known=all(result.cost_known for result in results),
        cost_by_tier=_by_tier(results),
        cost_per_success=total_cost / successes if successes and "cost" not in absent else None,
        baseline_cost=baseline_cost,
        tokens_in=sum(result.tokens_in for result in results),
        tokens_out=sum(result.tokens_out for result in results),
        avg_latency=math.fsum(result.latency for result in results) / n
        if n and "latency" not in absent
        else None,
        pass_at_k=pass_at_k_of(passes.values()),
        verdicts=dict(Counter(result.verdict for result in results)),
        causes=dict(Counter(result.cause for result in results if result.cause)),
        measures=dict(
            _means(results, {measure.name: measure for measure in measures}, clusters, order)
        ),
        clusters=count_of(passes, clusters),
        pass_hat_k=chances if order is None else chances_along(order, passes, clusters, chances),
        unread=_unread(results),
        tokens_reasoning=_known_sum([result.tokens_reasoning for result in results]),
        truncated=_truncated(results),
        success_rate_bounds=(
            100 * successes / (n + faults),
            100 * (successes + faults) / (n + faults),
        )
        if n and faults
        else None,
        reused_calls=sum(result.reused_calls for result in results),
        saved_cost=math.fsum(result.saved_cost for result in results),
    )


def _known_sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _truncated(results: Sequence[Result]) -> Truncated:
    counts = Counter(result.truncated or _CUT_CAUSES.get(result.cause, "") for result in results)
    return Truncated(counts["text"], counts["reasoning"])


# of results whose solver judged no reply itself
_CUT_CAUSES = {"length": "text", "length_reasoning": "reasoning"}


def _unread(results: Sequence[Result]) -> UnreadAnswers | None:
    if all(result.answer is UNSET for result in results):
        return None
    count = sum(result.answer is None for result in results)
    return UnreadAnswers(count, 100 * count / len(results))


def _means(
    results: Sequence[Result],
    declared: Mapping[str, Measure],
    clusters: Mapping[str, str],
    order: Sequence[str] | None,
) -> Iterator[tuple[str, Mean]]:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        own = {**(result.metrics or {}), "score": result.score}
        for name, value in own.items():
            if value is not None:
                found[name][result.problem_id].append(value)
    for name, values in found.items():
        measure = declared.get(name, Measure(name=name, direction="higher"))
        mean = (
            mean_score(results, order)
            if name == "score" and measure.unit in ("", "share")
            else None
        )
        yield name, mean or mean_of(values, measure, clusters, order)


def _by_tier(results: Sequence[Result]) -> dict[str, float]:
    tiers = {"local": 0.0, "checkpoint": 0.0, "spec": 0.0}
    for result in results:
        for tier, cost in (result.cost_by_tier or {"local": result.cost}).items():
            tiers[tier] = tiers.get(tier, 0.0) + cost
    return tiers


def _arm(
    arm: Arm,
    plan: Plan,
    results: Iterable[Result],
    faults: Iterable[Fault],
    counts: _Counts,
    orders: Mapping[str, Sequence[str]],
) -> ArmResults:
    mine = [result for result in results if result.arm == arm.name]
    missing = sum(fault.arm == arm.name and fault.problem_id not in plan.apart for fault in faults)
    costs, order = counts.baselines[arm.name], orders.get(arm.name)
    more = dict(from_parts(plan, lambda part: part.of_arm(plan, arm.name, mine).items()))
    more = without_intervals(more) if order is not None else more
    baseline_cost = math.fsum(costs) if costs and len(costs) == len(mine) else None
    own = figures(mine, baseline_cost, plan.measures, order, missing)
    simulated = plan.is_simulated(arm.name)
    return ArmResults(
        mine, own, arm.baseline, more, None if simulated == plan.simulated else simulated
    )


_OF_FAULT = ("experiment_id", "problem_id", "solver", "arm", "sample", "reason", "cause", "cost")
_TAKEN = tuple(name for name in Result.__struct_fields__ if name in Experiment.__struct_fields__)
# the same few a hundred thousand times
_WORDS = ("problem_id", "solver", "arm", "model", "verdict", "cause")


def _fault(fault: Fault, *, apart: bool) -> dict[str, Any]:
    told = {name: getattr(fault, name) for name in _OF_FAULT} | ({"apart": True} if apart else {})
    return told | ({"frames": [asdict(frame) for frame in fault.frames]} if fault.frames else {})


def missing_of(faults: Iterable[dict[str, Any]], arm: str) -> list[dict[str, Any]]:
    """The faults of an arm, as a summary has them, on tasks that its figures are about.

    A fault that names no arm, as in older files, is one of every arm.
    """
    own = (fault for fault in faults if fault.get("arm", fault.get("solver")) in (arm, None))
    return [fault for fault in own if not fault.get("apart")]


def _result(experiment: Experiment, cluster: str) -> Result:
    taken = {name: getattr(experiment, name) for name in _TAKEN}
    taken |= {name: sys.intern(taken[name]) for name in _WORDS}
    taken["reused_calls"] = sum(map(len, experiment.reused.values()))
    usual = {"resources": None, "untold": (), ANSWER: UNSET}
    taken |= {name: experiment.facts.get(name, default) for name, default in usual.items()}
    return Result(**taken, tokens=experiment.tokens_in + experiment.tokens_out, cluster=cluster)


def compare_modes(
    arms: Mapping[str, ArmResults], compared: Sequence[str] = USUAL
) -> Comparison | None:
    """The second of the arms `compared` against the first; None if one of them is missing."""
    first, second = compared
    if not arms.keys() >= {first, second}:
        return None
    before, after = (
        {(result.problem_id, result.sample): result for result in arms[name].results}
        for name in (first, second)
    )
    pairs = [(before[key], after[key]) for key in before if key in after]
    n = len(pairs)
    outcomes = Counter((a.success, b.success) for a, b in pairs)
    cost = math.fsum(b.cost - a.cost for a, b in pairs)
    return Comparison(
        problems=n,
        success_rate_improvement=100 * sum(b.success - a.success for a, b in pairs) / n
        if n
        else None,
        cost_difference=cost,
        avg_cost_difference=cost / n if n else 0.0,
        iteration_difference=sum(b.iterations - a.iterations for a, b in pairs) / n if n else None,
        both_passed=outcomes[True, True],
        only_zero_shot=outcomes[True, False],
        only_iterative=outcomes[False, True],
        neither=outcomes[False, False],
        arms=(first, second),
    )


def _paid(total: float, judged: Iterable[Result], faults: Iterable[Fault]) -> dict[str, float]:
    results = math.fsum(result.cost for result in judged)
    faulted = math.fsum(f.cost for f in faults)
    return {
        "total": total,
        "results": results,
        "faults": faulted,
        "unfinished": max(0.0, round(total - results - faulted, 12)),
    }
