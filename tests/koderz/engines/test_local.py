"""Who works at once on this machine: as many as --concurrency, each from its first call to its last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.suites.suite import JudgeContext
from koderz.testing import FakeModel, a_model
from koderz.types import Message, Reply, Sampling, Task, Verdict
from tests.conftest import PATIENCE
from tests.koderz.world import Crowded, Run, Words, begun, planned


@dataclass
class Patient(Words):
    """A judge that says nothing until so many verdicts are waited for."""

    until: int = 1
    waiting: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        self.waiting += 1
        if self.waiting >= self.until:
            self.enough.set()
        await self.enough.wait()
        return await super().judge(task, answer, context)


def carried_out(folder: Path, model: FakeModel, n: int, *, judged_after: int, **settings: Any) -> Run:
    async def go() -> Run:
        plan = await planned(folder, n, **settings)
        async with asyncio.timeout(PATIENCE):
            return await begun(replace(plan, suite=Patient(plan.tasks, until=judged_after)), model)

    return asyncio.run(go())


def with_solver(folder: Path, source: str, n: int, *, judged_after: int = 1) -> Run:
    (folder / "own.py").write_text(source)
    solver = f"{folder / 'own.py'}:solve"
    return carried_out(folder, a_model("GOOD"), n, judged_after=judged_after, solver=solver, concurrency=1)


def most_at_work(run: Run) -> int:
    """How many tasks were between their first call and their last at once, by the order of lines."""
    calls = [line.experiment_id for line in run.of("call")]
    last = {experiment: place for place, experiment in enumerate(calls)}
    at_work, most = set[str](), 0
    for place, experiment in enumerate(calls):
        at_work.add(experiment)
        most = max(most, len(at_work))
        if last[experiment] == place:
            at_work.remove(experiment)
    return most


def test_calls_go_on_while_verdicts_are_waited_for(tmp_path: Path) -> None:
    model = Crowded(crowd=2)

    run = carried_out(tmp_path, model, 12, judged_after=12, concurrency=2)

    assert (run.ended.status, run.summary.summary.successes) == ("complete", 12)
    assert model.most_at_once == 2


def test_concurrency_counts_tasks_between_first_and_last_call(tmp_path: Path) -> None:
    run = carried_out(tmp_path, a_model("BAD"), 8, judged_after=2, mode="iterative", max_iterations=2, concurrency=2)

    assert (run.ended.status, len(run.of("call"))) == ("complete", 16)
    assert most_at_work(run) == 2


def test_concurrency_holds_for_judging_of_undeclared_solvers(tmp_path: Path) -> None:
    source = """
async def solve(task, ask, judge):
    return await judge(task, await ask(task.messages))
"""

    run = with_solver(tmp_path, source, 5)

    lines = [(line.kind, line.experiment_id) for line in run.lines if line.kind in ("call", "attempt")]
    assert [kind for kind, _ in lines] == ["call", "attempt"] * 5
    assert [one for _, one in lines[::2]] == [one for _, one in lines[1::2]]


def test_concurrency_counts_a_solvers_own_work(tmp_path: Path) -> None:
    source = """
import asyncio

at_once = 0

async def solve(task, ask, judge, once):
    async def measured():
        global at_once
        at_once += 1
        most = at_once
        await ask(task.messages)
        await asyncio.sleep(0.001)
        most = max(most, at_once)
        at_once -= 1
        return most
    return await judge(task, "GOOD" if await once("alone", measured) == 1 else "BAD")
"""

    run = with_solver(tmp_path, source, 5)

    assert run.summary.summary.successes == 5


def test_concurrency_counts_simultaneous_asks_of_a_solver_once(tmp_path: Path) -> None:
    source = """
import asyncio

async def solve(task, ask, judge):
    replies = await asyncio.gather(*(ask(task.messages, seed=seed) for seed in range(3)))
    await asyncio.gather(*(judge(task, reply) for reply in replies))
    return await judge(task, await ask(task.messages, seed=3))
"""

    run = with_solver(tmp_path, source, 5, judged_after=3)

    assert (run.ended.status, run.summary.summary.successes) == ("complete", 5)


def test_concurrency_place_of_a_restarting_solver_is_kept_to_its_end(tmp_path: Path) -> None:
    source = """
at_once = 0

async def solve(task, ask, judge):
    global at_once
    at_once += 1
    most = at_once
    verdict = await judge(task, await ask(task.messages))
    most = max(most, at_once)
    at_once -= 1
    return verdict if most == 1 else await judge(task, "BAD")

solve.resume = "restart"
"""

    run = with_solver(tmp_path, source, 5)

    assert run.summary.summary.successes == 5


def test_stop_begins_none_that_wait_for_a_place(tmp_path: Path) -> None:
    stop: list[Callable[[], None]] = []

    def third(messages: Sequence[Message], sampling: Sampling) -> str:
        if len(model.asked) == 3:
            stop[0]()
        return "GOOD"

    model = a_model(third)

    async def go() -> Run:
        plan = await planned(tmp_path, 9, concurrency=1)
        return await begun(plan, model, started=lambda run: stop.append(lambda: run.stop("stopped", "enough")))

    run = asyncio.run(go())

    assert (run.ended.status, len(model.asked), len(run.of("experiment"))) == ("stopped", 3, 3)
