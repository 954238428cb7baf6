"""LiveCodeBench: contest tasks that are newer than a model, with the verdicts of the official harness.

Source: Jain et al., "LiveCodeBench: holistic and contamination free evaluation of large language models for code"
(2024). The rule is that of `run_test` of github.com/LiveCodeBench/LiveCodeBench at 28fef95.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import hashlib
import json
import pickletools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from koderz.errors import Fault, KoderzError
from koderz.prompts import Prompts, trimmed
from koderz.sandbox import Job
from koderz.settings.paths import cache_folder
from koderz.settings.schema import Settings
from koderz.suites import task_digest
from koderz.suites.dataset import Row, lines_of, misspelt, opened, row_of_line
from koderz.suites.suite import JudgeContext, ProgramSuite, Publication, SuiteSource
from koderz.systems.code.options import RELEASES, TASKS, LiveCodeBenchOptions
from koderz.systems.code.programs import FEEDBACK_CHARS, lesson_of
from koderz.types import Judging, Lesson, Message, Reply, Sampling, Task, Verdict
from koderz_tracker.files import MB

# Rows are read without running anything that is in them. The files are large: a task holds the place of its row, and
# its tests are read when a program is judged by them.

_LONGEST = 1024 * MB  # of a line, and of the tests in it
# of a file whose tests are all read at once, so that a broken row is found before anything is spent
_CHECKED = 64 * MB
_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_AROUND = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"})
_KEPT = 8  # tasks whose tests are remembered


class Cases(NamedTuple):
    """The tests of a task, in their order."""

    function: str  # what they call; empty for a program that reads stdin
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    public: int  # the first so many are shown in the question

    def as_json(self, *, only_public: bool = False) -> str:
        """The tests as `comparison` reads them."""
        most = self.public if only_public else len(self.inputs)
        shown = {"inputs": self.inputs[:most], "outputs": self.outputs[:most]}
        return json.dumps({"function": bool(self.function), **shown})


@dataclass(frozen=True, slots=True)
class Contest:
    """A task of a contest, with the place of its row."""

    path: Path
    offset: int  # bytes, of the unpacked file
    line: int  # its number, from 1
    function: str
    digest: str  # of the row

    def cases(self) -> Cases:
        """Its tests, read anew unless they were lately. Raises KoderzError where they can't be."""
        return _cases_at(self)


class Found(NamedTuple):
    """A row with its place."""

    row: Row
    contest: Contest
    day: date


def read_contests(path: Path) -> Iterator[Found]:
    """The rows of a file, or of the files test*.jsonl of a folder. Raises KoderzError, naming the line."""
    files = (
        sorted({*path.glob("test*.jsonl"), *path.glob("test*.jsonl.gz")})
        if path.is_dir()
        else [path]
    )
    if not files:
        raise KoderzError(f"{path} holds no test*.jsonl, as LiveCodeBench publishes them")
    for file in files:
        yield from _read_file(file)


def _read_file(path: Path) -> Iterator[Found]:
    with opened(path) as file:
        is_small = path.stat().st_size <= _CHECKED
        offset = 0
        for number, line in lines_of(file, path, _LONGEST):
            if line.strip():
                yield _found(
                    row_of_line(line, path, number), path, offset, line, number, is_checked=is_small
                )
            offset += len(line)


def _found(
    row: Row, path: Path, offset: int, line: bytes, number: int, *, is_checked: bool
) -> Found:
    row.text("question_content")
    row.text("private_test_cases")
    name = row.id("question_id")
    if not name.isprintable() or not 0 < len(name) <= 200:
        raise row.error("the field 'question_id' has to be 1 to 200 printable characters")
    try:
        day = date.fromisoformat(row.text("contest_date")[:10])
    except ValueError:
        raise row.error(
            f"the field 'contest_date' is no date: {row.text('contest_date')[:40]!r}"
        ) from None
    contest = Contest(path, offset, number, _function_of(row), _digest(line))
    if is_checked:
        _cases_of(row, contest.function)
    else:
        _tests_in(row, "public_test_cases")
    return Found(row, contest, day)


