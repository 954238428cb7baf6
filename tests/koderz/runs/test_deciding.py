"""A run that stops once it is decided: what it counts, how far it goes ahead, and what it does about faults."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from msgspec import structs

from koderz.errors import Fault, KoderzError
from koderz.models import Price
from koderz.plans.plan import Plan
from koderz.runs.deciding import ArmsCompared, Decider, ExperimentOutcomes, TaskPair, recorded_outcomes
from koderz.runs.orchestrator import Orchestrator
from koderz.testing import FakeModel
from koderz.testing.factories import Line
from koderz.types import Completion, Message, Sampling
from koderz_tracker.basis import UntilDecided
from koderz_tracker.index import index_path
from koderz_tracker.journal import NAME
from koderz_tracker.records import PASSES, Decision, Record
from koderz_tracker.stopping import StoppingRule, decide_pairs
from tests.koderz.world import Run, begun, good, planned, resumed

A, B = "a", "b"
PRICE = Price(1000, 1000)


def number_of(messages: Sequence[Message]) -> int:
    (number,) = map(int, re.findall(r"def f(\d+)\(\)", str(messages[-1]["content"])))
    return number


@dataclass
class Knowing(FakeModel):
    """A model that passes some tasks, and falls ill on others as often as they say."""

    line: Line = good
    passes: Callable[[int], bool] = lambda number: True
    faults: dict[int, int] = field(default_factory=dict)  # by task
    paid: float = 0.0  # US dollars a call

    def __post_init__(self) -> None:
        self.line = lambda messages, sampling: Completion(
            "GOOD" if self.passes(number_of(messages)) else "BAD", tokens_in=10, tokens_out=5, cost=self.paid
        )

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Any:
        number = number_of(messages)
        if self.faults.get(number, 0):
            self.faults[number] -= 1
            self.asked.append((tuple(messages), sampling))
            raise Fault("it is ill")
        return await super().complete(messages, sampling)

    @property
    def tasks(self) -> list[int]:
        """The tasks that it was asked, in order."""
        return [number_of(messages) for messages, _ in self.asked]


async def comparing(folder: Path, n: int = 40, *, models: Sequence[str] = (A, B), **settings: Any) -> Plan:
    """A plan of models that are asked until it is decided."""
    given = {"until_decided": "first", "local_model": models[0], "models": models, **settings}
    return await planned(folder, n, **given)


def decided(folder: Path, a: Knowing, b: Knowing, n: int = 40, **settings: Any) -> Run:
    async def go() -> Run:
        return await begun(await comparing(folder, n, **settings), {A: a, B: b})

    return asyncio.run(go())


def order_of(run: Run) -> list[int]:
    (plan,) = run.of("plan")
    return [int(task.removeprefix("T/")) for task in plan.until_decided.order]


def never(number: int) -> bool:
    return False


def half(number: int) -> bool:
    return number % 2 == 0


def test_decision_ends_a_run_at_the_first_task_that_shows_a_difference(tmp_path: Path) -> None:
    a, b = Knowing(passes=never), Knowing()

    run = decided(tmp_path, a, b, concurrency=1)

    (decision,) = run.of("decision")
    assert (decision.outcome, decision.tasks, decision.difference) == ("shown", 8, 100)
    assert run.ended.status == "decided"
    assert a.tasks[:8] == b.tasks[:8] == order_of(run)[:8]
    assert len(a.tasks) + len(b.tasks) <= 18  # calls go on while a program is judged


def test_decision_is_of_the_seed_and_not_of_the_order_of_the_suite(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / str(n)).mkdir()
    orders = [
        order_of(decided(tmp_path / str(n), Knowing(), Knowing(), n=9, seed=seed)) for n, seed in enumerate((1, 1, 2))
    ]

    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == [*range(9)] != orders[0]


@dataclass
class Stuck(Knowing):
    """A model that doesn't answer one task until nobody asks it anything else."""

    task: int = 0
    others: int = 0  # that it was asked meanwhile

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Any:
        if number_of(messages) == self.task:
            before = -1
            while before < len(self.asked):
                before = len(self.asked)
                await asyncio.sleep(0.3)
            self.others = len(self.asked)
        return await super().complete(messages, sampling)


