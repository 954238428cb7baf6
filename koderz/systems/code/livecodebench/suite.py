"""LiveCodeBench: contest tasks that are newer than a model, with the verdicts of the official harness.

Source: Jain et al., "LiveCodeBench: holistic and contamination free evaluation of large language models for code"
(2024). The rule is that of `run_test` of github.com/LiveCodeBench/LiveCodeBench at 28fef95.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from koderz.errors import Fault, KoderzError
from koderz.prompts import Prompts, trimmed
from koderz.sandbox import Job
from koderz.settings.paths import cache_folder
from koderz.settings.schema import Settings
from koderz.suites import task_digest
from koderz.suites.suite import JudgeContext, ProgramSuite, SuiteSource
from koderz.systems.code.livecodebench.options import RELEASES, TASKS, LiveCodeBenchOptions
from koderz.systems.code.livecodebench.rows import Cases, Contest, Found, read_contests
from koderz.systems.code.programs import FEEDBACK_CHARS, lesson_of
from koderz.types import Judging, Lesson, Message, Reply, Sampling, Task, Verdict

PASSED_AS_PROCESS = "passed_as_process"
"""The fact of a failed result: whether the program passes as a plain process with a real stdin."""

RULES = {
    "official": "as LiveCodeBench's run_test: one process a program, tests in order, its stand-ins for stdin and "
    "stdout, lines stripped, equal or equal as decimals, values by ==; 6 s of CPU a test in place of the clock's, a "
    "program that waits so long without working included; on purpose different: a value that only claims to be equal "
    "fails",
    "process": "a plain process a test with a real stdin and stdout, which has to end with status 0; output compared "
    "as LiveCodeBench does; tasks that ask for a function as in its run_test",
}

_HERE = Path(__file__).parent
_HARNESS, _TEST = ((_HERE / name).read_text(encoding="utf-8") for name in ("harness.py", "comparison.py"))
LIMITS = Judging(timeout=6.0, memory_mb=4096)
_PRINTED = 64 << 20  # bytes that a program may write elsewhere than to its stdout
_WITH_PROCESSES = ("", "contained", "local", "uncontained")
"""The sandboxes in which a program can be a process with a stdin of its own."""

_FENCE = "```"
_UNREAD = {
    "length": "The answer was cut off before the program was complete. Answer more briefly.",
    "no_code": "The answer holds no program between two lines with ```. Put the whole program in one ```python code "
    "block at the end.",
}

ContestTask = Task[Contest]


def program_in(reply: str) -> str:
    """The program between the last two lines that hold three backticks; empty where there are fewer."""
    lines = reply.split("\n")
    fences = [number for number, line in enumerate(lines) if _FENCE in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


class LiveCodeBench(ProgramSuite):
    """Contest tasks by their date, from LiveCodeBench's test*.jsonl, with its own verdicts."""

    name = "livecodebench"
    options = LiveCodeBenchOptions
    parts = (PASSED_AS_PROCESS,)
    is_sound = True  # there are no references
    tasks: tuple[ContestTask, ...]
    configuration: LiveCodeBenchOptions

    def __init__(
        self, source: str, found: Iterable[Found], options: LiveCodeBenchOptions | None = None, *, sandbox: str = ""
    ) -> None:
        """Raises KoderzError where no task is of the options' days, or where `sandbox` gives no process a stdin."""
        options = options or LiveCodeBenchOptions()
        self._has_processes = sandbox in _WITH_PROCESSES
        if options.io == "process" and not self._has_processes:
            raise KoderzError(f"--io process needs --sandbox contained: {sandbox} gives programs no stdin of their own")
        self.source = source
        self.limits = options.limits(LIMITS)
        self.configuration = replace(options, test_timeout=self.limits.timeout, test_memory=self.limits.memory_mb)
        self.tasks, days = _chosen(found, options)
        if not self.tasks:
            raise KoderzError(f"{source} {_lacking(days, options)}")
        self.notices = (*_notices(len(self.tasks), options),)

    @classmethod
    def load(cls, source: SuiteSource) -> LiveCodeBench:
        """Raises KoderzError where the files are missing, or naming the line of a malformed row."""
        path = source.dataset or _usual_place()
        return cls(str(path), read_contests(path), source.options, sandbox=source.sandbox)

    def messages(self, task: ContestTask, prompts: Prompts) -> tuple[Message, ...]:
        """The prompts `livecodebench-system` and `livecodebench`."""
        reasoning = prompts.render("reasoning") if self.configuration.cot else ""
        values = {name: task.values[name] for name in ("question", "starter", "how")}
        text = prompts.render("livecodebench", **values, reasoning=reasoning)
        system = prompts.render("livecodebench-system")
        return {"role": "system", "content": system}, {"role": "user", "content": text}

    def details(self, tasks: Sequence[Task], settings: Settings) -> Mapping[str, Any]:  # noqa: ARG002
        """The rule of the verdicts, and the days that the tasks are of."""
        days = sorted(task.values["contest_date"] for task in tasks)
        return {"rule": RULES[self.configuration.io], "first_day": days[0], "last_day": days[-1]}

    def outline(self, plan: Any) -> Iterable[str]:  # noqa: ARG002
        """The rule, and whether contamination is excluded."""
        return (f"rule     {RULES[self.configuration.io]}",)

    def simulate(self, messages: Sequence[Message], sampling: Sampling) -> str:  # noqa: ARG002
        """A program that repeats its input, which passes hardly a task."""
        return "This repeats what it reads.\n\n```python\nimport sys\n\nprint(sys.stdin.read())\n```\n"

    async def judge(self, task: ContestTask, answer: Reply | str, context: JudgeContext) -> Verdict:
        """Takes the program from the answer by the official rule and runs all tests on it."""
        text, finish = (answer.text, answer.finish_reason) if isinstance(answer, Reply) else (answer, "stop")
        program = program_in(text)
        if not program.strip():
            cause = "length" if finish == "length" else "no_code"
            return Verdict("error", cause, feedback=_UNREAD[cause], detail=_UNREAD[cause])
        return await self.judge_program(task, program, context)

    async def judge_program(
        self,
        task: ContestTask,
        program: str,
        context: JudgeContext,
        *,
        line_offset: int = 0,  # noqa: ARG002
    ) -> Verdict:
        """Runs all tests on a whole program; after a failure of one that reads stdin, as plain processes too."""
        cases = await _cases_of(task)
        by_process = self.configuration.io == "process" and not cases.function
        outcome = await context.sandbox.judge(job_of(program, cases, context.limits, as_process=by_process))
        verdict = Verdict(
            verdict=outcome.verdict,
            cause=outcome.cause,
            detail=outcome.message,
            program=program,
            metrics={"cpu": outcome.cpu, "wall": outcome.wall},
            sandbox=outcome.isolation,
        )
        if verdict.passed:
            return verdict
        if self._has_processes and not cases.function and not by_process:
            again = await context.sandbox.judge(job_of(program, cases, context.limits, as_process=True))
            verdict = replace(verdict, facts={PASSED_AS_PROCESS: again.verdict == "passed"})
        return replace(verdict, feedback=await self._feedback(program, cases, verdict, context, by_process))

    def lesson(self, task: Task, verdicts: Sequence[Verdict]) -> Lesson | None:
        """The lesson of the attempts at a task, for memory."""
        return lesson_of(task.id, verdicts)

    async def _feedback(
        self, program: str, cases: Cases, verdict: Verdict, context: JudgeContext, as_process: bool
    ) -> str:
        """The feedback for the solver, which holds no hidden test unless the run allows it."""
        kind = context.limits.feedback
        if kind == "tests":
            return trimmed(verdict.detail, FEEDBACK_CHARS)
        if kind == "none" or not cases.public:
            return "The program doesn't pass its tests."
        job = job_of(program, cases, context.limits, as_process=as_process, only_public=True)
        shown = await context.sandbox.judge(job)
        if shown.verdict == "passed":
            return "The program passes the examples of the question, but not all tests."
        return trimmed(shown.message, FEEDBACK_CHARS)


