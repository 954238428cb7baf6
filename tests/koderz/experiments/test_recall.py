"""Lessons of earlier experiments reach a prompt: the right ones, as of the run's beginning, and none by default."""

from __future__ import annotations

import asyncio
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
from koderz.testing import FakeModel, a_model
from koderz_tracker.memory import Draft
from koderz_tracker.memory.store import Store
from koderz_tracker.records import Once
from koderz_tracker.summary import summarize
from koderz_tracker.tracker import Tracker
from tests.koderz.world import NoSandbox, Run, Words, journal_of, planned, write_tasks

HEAD = "Earlier attempts at programming tasks failed in the same way."


def teach(folder: Path, *lessons: tuple[str, str], simulated: bool = False) -> None:
    """Puts lessons into the store as the sink does: (problem, text), all of them of failed assertions."""
    facts = {"lesson_cause": "assertion", "simulated": simulated}
    drafts = [
        Draft(
            title=f"Experiment of {problem}",
            content=text,
            tags=["result", problem, "completed"],
            metadata={"problem_id": problem, "lesson": text, **facts},
        )
        for problem, text in lessons
    ]
    with Store(folder / "results" / "memory.db") as store:
        store.remember(drafts)


async def iterative_plan(folder: Path, **settings: Any) -> Plan:
    usual = {"use_memory": "other-tasks", "max_iterations": 3, "temperature": 0.5}
    return await planned(folder, 1, mode="iterative", **{**usual, **settings})


async def performed(plan: Plan, model: FakeModel, *, again: Path | None = None) -> Run:
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


def recalled(folder: Path, *later: tuple[str, str], **settings: Any) -> tuple[Run, list[str]]:
    """A run of one task whose answers all fail, and how its prompts end. `later`: lessons of after it was planned."""
    model = a_model("BAD")

    async def run() -> Run:
        plan = await iterative_plan(folder, **settings)
        if later:
            teach(folder, *later)
        return await performed(plan, model)

    done = asyncio.run(run())
    return done, [messages[-1]["content"] for messages, _ in model.asked]


SEVEN, ZERO = ("T/7", "lesson of seven"), ("T/0", "lesson of zero itself")


def test_lessons_of_the_same_failure_are_shown_after_a_failure(tmp_path: Path) -> None:
    teach(tmp_path, SEVEN, ZERO)

    done, (first, second, third) = recalled(tmp_path)

    assert HEAD not in first
    assert HEAD in second
    assert "- lesson of seven" in second
    assert "lesson of zero" not in second + third
    assert [line.value for line in done.of("once")] == [["lesson of seven"]] * 2
    assert done.summary.config["use_memory"] == "other-tasks"
    _, (_, second, _) = recalled(tmp_path, use_memory="same-task")
    assert "lesson of zero itself" in second
    assert "lesson of seven" not in second


@pytest.mark.parametrize("live", [False, True])
def test_recall_sees_the_store_as_of_the_start_unless_live(tmp_path: Path, live: bool) -> None:
    teach(tmp_path, SEVEN)
    done, (_, told, _) = recalled(tmp_path, ("T/8", "new lesson"), memory_live=live)
    assert "lesson of seven" in told
    assert ("new lesson" in told) is live
    assert done.summary.config["memory_live"] is live


def test_recall_stays_empty_for_a_run_begun_without_a_store(tmp_path: Path) -> None:
    done, told = recalled(tmp_path, SEVEN)
    assert done.of("once") == []
    assert HEAD not in "".join(told)


def test_resume_shows_the_recorded_lessons_though_the_store_changed(tmp_path: Path) -> None:
    teach(tmp_path, ("T/7", "old lesson"))

    async def run() -> tuple[Run, Run]:
        plan = await iterative_plan(tmp_path)
        cut = await performed(plan, a_model(["BAD", Fault("gone")]))
        assert len(cut.of("fault")) == 1
        teach(tmp_path, ("T/8", "new lesson"))
        resumed = await performed(plan, a_model("BAD"), again=cut.folder)
        anew = replace(plan, record=msgspec.structs.replace(plan.record, run_id="bench_ffffffff_20260131_120000"))
        return resumed, await performed(anew, a_model("BAD"))

    resumed, anew = asyncio.run(run())
    assert [line.value for line in resumed.of("once")] == [["old lesson"]] * 2
    prompts = [[call.messages for call in each.of("call")] for each in (resumed, anew)]
    assert prompts[0] == prompts[1]


def test_recall_is_off_by_default(tmp_path: Path) -> None:
    teach(tmp_path, SEVEN)
    done, told = recalled(tmp_path, use_memory="off")
    assert not any(isinstance(line, Once) for line in done.lines)
    assert HEAD not in "".join(told)
    assert "memory" not in done.lines[0].details  # type: ignore[union-attr]


def test_recall_hides_simulated_lessons_from_a_real_model(tmp_path: Path) -> None:
    teach(tmp_path, SEVEN, simulated=True)
    assert HEAD not in "".join(recalled(tmp_path)[1])


def test_recall_without_history_puts_lessons_after_the_task(tmp_path: Path) -> None:
    teach(tmp_path, SEVEN)
    done, (_, second, _) = recalled(tmp_path, history=0)
    assert len(done.of("call")[1].messages) == 2
    assert second.count(HEAD) == 1


def test_recall_is_handed_to_a_solver_that_names_it(tmp_path: Path) -> None:
    teach(tmp_path, SEVEN)
    (tmp_path / "mine.py").write_text(
        "async def mine(task, ask, judge, recall):\n"
        "    verdict = await judge(task, await ask(task.messages))\n"
        "    told = await recall(verdict)\n"
        "    return await judge(task, await ask([*task.messages, {'role': 'user', 'content': told[0]}]))\n"
    )
    model = a_model("BAD")

    async def run() -> None:
        plan = await planned(tmp_path, 1, solver=f"{tmp_path / 'mine.py'}:mine", use_memory="other-tasks")
        await performed(replace(plan, suite=Words(plan.tasks)), model)

    asyncio.run(run())
    assert model.asked[1][0][-1]["content"] == "lesson of seven"


def test_recall_without_results_is_announced(tmp_path: Path) -> None:
    given = {"local_model": "scripted", "mode": "zero-shot", "dataset": write_tasks(tmp_path, 1)}
    with pytest.raises(KoderzError, match="nothing in this run recalls anything"):
        asyncio.run(prepare({**given, "use_memory": "other-tasks"}, range(1), environ={}))