@pytest.mark.parametrize("samples", [1, 3])
async def test_run_to_be_decided_is_not_far_ahead_of_its_first_open_task(tmp_path: Path, samples: int) -> None:
    plan = await comparing(tmp_path, 60, concurrency=4, samples=samples)
    assert plan.record.until_decided
    b = Stuck(task=int(plan.record.until_decided.order[2].removeprefix("T/")))
    run = await begun(plan, {A: Knowing(), B: b})
    assert 0 < b.others <= 3 * samples + 3 * 4 / 2 + samples
    assert run.summary.decision
    assert run.summary.decision["outcome"] == "futile"


def test_fault_is_tried_once_more_at_once_and_then_left_out(tmp_path: Path) -> None:
    b = Knowing(passes=half, faults={3: 1, 5: 9, 8: 2})

    run = decided(tmp_path, Knowing(passes=half), b, n=12, concurrency=1)

    (decision,) = run.of("decision")
    assert (decision.outcome, decision.tasks, decision.left_out) == ("tasks", 10, {f"zero-shot · {B}": 2})
    assert decision.interval_bounds[0] < decision.interval[0] < 0 < decision.interval[1] < decision.interval_bounds[1]
    assert {task: b.tasks.count(task) for task in range(12)} == {task: 1 + (task in (3, 5, 8)) for task in range(12)}
    for task in (3, 5, 8):
        first = b.tasks.index(task)
        assert task in b.tasks[first + 1 : first + 4]  # a call or two are under way meanwhile
    assert run.ended.status == "incomplete"
    assert sorted(fault.problem_id for fault in run.of("fault")) == ["T/3", "T/5", "T/5", "T/8", "T/8"]


def test_model_that_faults_where_it_would_fail_is_not_shown_to_be_better(tmp_path: Path) -> None:
    """Both pass 24 of 40 tasks; of those that B doesn't fault on, it passes all, and ten that A fails."""
    ill = {n: 9 for n in range(40) if n % 5 > 2}
    a, b = Knowing(passes=lambda n: n % 5 < 1 or 19 < n < 36), Knowing(faults=ill)

    run = decided(tmp_path, a, b)

    (decision,) = run.of("decision")
    assert decision.e_value > 1 / decision.alpha
    assert decision.outcome == "tasks"
    assert decision.interval[0] > 0 > decision.interval_bounds[0]


def test_order_of_counted_tasks_is_that_of_the_plan_whatever_faults(tmp_path: Path) -> None:
    """The first task faults once for B; it is counted first all the same."""
    run = decided(tmp_path, Knowing(passes=never), Knowing(faults=dict.fromkeys(range(40), 1)), concurrency=2)

    (decision,) = run.of("decision")
    assert (decision.outcome, decision.tasks, decision.left_out) == ("shown", 8, {})
    counted = {f"T/{task}" for task in order_of(run)[:8]}
    assert counted <= {experiment.problem_id for experiment in run.of("experiment")}


def test_faults_that_are_tried_again_are_left_out_however_many(tmp_path: Path) -> None:
    ill = {n: 9 for n in range(40) if n % 2}

    run = decided(tmp_path, Knowing(passes=half), Knowing(passes=half, faults=ill), concurrency=1, min_tasks=40)

    (decision,) = run.of("decision")
    assert (decision.outcome, decision.tasks, [*decision.left_out.values()]) == ("tasks", 20, [20])


