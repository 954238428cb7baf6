"""What a type checker, and so an editor, sees of the members of each class that others subclass.

Nothing runs this: `mypy`, as scripts/test calls it, accepts what is right, refuses an `ignore` that it doesn't need,
and so has to refuse each of the wrong members by the error that stands there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from koderz.extend import (
    AskHandle,
    Driver,
    Engine,
    ExperimentRunner,
    Job,
    JobResult,
    JudgeContext,
    JudgeHandle,
    Measure,
    Message,
    Model,
    ModelName,
    Opening,
    Plan,
    Price,
    Provider,
    Reply,
    Sampling,
    Sandbox,
    Service,
    Settings,
    Sink,
    Source,
    Suite,
    System,
    Task,
    Verdict,
    solver,
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


class WrongSuite(OwnSuite):
    measures = ("score", Measure("score", "higher", "share"))  # type: ignore[assignment]

    def score(self, reply: str) -> float:  # type: ignore[override]
        return 0.0


@solver(roles=("critic",))
async def own_solver(task: Task, ask: AskHandle, judge: JudgeHandle) -> Verdict:
    return await judge(task, await ask(task.messages))


@solver(roles=("critic",))
async def wrong_solver(task: Task, ask: AskHandle, judge: JudgeHandle) -> Verdict:
    return await judge(task, await ask(7))  # type: ignore[arg-type]


class OwnProvider(Provider):
    address = "https://api.acme.example/v1"
    prices = {"one": Price(1, 2)}  # noqa: RUF012, as on docs/how-to/extend.md


class WrongProvider(Provider):
    address = 443  # type: ignore[assignment]


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
        self.works = [*driver.work()]


class WrongEngine(OwnEngine):
    can = "judge"  # type: ignore[assignment]

    def run(self, driver: Driver) -> None:  # type: ignore[override]
        pass


class OwnSandbox(Sandbox):
    name = "own"

    @classmethod
    def open(cls, wanted: Opening) -> Sandbox:
        return cls()

    async def judge(self, job: Job) -> JobResult:
        return JobResult("passed")


class WrongSandbox(OwnSandbox):
    async def judge(self, job: Job) -> JobResult:
        return "passed"  # type: ignore[return-value]


class OwnSink(Sink):
    def take(self, records: Sequence[Record]) -> None:
        (self.source.folder / "lines.txt").write_text("")

    @classmethod
    def check(cls, results: Path, environ: Mapping[str, str]) -> str:
        return str(results)


class WrongSink(Sink):
    def take(self, records: Record) -> None:  # type: ignore[override]
        pass

    @classmethod
    def check(cls, results: Path, environ: Mapping[str, str]) -> str:
        return results  # type: ignore[return-value]


SYSTEM = System(name="own", suites={"own": "own:OwnSuite"})
WRONG_SYSTEM = System(name="own", suits={"own": "own:OwnSuite"})  # type: ignore[call-arg]

OTHERS = (ExperimentRunner, Model, ModelName, Service, Settings, Source)
