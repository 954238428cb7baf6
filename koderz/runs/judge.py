"""Judging what was written elsewhere: one program, the answers of a samples file, or such a file as a run."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UNSET

from koderz._version import __version__
from koderz.errors import KoderzError
from koderz.experiments.recording import Answer, Ask
from koderz.experiments.replay import Handles
from koderz.experiments.runner import experiment_of, fault_of
from koderz.plans.arms import MODES, make_arms
from koderz.plans.ids import NumberOfSamples
from koderz.plans.plan import Identity, Plan, load_subject, make_plan
from koderz.plans.selection import find_id
from koderz.runs.orchestrator import SessionEnd
from koderz.runs.session import SessionResult, close, trust_own
from koderz.sandbox import DockerOptions, NoSandbox
from koderz.sandbox.calibration import Exclusive, calibrated_sandbox, open_exclusive
from koderz.settings.schema import Settings
from koderz.suites import load_suite, program_suite
from koderz.suites.dataset import Row
from koderz.suites.options import CodeOptions
from koderz.suites.references import ReferenceFault, References, references_of
from koderz.suites.suite import JudgeContext, Suite
from koderz.suites.tables import read_rows
from koderz.types import EXCLUSIVE, JUDGE, MAIN, Completion, Sampling, Task, Verdict
from koderz_tracker import records
from koderz_tracker.basis import Arm, Cell
from koderz_tracker.blobs import read_text
from koderz_tracker.merge import Merged
from koderz_tracker.rates import pass_at_k, pass_hat_k
from koderz_tracker.records import Record, Text
from koderz_tracker.results import ANSWER, Result
from koderz_tracker.runs import run_folders
from koderz_tracker.sinks import JSON
from koderz_tracker.sinks.json import write_summary
from koderz_tracker.sinks.standing import mark_up_to_date
from koderz_tracker.summary import Summary
from koderz_tracker.tracker import Tracker

PASS_AT = (1, 10, 100)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judge:
    """A suite, the context in which it judges, and its references, which are tried first."""

    suite: Suite
    context: JudgeContext
    at_once: int
    exclusive: Exclusive | None = None  # for tasks that need it
    references: References | None = None

    async def verdict(self, sample: Sample) -> Verdict:
        """The verdict on a sample. Raises ReferenceFault if the task can't be judged here."""
        async with (
            self.exclusive() if self.exclusive and EXCLUSIVE in sample.task.needs else nullcontext()
        ):
            if self.references:
                await self.references.require(sample.task)
            if sample.is_reply:
                return await self.suite.judge(sample.task, sample.program, self.context)
            return await program_suite(self.suite).judge_written(
                sample.task, sample.program, self.context
            )

    async def each(self, items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
        """Applies `work` to every item, to as many at once as there are judges. Raises its errors."""
        left = iter(items)

        async def lane() -> None:
            for item in left:
                await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(2 * self.at_once):  # one is read or written down while another runs
                    group.create_task(lane())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


@asynccontextmanager
async def open_judge(
    suite: Suite, settings: Settings, *, own_programs: bool = False
) -> AsyncIterator[Judge]:
    """Opens a judge with a calibrated sandbox by these settings; with none if no task needs one.

    Raises Unreachable where nothing contains programs here.
    """
    needs: set[str] = set().union(*(task.needs for task in suite.tasks))
    with ExitStack() as stack:
        warn = logging.getLogger("koderz").warning
        exclusive = stack.enter_context(open_exclusive(warn)) if EXCLUSIVE in needs else None
        context = JudgeContext(
            NoSandbox(), suite.limits, core=exclusive.core if exclusive else None
        )
        judge = Judge(suite, context, settings.judge_count, exclusive)
        if JUDGE not in needs:
            yield judge
            return
        async with calibrated_sandbox(
            settings.sandbox,
            judges=judge.at_once,
            own_programs=own_programs,
            memory_mb=suite.limits.memory_mb,
            settings=settings,
        ) as sandbox:
            references = references_of(suite, sandbox)
            try:
                yield replace(
                    judge, context=replace(context, sandbox=sandbox), references=references
                )
            finally:
                if references:
                    references.remember()


@dataclass(frozen=True, slots=True)
class Report:
    """The result of judging a samples file."""

    samples: int
    passed: int
    pass_at_k: dict[str, float]  # fractions, over the tasks that have k samples
    pass_hat_k: dict[str, float]  # likewise, from k = 2 on
    verdicts: dict[str, int]
    faults: list[str]  # the tasks none of whose samples could be judged, and why
    mean_score: float | None  # where the suite gives scores
    facts: dict[str, int]  # of how many samples each fact of the suite's is true
    lines: Sequence[dict[str, Any]]  # of each sample, in the file's order
    # likewise, the whole verdicts; None: its task could not be judged
    judged: Sequence[Verdict | None]


async def judge(
    task: str,
    program: str,
    *,
    suite: str = "humaneval",
    dataset: Path | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 CPU seconds of the program, not of this call
    memory_mb: int | None = None,
    sandbox: str = "contained",
    image: str | None = None,
) -> Verdict:
    """Judges one whole program and returns the verdict.

    `timeout` is CPU seconds; None: the suite's own limit, as for `memory_mb`. `image` is that of the sandbox `docker`;
    None: the usual one. Raises KoderzError for an unknown task, Unreachable where nothing contains programs here, Fault
    where the task's own reference doesn't pass.
    """
    docker = (DockerOptions(image),) if image else ()
    settings = Settings(
        sandbox=sandbox, own=(CodeOptions(test_timeout=timeout, test_memory=memory_mb), *docker)
    )
    asked = load_suite(suite, dataset, settings)
    return await judge_one(asked, find_task(asked, task), program, settings)


async def judge_one(suite: Suite, task: Task, program: str, settings: Settings) -> Verdict:
    """The verdict on a program for one of the suite's tasks."""
    async with open_judge(suite, replace(settings, judges=1)) as opened:
        return await opened.verdict(Sample(task, program, "zero-shot", 0))


async def judge_samples(
    suite: Suite, samples: Samples, settings: Settings, *, tell: Callable[[int], None]
) -> Report:
    """Judges every sample of a file; calls `tell` with the number done so far."""
    verdicts: dict[int, Verdict] = {}  # by the sample's place in the file
    faults: dict[str, str] = {}

    async with open_judge(suite, settings) as opened:

        async def work(numbered: tuple[int, Sample]) -> None:
            number, sample = numbered
            try:
                verdicts[number] = await opened.verdict(sample)
            except ReferenceFault as fault:
                faults[sample.task.id] = f"{sample.task.id}: {fault}"
            else:
                tell(len(verdicts))

        await opened.each(enumerate(samples.samples), work)
    tasks: dict[str, list[bool]] = defaultdict(list)
    for number, verdict in verdicts.items():
        tasks[samples.samples[number].task.id].append(verdict.passed)
    fewest = min(map(len, tasks.values()), default=0)
    scores = [verdict.score for verdict in verdicts.values() if verdict.score is not None]
    # Of each fact that is true or false, the number of verdicts of which it is true.
    counts: Counter[str] = Counter()
    for verdict in verdicts.values():
        counts.update(
            {name: int(value) for name, value in verdict.facts.items() if isinstance(value, bool)}
        )
    return Report(
        samples=len(verdicts),
        passed=sum(verdict.passed for verdict in verdicts.values()),
        pass_at_k={f"pass@{k}": _mean(pass_at_k, tasks, k) for k in PASS_AT if k <= fewest},
        pass_hat_k={f"pass^{k}": _mean(pass_hat_k, tasks, k) for k in PASS_AT if 1 < k <= fewest},
        verdicts=dict(Counter(verdict.cause or verdict.verdict for verdict in verdicts.values())),
        faults=[*faults.values()],
        mean_score=statistics.fmean(scores) if scores else None,
        facts=dict(counts),
        lines=[
            _line(sample, verdicts.get(number), faults)
            for number, sample in enumerate(samples.samples)
        ],
        judged=[verdicts.get(number) for number in range(len(samples.samples))],
    )


def _mean(
    estimate: Callable[[int, int, int], float], tasks: Mapping[str, Sequence[bool]], k: int
) -> float:
    return statistics.fmean(estimate(len(own), sum(own), k) for own in tasks.values())


def _line(sample: Sample, verdict: Verdict | None, faults: Mapping[str, str]) -> dict[str, Any]:
    if verdict is None:
        line: dict[str, Any] = {
            "verdict": "fault",
            "cause": faults[sample.task.id],
            "score": None,
            "metrics": {},
        }
    else:
        line = {
            name: getattr(verdict, name) for name in ("verdict", "cause", "score", "metrics")
        } | verdict.facts
    return {"task_id": sample.task.id, **line}


def find_task(suite: Suite, name: str) -> Task:
    """The task with this id, number or index. Raises KoderzError if the suite has none."""
    tasks = {task.id: task for task in suite.tasks}
    if found := find_id(name, tuple(tasks)):
        return tasks[found]
    raise KoderzError(
        f"the suite {suite.name} has no task {name!r}; they are named like {suite.tasks[0].id}"
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer in a file."""

    task: Task
    program: str  # whole: what follows a prompt has the prompt before it; of a reply, its text
    solver: str
    number: int  # from 0, among those of its task and solver
    # to be judged as a model's reply is, in which a program may have to be found
    is_reply: bool = False


@dataclass(frozen=True, slots=True)
class Samples:
    """The content of a samples file."""

    path: Path
    samples: Sequence[Sample]
    malformed: Sequence[str]  # what is wrong with the lines that were left out
    models: frozenset[object]  # who wrote them, as far as the file says

    @property
    def solvers(self) -> tuple[str, ...]:
        found = {sample.solver for sample in self.samples}
        return tuple(name for name in MODES["comparative"] if name in found)

    @property
    def model(self) -> str:
        """The model that wrote all samples. Raises KoderzError if the file doesn't say."""
        match [*self.models]:
            case [str(model)] if model:
                return model
        raise KoderzError(
            f"{self.path} doesn't say who wrote its programs; name the model with --model"
        )


def read_samples(path: Path, tasks: Sequence[Task]) -> Samples:
    """The samples of a file for these tasks.

    A row has `task_id` and either `completion`, which goes after the task's prompt, `solution`, which is whole, or
    `reply`, which is what a model answered. Of an experiment with several attempts, as `export --attempts` writes them,
    the last counts. Raises KoderzError where the file holds none that could be judged.
    """
    malformed: list[str] = []
    known = {task.id: task for task in tasks}
    last: dict[object, tuple[Row, Task]] = {}
    for number, row in enumerate(read_rows(path, skip=lambda error: malformed.append(str(error)))):
        try:
            task = known.get(row.id("task_id"))
            if task is None:
                raise row.error(
                    f"there is no task {row.id('task_id')!r} in this suite; name another with --suite"
                )
            row.text(_answer_in(row))
            last[row.fields.get("experiment_id") or number] = row, task
        except KoderzError as error:
            malformed.append(str(error))
    if not last:
        reason = f"; the first that is wrong: {malformed[0]}" if malformed else ""
        raise KoderzError(f"{path} holds no sample that could be judged{reason}")
    models = frozenset(
        model if isinstance(model := row.fields.get("model"), str) else None
        for row, _ in last.values()
    )
    nth: Counter[tuple[str, str]] = Counter()
    samples = []
    for row, task in last.values():
        solver = row.fields.get("solver")
        solver = (
            solver if isinstance(solver, str) and solver in MODES["comparative"] else "zero-shot"
        )
        field = _answer_in(row)
        program = (task.prompt if field == "completion" else "") + row.text(field)
        samples.append(
            Sample(task, program, solver, nth[task.id, solver], is_reply=field == "reply")
        )
        nth[task.id, solver] += 1
    return Samples(path, samples, malformed, models)


def _answer_in(row: Row) -> str:
    return next((name for name in ("solution", "reply") if name in row.fields), "completion")


async def import_samples(
    path: Path, settings: Settings, *, tell: Callable[[int], None]
) -> tuple[SessionResult, Samples]:
    """Makes a new run of the programs in a file, and judges each here.

    `settings.local_model` is who wrote them; None: as the file says. `tell` hears how many are judged. The run is
    whole, or isn't there: a task that can't be judged here is a fault of its samples. Raises KoderzError for a file
    without samples, Unreachable without a sandbox.
    """
    suite = load_suite(settings.suite, settings.dataset, settings)
    samples = read_samples(path, suite.tasks)
    plan = _plan(samples, settings)
    async with open_judge(suite, plan.settings, own_programs=plan.record.simulated) as judge:
        sandbox = judge.context.sandbox
        is_run = not isinstance(sandbox, NoSandbox)
        facts = {"sandbox": sandbox.isolation, "cpu_scale": sandbox.speed} if is_run else {}
        plan = plan.having(environment=plan.record.environment | facts)
        trust_own(plan)
        with Tracker.create(settings.results, plan.name, plan.record) as tracker:
            tracker.privacy = plan.privacy
            try:
                await _judge_all(plan, samples, tracker, judge, tell)
            except BaseException:
                shutil.rmtree(tracker.folder, ignore_errors=True)
                raise
            # The file holds no more, so the session is complete unless there are faults.
            if faults := tracker.tally.faults:
                ended = SessionEnd("incomplete", f"{faults} experiments ended in a fault")
            else:
                missing = plan.record.planned - len(samples.samples)
                ended = SessionEnd(
                    "complete",
                    f"the file has {missing} less than {plan.record.samples} samples a task"
                    if missing
                    else "",
                )
            await tracker.finish(ended.status, ended.reason)
            return close(plan, tracker, ended, None), samples


_OF_FAULT = ("problem_id", "arm", "sample", "reason", "cause", "cost")
_OF_RESULT = tuple(
    {*Result.__struct_fields__}
    & {*records.Experiment.__struct_fields__} - {"experiment_id", "facts"}
)


async def import_log(log: Summary, path: Path, results: Path, *, summary: bool) -> Merged:
    """Makes a run of another tool's log, with its verdicts as they are: nothing is judged again.

    Its id follows from what the log holds, so that the same log becomes one run however often it is imported.
    `summary`: with its summary file.
    """
    digest = hashlib.sha256(repr((log.config, log.results, log.faults)).encode()).hexdigest()
    if same := [
        folder.name
        for folder in run_folders(results)
        if folder.name.startswith(f"bench_{digest[:8]}_")
    ]:
        return Merged(same[0], "there already")
    written = datetime.fromtimestamp((await asyncio.to_thread(path.stat)).st_mtime)
    try:
        begun = datetime.fromisoformat(log.start_time) if log.start_time else written
    except ValueError:
        begun = written
    run_id = f"bench_{digest[:8]}_{begun:%Y%m%d_%H%M%S}"
    counts = Counter((result.problem_id, result.arm) for result in log.results)
    counts.update((fault["problem_id"], fault["arm"]) for fault in log.faults)
    models = {result.arm: result.model for result in log.results}
    tasks = list(dict.fromkeys(task for task, _ in counts))
    plan = records.Plan(
        run_id=run_id,
        mode=log.mode,
        arms=[Arm(name=arm, solver=arm, models={"main": models.get(arm, "")}) for arm in log.arms],
        tasks=tasks,
        samples=max(counts.values()),
        cells=[Cell(task, arm, samples) for (task, arm), samples in counts.items()],
        config=dict(log.config),
        environment={"imported": {"file": path.name, "digest": digest}, "koderz": __version__},
        measures=log.measures,
        headline=log.headline,
        notes=log.notes,
        asked=[log.asked.get(task, "") for task in tasks],
    )
    number_of = {cell: NumberOfSamples(run_id, *cell, plan.basis.digest) for cell in counts}
    with Tracker.create(results, run_id, plan) as tracker:
        try:
            for result in log.results:
                own = {name: getattr(result, name) for name in _OF_RESULT}
                facts = {"untold": list(result.untold)} | (
                    {} if result.answer is UNSET else {ANSWER: result.answer}
                )
                named = number_of[result.problem_id, result.arm](result.sample)
                await tracker.record(
                    records.Experiment(**own, experiment_id=f"exp_{named:016x}", facts=facts)
                )
            for fault in log.faults:
                own = {name: fault[name] for name in _OF_FAULT}
                named = number_of[fault["problem_id"], fault["arm"]](fault["sample"])
                await tracker.record(
                    records.Fault(**own, solver=fault["arm"], experiment_id=f"exp_{named:016x}")
                )
            await tracker.finish(
                "incomplete" if log.faults and log.status == "complete" else log.status, log.reason
            )
        except BaseException:
            shutil.rmtree(tracker.folder, ignore_errors=True)
            raise
    if summary:
        write_summary(results / run_id)
        mark_up_to_date(results / run_id, JSON)
    return Merged(run_id, "added")


def _plan(samples: Samples, settings: Settings) -> Plan:
    solvers = samples.solvers
    most = max(Counter((sample.task.id, sample.solver) for sample in samples.samples).values())
    mode: Any = "comparative" if len(solvers) > 1 else solvers[0]
    settings = replace(
        settings, local_model=settings.local_model or samples.model, mode=mode, samples=most
    )
    named = {sample.task.id for sample in samples.samples}
    subject = load_subject(settings, lambda tasks: [task for task in tasks if task.id in named])
    plan = make_plan(settings, subject, make_arms(settings, {}))
    source = {
        "file": samples.path.name,
        "sha256": hashlib.sha256(samples.path.read_bytes()).hexdigest(),
    }
    kinds = {sample.is_reply for sample in samples.samples}
    if len(kinds) > 1:
        raise KoderzError(f"{samples.path} has programs and replies; import them from a file each")
    return plan.having(
        config=plan.record.config | {"imported": "replies" if True in kinds else True},
        environment=plan.record.environment | {"imported": source},
    )


async def _judge_all(
    plan: Plan, samples: Samples, tracker: Tracker, judge: Judge, tell: Callable[[int], None]
) -> None:
    known = {(sample.task.id, sample.solver, sample.number): sample for sample in samples.samples}
    experiments = (
        (experiment, known[key])
        for experiment in plan.experiments()
        if (key := (experiment.task.id, experiment.arm.name, experiment.sample)) in known
    )
    done = count(1)

    async def work(pair: tuple[Identity, Sample]) -> None:
        """Runs an experiment with a page in place of a model, so that its journal is like that of any other run."""
        (identity, sample), started = pair, time.monotonic()
        async with Handles(identity, [], _Page(sample, tracker, judge)) as handles:
            try:
                verdict = await handles.judge(
                    identity.task, await handles.ask(identity.task.messages)
                )
            except ReferenceFault as fault:
                await tracker.record(
                    fault_of(identity, fault, cost=0.0, calls=handles.totals.calls)
                )
            else:
                await tracker.record(experiment_of(handles, verdict, time.monotonic() - started))
        tell(next(done))

    await judge.each(experiments, work)


@dataclass(frozen=True, slots=True)
class _Page:
    """The backend of one experiment whose program comes from a file and costs nothing."""

    sample: Sample
    tracker: Tracker
    own_judge: Judge

    async def complete(self, ask: Ask, identity: Identity) -> Answer:  # noqa: ARG002
        model = identity.arm.model
        return Answer(
            Completion(self.sample.program, finish_reason="imported", model=model),
            MAIN,
            model,
            Sampling(),
        )

    async def judge(self, *_: Any) -> Verdict:
        return await self.own_judge.verdict(self.sample)

    async def record(self, *lines: Record) -> None:
        await self.tracker.record(*lines)

    def text(self, text: Text) -> str:
        return read_text(text, self.tracker.folder)
