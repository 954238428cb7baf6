"""The verdict on what an arm gives its agent: its difference, its costs, and how often it was used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from koderz.analysis.comparison import named_tasks
from koderz.cli.console import counted
from koderz.systems.rollouts.use import USED
from koderz_tracker.decisions import Told, each_of
from koderz_tracker.rates import Interval
from koderz_tracker.records import PASSES
from koderz_tracker.results import Result
from koderz_tracker.summary import Summary, missing_of

_WORDS = {"helps": "It helps", "harms": "It harms", "similar": "It makes no difference that matters"}
_OPEN = "It is not shown to help or to harm"
_WHY = {
    "futile": "what is left would hardly show a difference",
    "money": "the cost cap is reached",
    "tasks": "no task is left",
}


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """The rollouts of an arm on the tasks that were counted. Averages are of a rollout."""

    label: str  # what it gives its agent, such as `with sql-style`
    rollouts: int
    passed: int
    missing: int  # rollouts that couldn't be judged
    cost: float | None  # US dollars; None: a price is unknown
    seconds: float
    turns: float  # requests to the model
    tokens: float
    used: Mapping[str, int]  # rollouts that used each thing whose use can be told
    passed_of_used: int  # of the rollouts that used any
    used_any: int


@dataclass(frozen=True)
class Verdict:
    """The comparison of one arm with the arm that others are compared with. Differences are B less A."""

    a: ArmFigures
    b: ArmFigures
    decision: Told
    gained: Sequence[str]  # tasks that B passes oftener
    lost: Sequence[str]  # tasks that A passes oftener
    bounds: Interval | None  # of the difference, with missing rollouts at their worst and best; None: none is missing
    rollouts: int  # of both arms, up to the decision
    planned: int  # rollouts of both arms

    @cached_property
    def outcome(self) -> str:
        """`helps`, `harms`, `similar`, or `open` where nothing is shown."""
        if self.decision["outcome"] != "shown":
            return "similar" if self.decision["outcome"] == "similar" else "open"
        return "helps" if sum(self._interval) > 0 else "harms"

    @property
    def _interval(self) -> Interval:
        """The interval, whatever missing rollouts would have been."""
        low, high = self.decision["interval_bounds"] or self.decision["interval"]
        return low, high

    @property
    def document(self) -> Mapping[str, Any]:
        """The verdict as JSON has it."""
        told = {name: value for name, value in self.decision.items() if name != "path"}
        return {
            **told,
            "verdict": self.outcome,
            "a": {"arm": told["a"], **asdict(self.a)},
            "b": {"arm": told["b"], **asdict(self.b)},
            "gained": self.gained,
            "lost": self.lost,
            "bounds": self.bounds,
            "rollouts": self.rollouts,
            "planned_rollouts": self.planned,
        }

    def lines(self, title: str = "") -> Iterator[str]:
        """The verdict in sentences, with a title before it."""
        decision = self.decision
        after = f"after {self.rollouts:,} of {self.planned:,} rollouts"
        if decision["difference"] is None:
            yield f"{title}{_OPEN}: no task was judged in both arms {after}."
            return
        unit = "points" if decision["measure"] == PASSES else f"of {decision['measure']}"
        low, high = self._interval
        why = f", since {_WHY[decision['outcome']]}" if decision["outcome"] in _WHY else ""
        b, a = (f"({each.label}) passes {each.passed:,} of {each.rollouts:,}" for each in (self.b, self.a))
        yield (
            f"{title}{_WORDS.get(self.outcome, _OPEN)}: B {b}, A {a}: {decision['difference']:+.1f} {unit} "
            f"({100 * (1 - decision['alpha']):.4g} %, valid at any stop, {low:.1f} to {high:.1f}). "
            f"{'Stopped' if why else 'Decided'} {after}{why}."
        )
        yield from self._of_missing()
        yield from (line for arm, name in ((self.b, "B"), (self.a, "A")) for line in _of_use(arm, name))
        yield f"Gained {_tasks(self.gained)}. Lost {_tasks(self.lost)}."
        yield self._of_costs()

    def _of_missing(self) -> Iterator[str]:
        if self.bounds is None:
            return
        low, high = self.bounds
        yield (
            f"{self.a.missing} rollouts of A and {self.b.missing} of B could not be judged: with them at their worst "
            f"or best the difference is {low:+.1f} to {high:+.1f}. The interval holds whatever they would have been."
        )

    def _of_costs(self) -> str:
        known = self.a.cost is not None and self.b.cost is not None
        cost = f"{_signed((self.b.cost or 0) - (self.a.cost or 0), '$', 3)}" if known else "unknown, since a price is"
        return (
            f"Cost {cost} a rollout, time {_signed(self.b.seconds - self.a.seconds, '', 1)} s, turns "
            f"{_signed(self.b.turns - self.a.turns, '', 1)}, tokens {_signed(self.b.tokens - self.a.tokens, '', 0)}: "
            "averages, about which nothing is claimed."
        )


def verdicts_of(summary: Summary, labels: Sequence[str]) -> list[Verdict]:
    """The verdict on each arm of a run that has come to a decision. `labels`: of its arms, in the order of the plan."""
    named = dict(zip(summary.arms, labels, strict=True))
    return [_verdict(summary, decision, named) for decision in each_of(summary.decision)]


def _verdict(summary: Summary, decision: Told, labels: Mapping[str, str]) -> Verdict:
    about = summary.until_decided
    assert about, "only runs that stop once they are decided come to a decision"
    names = decision["a"], decision["b"]
    results = [_by_task(summary.arms[name].results) for name in names]
    faults = [Counter(str(each["problem_id"]) for each in missing_of(summary.faults, name)) for name in names]
    planned = {
        task: [about.samples.get(name, {}).get(task, 0) if about.samples else 1 for name in names]
        for task in about.order
    }
    planned = {task: wanted for task, wanted in planned.items() if all(wanted)}
    whole, ends = list[str](), dict[str, Interval]()
    missing = [0, 0]
    for task, wanted in planned.items():
        judged = [own.get(task, []) for own in results]
        gone = [count - len(own) for own, count in zip(judged, wanted, strict=True)]
        if any(count > own[task] for count, own in zip(gone, faults, strict=True)):
            continue  # a rollout may yet end
        # Beyond the last task that was counted, a fault kept its place only where the run had no task left.
        if len(whole) == decision["tasks"] and (not any(gone) or decision["outcome"] not in ("tasks", "money")):
            break
        whole += [task] * (not any(gone))
        a, b = (_span(own, count) for own, count in zip(judged, wanted, strict=True))
        ends[task] = b[0] - a[1], b[1] - a[0]
        missing = [total + more for total, more in zip(missing, gone, strict=True)]
    means = [{task: fmean(result.success for result in own[task]) for task in whole} for own in results]
    bounds = (100 * fmean(low for low, _ in ends.values()), 100 * fmean(high for _, high in ends.values()))
    of_a, of_b = (
        _figures(labels[name], [result for task in whole for result in own[task]], gone)
        for name, own, gone in zip(names, results, missing, strict=True)
    )
    return Verdict(
        of_a,
        of_b,
        decision,
        sorted(task for task in whole if means[1][task] > means[0][task]),
        sorted(task for task in whole if means[1][task] < means[0][task]),
        bounds if any(missing) else None,
        sum(sum(planned[task]) for task in ends),
        sum(map(sum, planned.values())),
    )


def _by_task(results: Iterable[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.problem_id, []).append(result)
    return found


def _span(results: Sequence[Result], planned: int) -> Interval:
    """The share that passes, with missing rollouts failed, and passed."""
    passed = sum(result.success for result in results)
    return passed / planned, (passed + planned - len(results)) / planned


def _figures(label: str, results: Sequence[Result], missing: int) -> ArmFigures:
    uses: list[Mapping[str, bool]] = [result.facts.get(USED) or {} for result in results]
    names = dict.fromkeys(name for each in uses for name in each)
    any_used = [result.success for result, use in zip(results, uses, strict=True) if any(use.values())]

    def average(values: Iterable[float]) -> float:
        return fmean(found) if (found := [*values]) else 0.0

    return ArmFigures(
        label,
        len(results),
        sum(result.success for result in results),
        missing,
        average(result.cost for result in results) if all(result.cost_known for result in results) else None,
        average(result.duration_seconds for result in results),
        average(result.calls for result in results),
        average(result.tokens_in + result.tokens_out for result in results),
        {name: sum(bool(each.get(name)) for each in uses) for name in names},
        sum(any_used),
        len(any_used),
    )


def _of_use(arm: ArmFigures, letter: str) -> Iterator[str]:
    """Lines on how often an arm used what it has, and on what a split by use is worth."""
    if not arm.used:
        return
    each = ", ".join(f"{name} in {count:,}" for name, count in arm.used.items())
    yield f"{letter} used {each} of {counted(arm.rollouts, 'rollout')}."
    if not arm.used_any:
        yield "What is never used can't be what makes the difference."
    elif arm.used_any < arm.rollouts:
        others = arm.rollouts - arm.used_any
        yield (
            f"Of those that used it {100 * arm.passed_of_used / arm.used_any:.0f} % passed, of the others "
            f"{100 * (arm.passed - arm.passed_of_used) / others:.0f} %, which is no experiment: "
            "an agent uses it where its task calls for it."
        )


def _tasks(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'task')}: {named_tasks(names)}" if names else "none"


def _signed(value: float, unit: str, digits: int) -> str:
    return f"{'−' if value < 0 else '+'}{unit}{abs(value):,.{digits}f}"
