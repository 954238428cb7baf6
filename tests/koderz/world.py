"""A small world for what runs inside koderz: tasks of a line, a model that is told its lines, a judge of one word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from koderz.engines.local import LocalEngine
from koderz.engines.sources import schema_of
from koderz.experiments.replay import Replaying
from koderz.experiments.runner import Resources
from koderz.models import Price
from koderz.plans.plan import Plan
from koderz.prompts import Prompts
from koderz.runs.deciding import Decider, recorded_outcomes
from koderz.runs.orchestrator import Observer, Orchestrator, SessionEnd
from koderz.runs.prepare import prepare
from koderz.sandbox import Job, JobResult, Sandbox
from koderz.settings.schema import Settings
from koderz.suites.references import References
from koderz.suites.suite import JudgeContext, ProgramSuite
from koderz.testing import FakeModel, engines
from koderz.testing.factories import Line
from koderz.types import Measure, Message, Reply, Sampling, Task, Verdict
from koderz_tracker.index import load_index, read_records
from koderz_tracker.journal import NAME
from koderz_tracker.records import Record
from koderz_tracker.summary import Summary, summarize
from koderz_tracker.tracker import Tracker
from tests.conftest import PATIENCE


def good(messages: Sequence[Message], sampling: Sampling) -> str:
    return "GOOD"


@dataclass
class Crowded(FakeModel):
    """A model that answers its first call, which is made alone, and the others once so many are made together."""

    line: Line = good

    crowd: int = 2
    together: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        if len(self.asked) == 1:
            return
        if self.at_once >= self.crowd:
            self.together.set()
        async with asyncio.timeout(PATIENCE):
            await self.together.wait()
        for _ in range(100):  # turns, in which one too many would come
            await asyncio.sleep(0)


@dataclass
class Words(ProgramSuite):
    """A suite whose judge passes every answer that holds a word."""

    tasks: tuple[Task, ...]
    passing: str = "GOOD"
    name: str = "words"
    source: str = "here"
    measures: Sequence[Measure] = ()
    words: Sequence[str] = ()

    def messages(self, task: Task, prompts: Prompts) -> tuple[Message, ...]:
        return prompts.first_messages(task.values)

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        text = answer.text if isinstance(answer, Reply) else answer
        return Verdict("passed") if self.passing in text else Verdict("failed", "assertion", f"no GOOD in {text}")


class NoSandbox(Sandbox):
    """Stands where a sandbox is needed and none is used."""

    name = "none"
    isolation = "none"

    async def judge(self, job: Job) -> JobResult:
        raise AssertionError


@dataclass(frozen=True)
class Run:
    """A session that is over, and what the run had come to by then."""

    ended: SessionEnd
    folder: Path
    lines: list[Record]
    summary: Summary

    def of(self, kind: str) -> list[Any]:
        return [line for line in self.lines if line.kind == kind]


def journal_of(folder: Path) -> list[Record]:
    return list(read_records(folder / NAME, [entry.span for entry in load_index(folder / NAME) if entry.kind]))


def settings_of(**values: Any) -> Settings:
    """Settings with these options, be they koderz' own or those of what takes part."""
    return schema_of().layered(values)


def write_tasks(folder: Path, n: int) -> Path:
    """tasks.jsonl, with `n` tasks: T/0, T/1, …"""
    return engines.write_tasks(folder / "tasks.jsonl", n)


async def planned(
    folder: Path, n: int = 3, *, solver_arguments: Mapping[str, str] | None = None, **settings: Any
) -> Plan:
    """A plan over `n` tasks of `folder`, judged by `Words`."""
    given = {
        "local_model": "scripted",
        "mode": "zero-shot",
        "dataset": write_tasks(folder, n),
        "results": folder / "results",
        **settings,
    }
    plan = await prepare(given, range(n), solver_arguments=solver_arguments, environ={"XDG_STATE_HOME": str(folder)})
    return replace(plan, suite=Words(plan.tasks))


async def begun(
    plan: Plan,
    model: FakeModel | Mapping[str, FakeModel],
    *,
    observe: Observer | None = None,
    baseline: Price | None = None,
    references: References | None = None,
    started: Callable[[Orchestrator], None] = lambda orchestrator: None,
) -> Run:
    """The first session of a plan."""
    with Tracker.create(plan.settings.results, plan.name, plan.record) as tracker:
        engine = engine_of(plan, model, baseline, references)
        orchestrator = Orchestrator(plan, tracker, engine, observe=observe, decider=decider_of(plan, tracker))
        started(orchestrator)
        return await _finished(orchestrator, tracker)


async def resumed(
    folder: Path,
    plan: Plan,
    model: FakeModel | Mapping[str, FakeModel],
    how: Replaying | None = None,
    *,
    faults: bool = False,
    judged: bool = False,
) -> Run:
    """A later session of the run in `folder`."""
    with Tracker.reopen(folder) as tracker:
        tracker.select(faults=faults, judged=judged)
        await tracker.begin_session("resume", {})
        engine, decider = engine_of(plan, model), decider_of(plan, tracker)
        return await _finished(Orchestrator(plan, tracker, engine, how=how, decider=decider), tracker)


def decider_of(plan: Plan, tracker: Tracker) -> Decider | None:
    """What stops a run once it is decided, if its plan says so."""
    return Decider(plan, recorded_outcomes(tracker.folder)) if plan.record.until_decided else None


def engine_of(
    plan: Plan,
    model: FakeModel | Mapping[str, FakeModel],
    baseline: Price | None = None,
    references: References | None = None,
) -> LocalEngine:
    """This machine, with models that stand for the plan's."""
    models = {"scripted": model} if isinstance(model, FakeModel) else model
    return LocalEngine(Resources(plan, models, NoSandbox(), baseline, references=references))


async def _finished(orchestrator: Orchestrator, tracker: Tracker) -> Run:
    ended = await orchestrator.run()
    await tracker.finish(ended.status, ended.reason)
    return Run(ended, tracker.folder, journal_of(tracker.folder), summarize(tracker.folder))
