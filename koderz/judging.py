"""Programs judged without a run: one of them, or a file of samples in HumanEval's or EvalPlus' format."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from koderz.errors import KoderzError
from koderz.references import ReferenceFault, checked
from koderz.sandbox import DOCKER_IMAGE, Sandbox
from koderz.suites import Suite, load_suite
from koderz.suites.dataset import Row, read_rows
from koderz.types import Judging, Task, Verdict
from koderz.yardstick import calibrated_sandbox
from tracker.rates import pass_at_k

PASS_AT = (1, 10, 100)


@dataclass(frozen=True, slots=True)
class Sample:
    """One program of a samples file."""

    task: Task
    program: str
    line_offset: int


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a samples file."""

    samples: int
    passed: int
    pass_at_k: dict[str, float]  # fractions, over the tasks that have k samples
    verdicts: dict[str, int]
    malformed: list[str]  # what is wrong with the lines that could not be judged
    faults: list[str]  # the tasks none of whose samples could be judged, and why


async def judge(
    task: str,
    program: str,
    *,
    suite: str = "humaneval",
    dataset: Path | None = None,
    timeout: float = 10.0,  # noqa: ASYNC109 CPU seconds of the program, not of this call
    memory_mb: int = 1024,
    sandbox: str = "contained",
    image: str = DOCKER_IMAGE,
) -> Verdict:
    """The verdict on one whole program. `timeout` is CPU seconds; `image` is that of the sandbox `docker`.

    Raises KoderzError for an unknown task, Unreachable where nothing contains programs here, Fault where the
    task's own reference doesn't pass.
    """
    asked = load_suite(suite, dataset)
    found = find_task(asked, task)
    how = Judging(timeout, memory_mb)
    async with calibrated_sandbox(sandbox, judges=1, image=image, memory_mb=memory_mb) as opened:
        suite_here = checked(asked, opened, how)
        try:
            return await (suite_here or asked).judge_program(found, program, opened, how)
        finally:
            if suite_here:
                suite_here.remember()


async def judge_samples(
    path: Path,
    suite: Suite,
    *,
    how: Judging,
    judges: int,
    tell: Callable[[int], None],
    sandbox: str = "contained",
    image: str = DOCKER_IMAGE,
) -> Report:
    """Judges every sample of a file; `tell` hears how many are done.

    A row has `task_id` and either `completion`, which goes after the task's prompt, or `solution`, which is
    whole. Malformed rows are reported, the others judged.
    """
    malformed: list[str] = []
    tasks = {task.id: task for task in suite.tasks}
    samples = _samples(path, tasks, malformed)
    verdicts: list[tuple[str, Verdict]] = []

    faults: dict[str, str] = {}

    async def lane(judging: Suite, opened: Sandbox) -> None:
        for sample in samples:
            offset = sample.line_offset
            try:
                verdict = await judging.judge_program(sample.task, sample.program, opened, how, line_offset=offset)
            except ReferenceFault as fault:
                faults[sample.task.id] = f"{sample.task.id}: {fault}"
                continue
            verdicts.append((sample.task.id, verdict))
            tell(len(verdicts))

    async with calibrated_sandbox(sandbox, judges=judges, image=image, memory_mb=how.memory_mb) as opened:
        suite_here = checked(suite, opened, how)
        async with asyncio.TaskGroup() as group:
            for _ in range(2 * judges):  # one is read and extracted while another runs
                group.create_task(lane(suite_here or suite, opened))
        if suite_here:
            suite_here.remember()
    return _report(verdicts, malformed, [*faults.values()])


def find_task(suite: Suite, name: str) -> Task:
    """Raises KoderzError where the suite has no such task."""
    for task in suite.tasks:
        if task.id == name:
            return task
    raise KoderzError(f"the suite {suite.name} has no task {name!r}; they are named like {suite.tasks[0].id}")


def _samples(path: Path, tasks: dict[str, Task], malformed: list[str]) -> Iterator[Sample]:
    for row in read_rows(path, skip=lambda error: malformed.append(str(error))):
        try:
            yield _sample(row, tasks)
        except KoderzError as error:
            malformed.append(str(error))


def _sample(row: Row, tasks: dict[str, Task]) -> Sample:
    task = tasks.get(row.text("task_id"))
    if task is None:
        raise row.error(f"there is no task {row.text('task_id')!r}")
    if "solution" in row.fields:
        return Sample(task, row.text("solution"), 0)
    return Sample(task, task.prompt + row.text("completion"), task.prompt.count("\n"))


def _report(verdicts: Sequence[tuple[str, Verdict]], malformed: list[str], faults: list[str]) -> Report:
    tasks: dict[str, list[bool]] = defaultdict(list)
    for task, verdict in verdicts:
        tasks[task].append(verdict.passed)
    fewest = min(map(len, tasks.values()), default=0)
    return Report(
        samples=len(verdicts),
        passed=sum(verdict.passed for _, verdict in verdicts),
        pass_at_k={
            f"pass@{k}": statistics.fmean(pass_at_k(len(p), sum(p), k) for p in tasks.values())
            for k in PASS_AT
            if k <= fewest
        },
        verdicts=dict(Counter(verdict.cause or verdict.verdict for _, verdict in verdicts)),
        malformed=malformed,
        faults=faults,
    )
