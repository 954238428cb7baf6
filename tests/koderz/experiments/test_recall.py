"""Lessons of earlier experiments reach a prompt: the right ones, as of the run's beginning, and none by default."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koderz.engines.local import LocalEngine
from koderz.errors import Fault, KoderzError
from koderz.experiments.recall import open_lessons
from koderz.experiments.replay import Replaying
from koderz.experiments.runner import Resources
from koderz.plans.plan import Plan
from koderz.runs.orchestrator import Orchestrator
from koderz.runs.prepare import prepare
from koderz.types import Message, Sampling
from koderz_tracker.memory import Draft
from koderz_tracker.memory.store import Store
from koderz_tracker.records import Once
from koderz_tracker.summary import summarize
from koderz_tracker.tracker import Tracker
from tests.koderz.world import NoSandbox, Run, Scripted, Words, bad, journal_of, planned, write_tasks

HEAD = "Earlier attempts at programming tasks failed in the same way."


def teach(folder: Path, *lessons: tuple[str, str], simulated: bool = False) -> None:
    """Puts lessons into the store as the sink does: (problem, text), all of them of failed assertions."""
    with Store(folder / "results" / "memory.db") as store:
        store.remember(
            [
                Draft(
                    title=f"Experiment of {problem}",
                    content=text,
                    tags=["result", problem, "completed"],
                    metadata={
                        "problem_id": problem,
                        "lesson": text,
                        "lesson_cause": "assertion",
                        "simulated": simulated,
                    },
                )
                for problem, text in lessons
            ]
        )


async def iterative_plan(folder: Path, n: int = 1, **settings: Any) -> Plan:
    return await planned(
        folder,
        n,
        mode="iterative",
        **{"use_memory": "other-tasks", "max_iterations": 3, "temperature": 0.5, **settings},
    )


async def performed(plan: Plan, model: Scripted, *, again: Path | None = None) -> Run:
    """A session of a plan, with the lessons that it may see."""
    async with open_lessons(plan, {}) as lessons:
        with (
            Tracker.reopen(again) if again else Tracker.create(plan.settings.results, plan.name, plan.record) as tracker
        ):
            if again:
                tracker.select(faults=True)
                await tracker.begin_session("resume", {})
            engine = LocalEngine(Resources(plan, {"scripted": model}, NoSandbox(), lessons=lessons))
            orchestrator = Orchestrator(plan, tracker, engine, how=Replaying())
            ended = await orchestrator.run()
            await tracker.finish(ended.status, ended.reason)
            return Run(ended, tracker.folder, journal_of(tracker.folder), summarize(tracker.folder))


def last_messages(model: Scripted) -> list[str]:
    return [messages[-1]["content"] for messages, _ in model.asked]


def test_lessons_of_the_same_failure_are_shown_after_a_failure(tmp_path: Path) -> None:
    teach(tmp_path, ("T/7", "lesson of seven"), ("T/0", "lesson of zero itself"))
    model = Scripted(bad)

    async def run() -> Run:
        return await performed(await iterative_plan(tmp_path), model)

    done = asyncio.run(run())

    first, second, third = last_messages(model)
    assert HEAD not in first
    assert HEAD in second
    assert "- lesson of seven" in second
    assert "lesson of zero" not in second + third
    assert [line.value for line in done.of("once")] == [["lesson of seven"]] * 2
    assert done.summary.config["use_memory"] == "other-tasks"


def test_recall_same_task_shows_lessons_of_the_task_itself(tmp_path: Path) -> None:
    teach(tmp_path, ("T/7", "lesson of seven"), ("T/0", "lesson of zero itself"))
    model = Scripted(bad)

    async def run() -> None:
        await performed(await iterative_plan(tmp_path, use_memory="same-task"), model)

    asyncio.run(run())
    assert "lesson of zero itself" in last_messages(model)[1]
    assert "lesson of seven" not in last_messages(model)[1]


@pytest.mark.parametrize("live", [False, True])
def test_recall_sees_the_store_as_of_the_start_unless_live(tmp_path: Path, live: bool) -> None:
    teach(tmp_path, ("T/7", "old lesson"))
    model = Scripted(bad)

    async def run() -> Run:
        plan = await iterative_plan(tmp_path, memory_live=live)
        teach(tmp_path, ("T/8", "new lesson"))
        return await performed(plan, model)

    done = asyncio.run(run())
    told = last_messages(model)[1]
    assert "old lesson" in told
    assert ("new lesson" in told) is live
    assert done.summary.config["memory_live"] is live


def test_recall_stays_empty_for_a_run_begun_without_a_store(tmp_path: Path) -> None:
    model = Scripted(bad)

    async def run() -> Run:
        plan = await iterative_plan(tmp_path)
        teach(tmp_path, ("T/7", "too late"))
        return await performed(plan, model)

    assert asyncio.run(run()).of("once") == []
    assert HEAD not in "".join(last_messages(model))


def test_resume_shows_the_recorded_lessons_though_the_store_changed(tmp_path: Path) -> None:
    teach(tmp_path, ("T/7", "old lesson"))
    said = 0

    def gone(messages: Sequence[Message], sampling: Sampling) -> str:
        nonlocal said
        said += 1
        if said == 2:
            raise Fault("gone")
        return "BAD"

    async def run() -> tuple[Run, Run]:
        plan = await iterative_plan(tmp_path)
        cut = await performed(plan, Scripted(gone))
        assert len(cut.of("fault")) == 1
        teach(tmp_path, ("T/8", "new lesson"))
        resumed = await performed(plan, Scripted(bad), again=cut.folder)
        return resumed, await performed(replace_run(plan), Scripted(bad))

    resumed, anew = asyncio.run(run())
    assert [line.value for line in resumed.of("once")] == [["old lesson"]] * 2
    prompts = [[call.messages for call in each.of("call")] for each in (resumed, anew)]
    assert prompts[0] == prompts[1]


def replace_run(plan: Plan) -> Plan:
    """The same plan under another id."""
    return replace(plan, record=msgspec.structs.replace(plan.record, run_id="bench_ffffffff_20260131_120000"))


def test_recall_is_off_by_default(tmp_path: Path) -> None:
    teach(tmp_path, ("T/7", "lesson"))
    model = Scripted(bad)

    async def run() -> Run:
        return await performed(await iterative_plan(tmp_path, use_memory="off"), model)

    done = asyncio.run(run())
    assert not any(isinstance(line, Once) for line in done.lines)
    assert HEAD not in "".join(last_messages(model))
    assert "memory" not in done.lines[0].details  # type: ignore[union-attr]


def test_recall_hides_simulated_lessons_from_a_real_model(tmp_path: Path) -> None:
    teach(tmp_path, ("T/7", "of the simulated model"), simulated=True)
    model = Scripted(bad)

    async def run() -> None:
        await performed(await iterative_plan(tmp_path), model)

    asyncio.run(run())
    assert HEAD not in "".join(last_messages(model))


def test_recall_without_history_puts_lessons_after_the_task(tmp_path: Path) -> None:
    teach(tmp_path, ("T/7", "lesson"))
    model = Scripted(bad)

    async def run() -> None:
        await performed(await iterative_plan(tmp_path, history=0), model)

    asyncio.run(run())
    messages, _ = model.asked[1]
    assert len(messages) == 2
    assert messages[-1]["content"].count(HEAD) == 1


def test_recall_is_handed_to_a_solver_that_names_it(tmp_path: Path) -> None:
    teach(tmp_path, ("T/7", "lesson"))
    (tmp_path / "mine.py").write_text(
        "async def mine(task, ask, judge, recall):\n"
        "    verdict = await judge(task, await ask(task.messages))\n"
        "    told = await recall(verdict)\n"
        "    return await judge(task, await ask([*task.messages, {'role': 'user', 'content': told[0]}]))\n"
    )
    model = Scripted(bad)

    async def run() -> None:
        plan = await planned(tmp_path, 1, solver=f"{tmp_path / 'mine.py'}:mine", use_memory="other-tasks")
        await performed(replace(plan, suite=Words(plan.tasks)), model)

    asyncio.run(run())
    assert last_messages(model)[1] == "lesson"


def test_recall_without_results_is_announced(tmp_path: Path) -> None:
    given = {"local_model": "scripted", "mode": "zero-shot", "dataset": write_tasks(tmp_path, 1)}
    with pytest.raises(KoderzError, match="nothing in this run recalls anything"):
        asyncio.run(prepare({**given, "use_memory": "other-tasks"}, range(1), environ={}))
