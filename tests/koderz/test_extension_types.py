"""A type checker, and so an editor, sees the members of each class that others subclass."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RIGHT = """
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from koderz.extend import (
    AskHandle, Driver, Engine, ExperimentRunner, Job, JobResult, JudgeContext, JudgeHandle, Measure, Message, Model,
    ModelName, Opening, Plan, Price, Provider, Reply, Sampling, Sandbox, Service, Settings, Sink, Source, Suite, System,
    Task, Verdict, solver,
)
from koderz_tracker.records import Record


class OwnSuite(Suite):
    name = "own"
    source = "here"
    measures = (Measure("score", "higher", "share"),)

    def score(self, task: Task, reply: str) -> float:
        return float(reply == task.payload)

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        found = await context.sandbox.judge(Job(str(answer), "", "f"))
        return Verdict(found.verdict)

    def simulate(self, messages: Sequence[Message], sampling: Sampling) -> str:
        return ""


@solver(roles=("critic",))
async def own_solver(task: Task, ask: AskHandle, judge: JudgeHandle) -> Verdict:
    return await judge(task, await ask(task.messages))


class OwnProvider(Provider):
    address = "https://api.acme.example/v1"
    prices = {"one": Price(1, 2)}


class OwnEngine(Engine):
    name = "own"
    can = frozenset({"judge", "session"})

    @classmethod
    @asynccontextmanager
    async def open(cls, plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[Engine]:
        yield cls(plan, environ)

    @property
    def waits(self) -> str:
        return "waits"

    async def run(self, driver: Driver) -> None:
        for work in driver.work():
            print(work)


class OwnSandbox(Sandbox):
    name = "own"

    @classmethod
    def open(cls, wanted: Opening) -> Sandbox:
        return cls()

    async def judge(self, job: Job) -> JobResult:
        return JobResult("passed")


class OwnSink(Sink):
    def take(self, records: Sequence[Record]) -> None:
        (self.source.folder / "lines.txt").write_text("")

    @classmethod
    def check(cls, results: Path, environ: Mapping[str, str]) -> str:
        return str(results)


SYSTEM = System(name="own", suites={"own": "own:OwnSuite"})
"""

WRONG = {
    "a suite's member of another type": ("measures = (Measure", "measures = ('score', Measure"),
    "a suite's method with one parameter less": ("score(self, task: Task, reply: str)", "score(self, reply: str)"),
    "a solver that passes what is no message": ("await ask(task.messages)", "await ask(7)"),
    "a provider's address that is no text": ('"https://api.acme.example/v1"', "443"),
    "an engine's needs that are no set": ('frozenset({"judge", "session"})', '"judge"'),
    "an engine that runs in no coroutine": ("    async def run(", "    def run("),
    "a sandbox that returns a word": ('return JobResult("passed")', 'return "passed"'),
    "a sink that takes one record": ("records: Sequence[Record]", "records: Record"),
    "a place that is no text": ("return str(results)", "return results"),
    "a system without a member of that name": ("suites={", "suits={"),
}

pytestmark = pytest.mark.slow


def checked(folder: Path, *sources: str) -> str:
    """The output of mypy on modules, numbered in their order."""
    for number, source in enumerate(sources):
        (folder / f"own_{number}.py").write_text(source)
    root, cache = Path(__file__).parents[2], folder / "cache"
    if (root / ".mypy_cache").exists():  # what the check of koderz' own types found out
        shutil.copytree(root / ".mypy_cache", cache)
    files = map(str, folder.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(cache), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_extension_types_accept_right_members_and_refuse_wrong_ones(tmp_path: Path) -> None:
    for old, _ in WRONG.values():
        assert old in RIGHT, old
    sources = [RIGHT, *(RIGHT.replace(old, new) for old, new in WRONG.values())]

    told = checked(tmp_path, *sources)

    assert "own_0.py" not in told
    assert [name for number, name in enumerate(WRONG, 1) if f"own_{number}.py" not in told] == []