async def _cases_of(task: ContestTask) -> Cases:
    """The task's tests. Raises Fault where they can't be read: that is nobody's verdict."""
    try:
        return await asyncio.to_thread(task.payload.cases)
    except KoderzError as error:
        raise Fault(str(error), cause="judge") from error


def job_of(program: str, cases: Cases, limits: Judging, *, as_process: bool, only_public: bool = False) -> Job:
    """The job of judging a program by the tests of a task."""
    return Job(
        program=program,
        test=_TEST,
        entry_point=cases.function,
        timeout=limits.timeout * (1 if as_process else len(cases.inputs) + 1),
        memory_mb=limits.memory_mb,
        output_limit=_PRINTED,
        case_timeout=limits.timeout,
        as_process=as_process,
        harness="" if as_process else _HARNESS,
        data=cases.as_json(only_public=only_public),
    )


def _usual_place() -> Path:
    folder = cache_folder()
    if any(folder.glob("test*.jsonl*")):
        return folder
    raise KoderzError(
        f"test.jsonl isn't in {folder}; get test*.jsonl from the data set livecodebench/code_generation_lite, and put "
        "them there or name the file or folder with --dataset"
    )


def _chosen(found: Iterable[Found], options: LiveCodeBenchOptions) -> tuple[tuple[ContestTask, ...], list[date]]:
    """The tasks of the days that were asked for, and all days that there are."""
    first, last = (date.fromisoformat(options.since) if options.since else date.min), options.last_day or date.max
    tasks: dict[str, ContestTask] = {}
    days = []
    for each in found:
        days.append(each.day)
        if first <= each.day <= last:
            task = _task(each, options.cluster_column)
            if task.id in tasks:
                raise each.row.error(f"the task {task.id} is there twice")
            tasks[task.id] = task
    return tuple(tasks.values()), days