def test_interrupted_run_that_is_decided_meanwhile_says_so(tmp_path: Path) -> None:
    found: list[Orchestrator] = []

    def observe(record: Record) -> None:
        if record.kind == "experiment" and len(found[0].plan.arms) * 8 - 1 == next(ended):
            found[0].stop("interrupted", "interrupted")

    async def go() -> Run:
        plan = await comparing(tmp_path, 40, concurrency=4)
        return await begun(plan, {A: Knowing(passes=never), B: Knowing()}, started=found.append, observe=observe)

    ended = count(1)
    run = asyncio.run(go())
    assert (run.ended.status, run.ended.was_called_off) == ("decided", True)
    assert run.summary.status == "decided"


def test_fault_that_passes_at_its_second_try_leaves_nothing_out(tmp_path: Path) -> None:
    run = decided(tmp_path, Knowing(passes=half), Knowing(passes=half, faults={3: 1}), n=12)

    (decision,) = run.of("decision")
    assert (decision.outcome, decision.tasks, decision.left_out) == ("tasks", 12, {})
    assert run.ended.status == "complete"


def test_claim_holds_whatever_the_pairs_left_out_would_have_been(tmp_path: Path) -> None:
    """A fails all tasks, so that even B's failures would leave the claim as it is."""
    run = decided(tmp_path, Knowing(passes=never), Knowing(faults={3: 2, 5: 2}), n=10, min_tasks=8, seed=1)

    (decision,) = run.of("decision")
    assert (decision.outcome, decision.tasks, decision.left_out) == ("shown", 8, {f"zero-shot · {B}": 2})
    assert decision.holds
    assert 0 < decision.interval_bounds[0] < decision.interval[0]


def test_decision_is_the_same_from_every_tenth_line_of_its_journal(tmp_path: Path) -> None:
    def models() -> dict[str, Knowing]:
        return {A: Knowing(passes=half), B: Knowing(faults={7: 9, 9: 9})}

    async def whole() -> tuple[Plan, Run]:
        plan = await comparing(tmp_path, 24, min_tasks=22, concurrency=3)
        return plan, await begun(plan, models())

    plan, run = asyncio.run(whole())
    (right,) = run.of("decision")
    journal = (run.folder / NAME).read_bytes().splitlines(keepends=True)
    assert len(journal) > 100
    for at in range(10, len(journal), 10):
        folder = tmp_path / f"killed-{at}" / run.folder.name
        shutil.copytree(run.folder, folder)
        (folder / NAME).write_bytes(b"".join(journal[:at]))
        index_path(folder / NAME).unlink(missing_ok=True)
        (found,) = asyncio.run(resumed(folder, plan, models())).of("decision")
        assert structs.replace(found, time=right.time) == right


def compared(units: Sequence[Sequence[tuple[int, int]]], planned: int) -> Decision:
    """The decision on clusters, each with A's and B's success on its tasks."""
    pairs, found, numbers = list[list[TaskPair]](), ExperimentOutcomes(PASSES), count()
    for unit in units:
        pairs.append([])
        for passed in unit:
            a, b = next(numbers), next(numbers)
            found.values |= {a: float(passed[0]), b: float(passed[1])}
            pairs[-1].append(TaskPair(f"T/{a}", {A: [a], B: [b]}, A, B))
    comparison = ArmsCompared((A, B), pairs, UntilDecided(arm=A, order=()), StoppingRule(planned), (0.0, 1.0))
    outcome = comparison.advance(found)
    assert outcome
    return comparison.ended(outcome)


def test_decision_weighs_tasks_and_not_clusters() -> None:
    """B is better on 36 texts with one question, and A on 12 with 25, which are most of the questions."""
    small, large = [(0, 1)], [*[(1, 0)] * 4, *[(1, 1)] * 11, *[(0, 0)] * 10]

    decision = compared([large, small, small, small] * 12, planned=1)  # which is never futile

    assert decision.outcome == "tasks"
    assert (decision.a_mean, decision.b_mean) == (100 * 180 / 336, 100 * 168 / 336)
    assert decision.difference == pytest.approx(100 * -12 / 336)
    assert decision.interval
    assert decision.interval[0] < 100 * -12 / 336 < decision.interval[1] < 50


