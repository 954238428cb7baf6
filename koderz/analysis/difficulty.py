"""The difficulty of tasks across runs, the disagreement of samples, and the models that solve each."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from koderz.analysis.blocks import Block, Heading, Table, Text
from koderz.analysis.measures import (
    SUCCESS,
    headline_measure,
    measure_named,
    named_average,
    shown,
    value_of,
)
from koderz.analysis.pairs import Side, told_apart
from koderz.analysis.runs import bounds_of
from koderz.errors import KoderzError
from koderz_tracker.breakdown import mean_of
from koderz_tracker.rates import WILSON, beta_quantile, wilson
from koderz_tracker.records import Measure
from koderz_tracker.results import Result
from koderz_tracker.sequential import STOPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One task over all runs. Rates are per cent."""

    problem_id: str
    success_rate: float
    # 95 %, over experiments; None where one is of a run that stops once decided
    interval: tuple[float, float] | None
    interval_method: str = WILSON  # without an interval, why
    successes: int
    experiments: int
    runs: int
    # 0: samples agree; 1: a coin's, on average; None: nowhere several samples
    flakiness: float | None
    # 95 %, from 0 to 1, which the estimate may exceed
    flakiness_interval: tuple[float, float] | None = None
    solved_by: Sequence[str]  # models that passed it at least once
    unsolved_by: Sequence[str]
    avg_iterations: float
    avg_cost: float  # US dollars an experiment
    mean: float | None  # of the measure, in its unit; None where no result has it
    suite: str = ""  # that it is of
    faults: int = 0  # experiments that could not be judged, which the rate leaves out
    # with its faults all failed, all passed; None without any
    success_rate_bounds: tuple[float, float] | None = None