def _task(found: Found, cluster_column: str | None) -> ContestTask:
    row, function = found.row, found.contest.function
    question, starter = row.text("question_content"), row.text("starter_code", "")
    if function:
        how = "It has the class and method of the code above, and neither reads nor prints anything."
    else:
        how = "It reads the input from stdin and writes the answer to stdout, and nothing else."
    values = {
        "question": question,
        "starter": f"Begin with this code:\n\n```python\n{starter.rstrip()}\n```" if starter.strip() else "",
        "how": how,
        "prompt": question,
        "entry_point": function or "main",
        "contest_date": found.day.isoformat(),
    }
    groups = {
        "contest_date": found.day.isoformat()[:7],  # by month
        "difficulty": row.text("difficulty", "unknown"),
        "platform": row.text("platform", "unknown"),
    }
    name = row.id("question_id")
    return Task(
        id=name,
        prompt=question,
        payload=found.contest,
        values=values,
        digest=task_digest(name, found.contest.digest, _TEST, _HARNESS),
        groups=groups,
        cluster=row.cluster_by(cluster_column),
    )


def _notices(tasks: int, options: LiveCodeBenchOptions) -> Iterable[str]:
    if not options.since:
        yield (
            "contamination isn't excluded: the model may have seen these contests; --since DATE asks only what is newer"
        )
    if options.release and not (options.since or options.until) and tasks != TASKS[options.release]:
        last = RELEASES[options.release]
        yield (
            f"release {options.release} was published with {TASKS[options.release]:,} tasks; {tasks:,} of this dataset "
            f"are of contests up to {last}"
        )


def _lacking(days: Sequence[date], options: LiveCodeBenchOptions) -> str:
    if not days:
        return "holds no task"
    wanted = " ".join(
        f"{word} {day}" for word, day in (("since", options.since), ("until", options.last_day)) if day is not None
    )
    return f"holds no task of a contest {wanted}; its contests are from {min(days)} to {max(days)}"