def test_decision_of_clusters_of_one_size_is_exactly_that_of_their_means() -> None:
    drawn = random.Random(8)
    units = [[(int(drawn.random() < 0.3), int(drawn.random() < 0.8)) for _ in range(3)] for _ in range(60)]

    found = compared(units, planned=60)
    right = decide_pairs([fmean(float(b - a) for a, b in unit) for unit in units])

    assert (found.outcome, len(found.path), found.e_value) == (right.outcome, right.tasks, right.e_value)
    assert found.interval == tuple(100 * limit for limit in right.interval)
    assert [(e, low) for _, e, low, _ in found.path] == [(point.e_value, 100 * point.low) for point in right.path]


def test_cap_ends_a_run_undecided_and_a_higher_one_decides_it(tmp_path: Path) -> None:
    def models() -> dict[str, Knowing]:
        return {A: Knowing(passes=never, cost=PRICE, paid=0.015), B: Knowing(cost=PRICE, paid=0.015)}

    async def go(**settings: Any) -> tuple[Plan, Run]:
        plan = await comparing(tmp_path, 40, concurrency=2, max_tokens=100, **settings)
        return plan, await begun(plan, models())

    plan, stopped = asyncio.run(go(max_cost=0.42, min_tasks=20))
    (money,) = stopped.of("decision")
    assert (stopped.ended.status, money.outcome) == ("stopped", "money")
    assert 0 < money.tasks < 20
    more = replace(plan, settings=replace(plan.settings, max_cost=9.0))
    run = asyncio.run(resumed(stopped.folder, more, models()))
    assert (run.ended.status, [each.outcome for each in run.of("decision")]) == ("decided", ["money", "shown"])
    assert run.summary.decision
    assert run.summary.decision["tasks"] == 20


async def test_run_past_its_decision_asks_everything_and_decides_once(tmp_path: Path) -> None:
    plan = await comparing(tmp_path, 20)
    first = await begun(plan, {A: Knowing(passes=never), B: Knowing()})
    found = Decider(plan, recorded_outcomes(first.folder), goes_past=True)
    assert not found.leaves_rest
    assert not found.is_far_ahead
    assert not any(found.is_settled(arm.name) for arm in plan.arms)
    assert found.take(first.of("experiment")) == []
    assert Decider(plan, recorded_outcomes(first.folder)).leaves_rest


async def test_screen_shows_tasks_difference_interval_and_evidence(tmp_path: Path) -> None:
    shown: list[str] = []

    plan = await comparing(tmp_path, 20, concurrency=1)
    models = {A: Knowing(passes=never), B: Knowing()}
    found: list[Orchestrator] = []
    await begun(plan, models, started=found.append, observe=lambda _: shown.append(found[0].progress.evidence()))
    told = [*dict.fromkeys(shown)]
    assert told[0] == "no task counted yet"
    assert told[1] == "1/20 tasks, +100.0 points (-97.4 to +100.0), evidence 1 of 20"
    assert re.fullmatch(r"7/20 tasks, \+100\.0 points \(-\d\.\d to \+100\.0\), evidence 16 of 20", told[7])
    assert told[8:] in ([], ["shown after 8/20 tasks"])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"models": (A,)}, "--until-decided compares arms, and this run has one"),
        ({"until_decided": "c"}, "--until-decided c: the run has no such arm; it has zero-shot · a, zero-shot · b"),
        ({"until_decided": None, "alpha": 0.1}, "--alpha is for runs with --until-decided"),
        ({"until_decided": None, "min_tasks": 3}, "--min-tasks is for runs with --until-decided"),
    ],
)
def test_plan_to_be_decided_refuses_what_can_not_be(tmp_path: Path, settings: dict[str, Any], error: str) -> None:
    with pytest.raises(KoderzError, match=re.escape(error)):
        asyncio.run(comparing(tmp_path, 4, **settings))