def _digest(line: bytes) -> str:
    return hashlib.blake2b(line.strip(), digest_size=16).hexdigest()


def _function_of(row: Row) -> str:
    """The name of the function that tests call; empty where they read stdin."""
    try:
        about = json.loads(row.text("metadata", "{}") or "{}")
    except (ValueError, RecursionError):
        raise row.error("the field 'metadata' isn't JSON") from None
    name = about.get("func_name") if isinstance(about, dict) else None
    if name is None:
        return ""
    if not isinstance(name, str) or not name.isidentifier():
        raise row.error(f"the field 'metadata' names no function: {str(name)[:80]!r}")
    return name


@functools.lru_cache(maxsize=_KEPT)
def _cases_at(contest: Contest) -> Cases:
    with opened(contest.path) as file:
        file.seek(contest.offset)
        line = file.readline(_LONGEST)
    if _digest(line) != contest.digest:
        raise KoderzError(
            f"{contest.path}, line {contest.line}: the row has changed since the file was read"
        )
    return _cases_of(row_of_line(line, contest.path, contest.line), contest.function)


def _cases_of(row: Row, function: str) -> Cases:
    public, private = _tests_in(row, "public_test_cases"), _tests_in(row, "private_test_cases")
    tests = [*public, *private]
    if not tests:
        raise row.error("it has no tests")
    kinds = {kind for *_, kind in tests}
    if kinds != {"functional" if function else "stdin"}:
        told = "names a function" if function else "names no function"
        raise row.error(f"its tests are {' and '.join(sorted(kinds))}, and 'metadata' {told}")
    return Cases(
        function, tuple(each[0] for each in tests), tuple(each[1] for each in tests), len(public)
    )


def _tests_in(row: Row, field: str) -> list[tuple[str, str, str]]:
    """Input, output and kind of each test of a field. Raises KoderzError."""
    text = row.text(field)
    try:
        tests = json.loads(text)
    except (ValueError, RecursionError):
        tests = _unpacked(row, field, text)
    if not isinstance(tests, list):
        raise row.error(f"the field {field!r} has to be a list of tests")
    return [_test(row, field, each) for each in tests]


def _test(row: Row, field: str, test: Any) -> tuple[str, str, str]:
    match test:
        case {
            "input": str(given),
            "output": str(wanted),
            "testtype": "stdin" | "functional" as kind,
        }:
            try:
                given.encode(), wanted.encode()
            except UnicodeEncodeError:
                raise row.error(
                    f"a test of {field!r} holds half a surrogate pair, which isn't a character"
                ) from None
            return given, wanted, kind
        case {"input": _, "output": _, "testtype": _}:
            raise row.error(f"a test of {field!r} isn't text of the kind 'stdin' or 'functional'")
        case {**keys}:
            lacking = next(name for name in ("input", "output", "testtype") if name not in keys)
            raise row.error(
                f"a test of {field!r} has no {lacking!r}{misspelt(lacking, [*map(str, keys)])}"
            )
    raise row.error(f"a test of {field!r} isn't an object")


