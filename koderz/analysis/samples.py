"""A samples file made into a run: programs that were written elsewhere, judged here."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from koderz.engines.performing import experiment_of
from koderz.errors import KoderzError
from koderz.orchestrator import Ended
from koderz.plan import MODES, Plan, load_solvers, load_subject, make_plan
from koderz.replay import Ask, Handles, Identity
from koderz.sandbox import Sandbox, open_sandbox
from koderz.session import Session, close
from koderz.settings import Settings
from koderz.suites import load_suite
from koderz.suites.dataset import Row, read_rows
from koderz.types import Completion, Judging, Reply, Sampling, Task, Verdict
from tracker.blobs import read_text
from tracker.records import Record, Text
from tracker.tracker import Tracker


@dataclass(frozen=True, slots=True)
class Written:
    """One program of a file."""

    task: str
    solver: str
    sample: int
    program: str  # whole: what follows a prompt has the prompt before it
    line_offset: int  # lines of the prompt


@dataclass(frozen=True, slots=True)
class Samples:
    """What a file holds."""

    path: Path
    model: str
    written: Sequence[Written]
    malformed: Sequence[str]  # what is wrong with the lines that were left out

    @property
    def solvers(self) -> tuple[str, ...]:
        found = {sample.solver for sample in self.written}
        return tuple(name for name in MODES["comparative"] if name in found)


def read_samples(path: Path, tasks: Mapping[str, Task], model: str | None) -> Samples:
    """The samples of a file in HumanEval's, EvalPlus' or koderz' own format.

    Of an experiment with several attempts, as `export --attempts` writes them, the last counts. Raises KoderzError
    where the file holds none for these tasks, or doesn't say which model wrote them and `model` doesn't either.
    """
    malformed: list[str] = []
    last: dict[object, tuple[Row, Task]] = {}
    for number, row in enumerate(read_rows(path, skip=lambda error: malformed.append(str(error)))):
        try:
            last[row.fields.get("experiment_id") or number] = row, _task_of(row, tasks)
        except KoderzError as error:
            malformed.append(str(error))
    written, nth = [], Counter[tuple[str, str]]()
    for row, task in last.values():
        solver = row.text("solver", "zero-shot")
        solver = solver if solver in MODES["comparative"] else "zero-shot"
        written.append(_written(row, task, solver, nth[task.id, solver]))
        nth[task.id, solver] += 1
    if not written:
        reason = f"; the first that is wrong: {malformed[0]}" if malformed else ""
        raise KoderzError(f"{path} holds no sample that could be judged{reason}")
    return Samples(path, model or _model_of(path, [row for row, _ in last.values()]), written, malformed)


def _task_of(row: Row, tasks: Mapping[str, Task]) -> Task:
    task = tasks.get(row.text("task_id"))
    if task is None:
        raise row.error(f"there is no task {row.text('task_id')!r} in this suite; name another with --suite")
    row.text("solution" if "solution" in row.fields else "completion")
    return task


def _written(row: Row, task: Task, solver: str, sample: int) -> Written:
    if "solution" in row.fields:
        return Written(task.id, solver, sample, row.text("solution"), 0)
    return Written(task.id, solver, sample, task.prompt + row.text("completion"), task.prompt.count("\n"))


def _model_of(path: Path, rows: Sequence[Row]) -> str:
    models = {row.fields.get("model") for row in rows}
    if len(models) == 1 and isinstance(model := models.pop(), str) and model:
        return model
    raise KoderzError(f"{path} doesn't say who wrote its programs; name the model with --model")


async def import_samples(path: Path, settings: Settings, *, tell: Callable[[int], None]) -> tuple[Session, list[str]]:
    """A new run of the programs in a file, each judged here, and what is wrong with the lines that were left out.

    `settings.local_model` is who wrote them; None: as the file says. `tell` hears how many are judged. The run
    is whole, or isn't there. Raises KoderzError for a file without samples, Unreachable without a sandbox.
    """
    suite = load_suite(settings.suite, settings.dataset)
    samples = read_samples(path, {task.id: task for task in suite.tasks}, settings.local_model)
    plan = _plan(samples, settings)
    own = plan.record.simulated
    async with open_sandbox(settings.sandbox, judges=settings.judge_count, own_programs=own) as sandbox:
        environment = plan.record.environment | {"sandbox": sandbox.rung}
        plan = replace(plan, record=msgspec.structs.replace(plan.record, environment=environment))
        with Tracker.create(settings.results, plan.name, plan.record) as tracker:
            try:
                await _judge_all(plan, samples, tracker, sandbox, tell)
            except BaseException:
                shutil.rmtree(tracker.folder, ignore_errors=True)
                raise
            ended = _ended(plan, samples)
            await tracker.finish(ended.status, ended.reason)
            return close(plan, tracker, ended, None), list(samples.malformed)


def _ended(plan: Plan, samples: Samples) -> Ended:
    """Complete: there is no more to be had than the file holds."""
    missing = plan.record.planned - len(samples.written)
    return Ended(
        "complete", f"the file has {missing} less than {plan.record.samples} samples a task" if missing else ""
    )


def _plan(samples: Samples, settings: Settings) -> Plan:
    solvers = samples.solvers
    most = max(Counter((w.task, w.solver) for w in samples.written).values())
    mode: Any = "comparative" if len(solvers) > 1 else solvers[0]
    settings = replace(settings, local_model=samples.model, mode=mode, samples=most)
    named = {sample.task for sample in samples.written}
    subject = load_subject(settings, lambda tasks: [task for task in tasks if task.id in named])
    plan = make_plan(settings, subject, load_solvers(settings, {}))
    source = {"file": samples.path.name, "sha256": hashlib.sha256(samples.path.read_bytes()).hexdigest()}
    record = msgspec.structs.replace(
        plan.record,
        config=plan.record.config | {"imported": True},
        environment=plan.record.environment | {"imported": source},
    )
    return replace(plan, record=record)


async def _judge_all(
    plan: Plan, samples: Samples, tracker: Tracker, sandbox: Sandbox, tell: Callable[[int], None]
) -> None:
    written = {(w.task, w.solver, w.sample): w for w in samples.written}
    experiments = (
        (experiment, written[key])
        for experiment in plan.experiments()
        if (key := (experiment.task.id, experiment.solver, experiment.sample)) in written
    )
    done = 0

    async def lane() -> None:
        nonlocal done
        for experiment, sample in experiments:
            await _perform(experiment, _Page(sample, plan, tracker, sandbox))
            done += 1
            tell(done)

    async with asyncio.TaskGroup() as group:
        for _ in range(2 * plan.settings.judge_count):  # one is written down while another runs
            group.create_task(lane())


async def _perform(identity: Identity, page: _Page) -> None:
    """Asks the page instead of a model, so that the journal has what any other run's has."""
    started = time.monotonic()
    async with Handles(identity, [], page) as handles:
        verdict = await handles.judge(identity.task, await handles.ask(identity.task.messages))
    await page.record(experiment_of(handles, verdict, time.monotonic() - started))


@dataclass(frozen=True, slots=True)
class _Page:
    """The world of one experiment: its program stands in a file, and costs nothing."""

    sample: Written
    plan: Plan
    tracker: Tracker
    sandbox: Sandbox

    async def complete(self, ask: Ask, sample: int) -> tuple[Completion, str, Sampling]:  # noqa: ARG002
        model = self.plan.settings.local_model or ""
        return Completion(self.sample.program, finish_reason="imported", model=model), model, Sampling()

    async def judge(self, task: Task, answer: Reply | str) -> Verdict:
        program = answer.text if isinstance(answer, Reply) else answer
        if not program.strip():
            return Verdict("error", "no_code", detail="The file has no program here.")
        settings = self.plan.settings
        how = Judging(settings.test_timeout, settings.test_memory)
        return await self.plan.suite.judge_program(
            task, program, self.sandbox, how, line_offset=self.sample.line_offset
        )

    async def record(self, *lines: Record) -> None:
        await self.tracker.record(*lines)

    def text(self, text: Text) -> str:
        return read_text(text, self.tracker.folder)


def is_samples(path: Path) -> bool:
    """Whether a file is one of samples, by its name."""
    return path.is_file() and path.name.removesuffix(".gz").endswith((".jsonl", ".ndjson"))