def difficulty(sides: Sequence[Side], measure: Measure = SUCCESS) -> list[Problem]:
    """The tasks of these arms, hardest first: by the measure, then by an experiment's cost, then by name.

    Tasks that have nothing of the measure come last. Raises KoderzError where there are no results at all.
    """
    tasks: dict[tuple[str, str], list[tuple[Side, Result]]] = defaultdict(list)
    faults = Counter(
        (side.run.suite, str(fault.get("problem_id"))) for side in sides for fault in side.missing
    )
    for side, result in told_apart(sides):
        tasks[side.run.suite, result.problem_id].append((side, result))
    if not tasks:
        raise KoderzError("these runs have no results yet")
    problems = [_problem(key, judged, faults[key], measure) for key, judged in tasks.items()]
    sign = 1 if measure.direction == "higher" else -1

    def hardness(problem: Problem) -> tuple[float | str, ...]:
        by_measure = math.inf if problem.mean is None else sign * problem.mean
        return by_measure, -problem.avg_iterations, -problem.avg_cost, problem.problem_id

    return sorted(problems, key=hardness)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The tasks of one suite, hardest first by a measure."""

    suite: str
    measure: Measure
    passed: str  # what is said of experiments that pass; empty where they neither pass nor fail
    problems: Sequence[Problem]


def rankings(sides: Sequence[Side], measure: str | None = None) -> list[Ranking]:
    """The rankings of suites, by the measure of that name, else by each suite's headline measure.

    Arms that have nothing of the latter, such as an unchanged baseline, are left out. Raises KoderzError where there
    are no results at all, or no measure of that name.
    """
    suites: dict[str, list[Side]] = defaultdict(list)
    for side in sides:
        if side.results:
            suites[side.run.suite].append(side)
    if not suites:
        raise KoderzError("these runs have no results yet")
    by = measure_named(measure, [side.run for side in sides]) if measure else None
    found = []
    for suite, own in suites.items():
        run = own[-1].run
        of_suite = by or headline_measure(run)
        having = [side for side in own if side.mean(of_suite)] or own
        found.append(Ranking(suite, of_suite, run.headline.passed, difficulty(having, of_suite)))
    return found


def ranking_blocks(found: Sequence[Ranking], limit: int) -> Iterator[Block]:
    """A table for each suite, with its name if there are several."""
    for ranking in found:
        if len(found) > 1:
            yield Heading(ranking.suite)
        yield from difficulty_blocks(
            ranking.problems, limit, ranking.measure, passed=bool(ranking.passed)
        )


def flakiness(outcomes: Sequence[bool]) -> float:
    """The disagreement of samples of one task: the variance of one outcome, scaled to 1 for a coin.

    It is unbiased: a coin comes to 1 on average, however often it is tried, so that single values may
    be as high as 2. One sample disagrees with nothing, so its flakiness is 0.
    """
    size, passed = len(outcomes), sum(outcomes)
    if size < 2:
        return 0.0
    # 4p(1 - p) of the samples' own share p is too low by the factor 1 - 1/size: p lies nearer to them
    # than the truth does. Dividing by size - 1 in place of size makes up for it.
    return 4 * passed * (size - passed) / (size * (size - 1))


def flakiness_of(arms: Sequence[Sequence[bool]]) -> tuple[float, tuple[float, float]] | None:
    """The flakiness of a task over arms, each weighted by its samples less one, and its 95 % interval.

    The weights are those of a pooled variance: 20 samples tell more of it than 2. An arm's limits are what Clopper &
    Pearson's of its rate come to, which hold it at every rate; those of several arms are added, which is rather too
    wide. None without an arm of several samples.
    """
    several = [outcomes for outcomes in arms if len(outcomes) > 1]
    if not several:
        return None
    estimate, lowest, highest = 0.0, 0.0, 0.0
    for outcomes in several:
        weight = (len(outcomes) - 1) / sum(len(each) - 1 for each in several)
        size, passed = len(outcomes), sum(outcomes)
        low = beta_quantile(0.025, passed, size - passed + 1) if passed else 0.0
        high = beta_quantile(0.975, passed + 1, size - passed) if passed < size else 1.0
        ends = 4 * low * (1 - low), 4 * high * (1 - high)
        estimate += weight * flakiness(outcomes)
        lowest += weight * min(ends)
        highest += weight * (1.0 if low <= 0.5 <= high else max(ends))
    return estimate, (lowest, highest)


def difficulty_blocks(
    problems: Sequence[Problem],
    limit: int | None = None,
    measure: Measure = SUCCESS,
    *,
    passed: bool = True,
) -> Iterator[Block]:
    """A table, and a note on omitted rows. `passed`: whether experiments pass or fail."""
    listed = problems if limit is None else problems[:limit]
    rows = [_cells(problem, measure, passed=passed) for problem in listed]
    if passed and any(problem.faults for problem in listed):
        for row, problem in zip(rows, listed, strict=True):
            row["Faults failed to passed"] = bounds_of(problem.success_rate_bounds)
    optional = [head for head in ("Runs", "Avg cost", "Avg iter.", "95% Wilson") if head in rows[0]]
    yield Table(list(rows[0]), [list(row.values()) for row in rows], optional=optional)
    if passed:
        never = sum(not problem.successes for problem in problems)
        always = sum(problem.successes == problem.experiments for problem in problems)
        yield Text(f"{len(problems)} tasks: {never} never solved, {always} always.")
    if len(listed) < len(problems):
        yield Text(f"The {len(listed)} hardest are shown; --limit {len(problems)} shows all.")


def _problem(
    key: tuple[str, str], judged: Sequence[tuple[Side, Result]], faults: int, measure: Measure
) -> Problem:
    """The figures of one task, `key` being its suite and name."""
    suite, task = key
    results = [result for _, result in judged]
    values = [value for result in results if (value := value_of(result, measure.name)) is not None]
    n, successes = len(results), sum(result.success for result in results)
    low, high = wilson(successes, n)
    stops = any(side.run.until_decided for side, _ in judged)
    models = dict.fromkeys(side.model for side, _ in judged)
    solvers = dict.fromkeys(side.model for side, result in judged if result.success)
    # differences between arms don't make a task flaky
    arms: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for side, result in judged:
        arms[str(side.run.path), side.arm].append(result.success)
    flaky = flakiness_of([*arms.values()])
    return Problem(
        problem_id=task,
        success_rate=100 * successes / n,
        interval=None if stops else (100 * low, 100 * high),
        interval_method=STOPS if stops else WILSON,
        successes=successes,
        experiments=n,
        runs=len({side.run.path for side, _ in judged}),
        flakiness=flaky and flaky[0],
        flakiness_interval=flaky[1] if flaky and not stops else None,
        solved_by=list(solvers),
        unsolved_by=[model for model in models if model not in solvers],
        avg_iterations=sum(result.iterations for result in results) / n,
        avg_cost=sum(result.cost for result in results) / n,
        mean=mean_of({task: values}, measure).mean if values else None,
        suite=suite,
        faults=faults,
        success_rate_bounds=(
            100 * successes / (n + faults),
            100 * (successes + faults) / (n + faults),
        )
        if faults
        else None,
    )


def _cells(problem: Problem, measure: Measure, *, passed: bool) -> dict[str, str]:
    """The cells of a problem's row, by column head."""
    cells = {"Task": problem.problem_id}
    if measure.name not in (SUCCESS.name, "iterations", "cost"):
        cells[named_average(measure)] = "" if problem.mean is None else shown(problem.mean, measure)
    if passed:
        cells["Success rate"] = (
            f"{problem.success_rate:.1f}% ({problem.successes}/{problem.experiments})"
        )
        cells["95% Wilson"] = (
            "{:.1f}% to {:.1f}%".format(*problem.interval) if problem.interval else ""
        )
    cells["Runs"] = str(problem.runs)
    if passed:
        limits = (
            " ({:.2f} to {:.2f})".format(*problem.flakiness_interval)
            if problem.flakiness_interval
            else ""
        )
        cells["Flaky"] = "" if problem.flakiness is None else f"{problem.flakiness:.2f}{limits}"
    cells |= {"Avg iter.": f"{problem.avg_iterations:.1f}", "Avg cost": f"${problem.avg_cost:.5f}"}
    return cells | ({"Solved by": ", ".join(problem.solved_by) or "none"} if passed else {})