def _unpacked(row: Row, field: str, text: str) -> Any:
    """The tests in a field that is base64 of zlib of a pickle of one string, of JSON."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(text, validate=True), _LONGEST)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise row.error(
                f"the field {field!r} is cut off, or unpacks to more than {_LONGEST // MB} MB"
            )
        return json.loads(_pickled_string(data))
    except (binascii.Error, zlib.error):
        raise row.error(f"the field {field!r} is neither JSON nor base64 of zlib") from None
    except (ValueError, RecursionError) as error:
        raise row.error(
            f"the field {field!r} holds something else than a pickled string of JSON ({error})"
        ) from None


def _pickled_string(data: bytes) -> str:
    """The string that a pickle holds, without unpickling it. Raises ValueError for any other pickle."""
    found: list[str] = []
    for operation, value, _ in pickletools.genops(data):
        if operation.name not in _STRINGS | _AROUND:
            raise ValueError(f"its pickle does {operation.name}, and may only hold text")
        if operation.name in _STRINGS:
            found.append(str(value))
    if len(found) != 1:
        raise ValueError(f"its pickle holds {len(found)} texts instead of one")
    return found[0]


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
_HARNESS, _TEST = (
    (_HERE / name).read_text(encoding="utf-8") for name in ("harness.py", "comparison.py")
)
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
    publication = Publication.on_hub(
        "livecodebench/code_generation_lite", "CC, see its card", files="test*.jsonl"
    )
    parts = (PASSED_AS_PROCESS,)
    is_sound = True  # there are no references
    tasks: tuple[ContestTask, ...]
    configuration: LiveCodeBenchOptions

    def __init__(
        self,
        source: str,
        found: Iterable[Found],
        options: LiveCodeBenchOptions | None = None,
        *,
        sandbox: str = "",
    ) -> None:
        """Raises KoderzError where no task is of the options' days, or where `sandbox` gives no process a stdin."""
        options = options or LiveCodeBenchOptions()
        self._has_processes = sandbox in _WITH_PROCESSES
        if options.io == "process" and not self._has_processes:
            raise KoderzError(
                f"--io process needs --sandbox contained: {sandbox} gives programs no stdin of their own"
            )
        self.source = source
        self.limits = options.limits(LIMITS)
        self.configuration = replace(
            options, test_timeout=self.limits.timeout, test_memory=self.limits.memory_mb
        )
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
        return (
            "This repeats what it reads.\n\n```python\nimport sys\n\nprint(sys.stdin.read())\n```\n"
        )

    async def judge(self, task: ContestTask, answer: Reply | str, context: JudgeContext) -> Verdict:
        """Takes the program from the answer by the official rule and runs all tests on it."""
        text, finish = (
            (answer.text, answer.finish_reason) if isinstance(answer, Reply) else (answer, "stop")
        )
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
        cases = await _tests_of(task)
        by_process = self.configuration.io == "process" and not cases.function
        outcome = await context.sandbox.judge(
            job_of(program, cases, context.limits, as_process=by_process)
        )
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
            again = await context.sandbox.judge(
                job_of(program, cases, context.limits, as_process=True)
            )
            verdict = replace(verdict, facts={PASSED_AS_PROCESS: again.verdict == "passed"})
        return replace(
            verdict, feedback=await self._feedback(program, cases, verdict, context, by_process)
        )

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


async def _tests_of(task: ContestTask) -> Cases:
    """The task's tests. Raises Fault where they can't be read: that is nobody's verdict."""
    try:
        return await asyncio.to_thread(task.payload.cases)
    except KoderzError as error:
        raise Fault(str(error), cause="judge") from error


def job_of(
    program: str, cases: Cases, limits: Judging, *, as_process: bool, only_public: bool = False
) -> Job:
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
    raise LiveCodeBench.publication.missing(
        LiveCodeBench.name, "FOLDER", option="--dataset FILE or FOLDER"
    )


def _chosen(
    found: Iterable[Found], options: LiveCodeBenchOptions
) -> tuple[tuple[ContestTask, ...], list[date]]:
    """The tasks of the days that were asked for, and all days that there are."""
    first, last = (
        (date.fromisoformat(options.since) if options.since else date.min),
        options.last_day or date.max,
    )
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
        how = (
            "It has the class and method of the code above, and neither reads nor prints anything."
        )
    else:
        how = "It reads the input from stdin and writes the answer to stdout, and nothing else."
    values = {
        "question": question,
        "starter": f"Begin with this code:\n\n```python\n{starter.rstrip()}\n```"
        if starter.strip()
        else "",
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
        f"{word} {day}"
        for word, day in (("since", options.since), ("until", options.last_day))
        if day is not None
    )
    return f"holds no task of a contest {wanted}; its contests are from {min(days)} to {max(days)}"
