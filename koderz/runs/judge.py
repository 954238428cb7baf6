"""Judging without a run: one program, or the answers of a samples file."""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from koderz.errors import KoderzError
from koderz.plans.arms import MODES
from koderz.plans.selection import find_id
from koderz.sandbox import DockerOptions, NoSandbox
from koderz.sandbox.calibration import Exclusive, calibrated_sandbox, open_exclusive
from koderz.settings.schema import Settings
from koderz.suites import load_suite, program_suite
from koderz.suites.dataset import Row
from koderz.suites.options import CodeOptions
from koderz.suites.references import ReferenceFault, References, references_of
from koderz.suites.suite import JudgeContext, Suite
from koderz.suites.tables import read_rows
from koderz.types import EXCLUSIVE, JUDGE, Task, Verdict
from koderz_tracker.rates import pass_at_k, pass_hat_k

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
