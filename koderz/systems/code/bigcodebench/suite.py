"""BigCodeBench from its published JSON lines.

Source: Zhuo et al., "BigCodeBench: benchmarking code generation with diverse function calls and complex instructions"
(2024), github.com/bigcode-project/bigcodebench at 47eff25.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koderz.errors import Fault, KoderzError
from koderz.prompts import Prompts, trimmed
from koderz.sandbox import Job
from koderz.sandbox.once import Once
from koderz.settings.schema import Settings
from koderz.suites import task_digest
from koderz.suites.dataset import Row, cached_dataset
from koderz.suites.suite import JudgeContext, ProgramSuite, Publication, SuiteSource
from koderz.suites.tables import rows_in
from koderz.systems.code.bigcodebench.interpreter import TestingInterpreter, own_or, require_sandbox
from koderz.systems.code.options import BigCodeBenchOptions
from koderz.systems.code.programs import FEEDBACK_CHARS, lesson_of
from koderz.systems.code.tasks import as_python
from koderz.types import Judging, Lesson, Message, Reply, Sampling, Task, Verdict

# Tests that can be split call the function with plain data, look at plain data, and reach for nothing of its process:
# no files, no patches, no random numbers that both sides draw.

_MODULES = frozenset(
    [
        "base64",
        "bisect",
        "calendar",
        "collections",
        "copy",
        "csv",
        "datetime",
        "decimal",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "numbers",
        "operator",
        "re",
        "statistics",
        "string",
        "textwrap",
        "typing",
        "unittest",
    ]
)
_FORBIDDEN = frozenset(
    [
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "environ",
        "eval",
        "exec",
        "exit",
        "getattr",
        "globals",
        "help",
        "input",
        "locals",
        "open",
        "os",
        "print",
        "quit",
        "setattr",
        "setUpModule",
        "sys",
        "tearDownModule",
        "vars",
    ]
)

CHECK = """

def check(candidate):
    import unittest

    class FirstFailure(unittest.TestResult):
        first = None

        def _keep(self, error):
            self.first = self.first or error[1]
            self.stop()

        def addError(self, case, error):
            self._keep(error)

        def addFailure(self, case, error):
            self._keep(error)

        def addSubTest(self, case, part, error):
            if error is not None:
                self._keep(error)

    globals()[ENTRY_POINT] = candidate
    result = FirstFailure()
    unittest.TestLoader().loadTestsFromTestCase(TestCases).run(result)
    if result.first is not None:
        raise result.first
"""
"""The end of such tests: all cases are run up to the first that doesn't pass."""


def judged_apart(test: str, entry_point: str, libraries: frozenset[str]) -> str:
    """The tests as the judge runs them; empty where they have to run beside the solution."""
    if not libraries <= sys.stdlib_module_names:
        return ""
    tree = ast.parse(test)
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    if "TestCases" not in classes or not {*_imported(tree)} <= _MODULES:
        return ""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    binds = {
        node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    if names & _FORBIDDEN or binds & _FORBIDDEN or _mocks(tree) or entry_point not in names:
        return ""
    return f"{test}\nENTRY_POINT = {entry_point!r}\n{CHECK}"


def _imported(tree: ast.Module) -> Iterator[str]:
    """The top-level names of all modules that are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else (node.module or "").split(".")[0]


def _mocks(tree: ast.Module) -> bool:
    """Whether it reaches for `unittest.mock`, by whatever name."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.ImportFrom(module=str(name)) | ast.alias(name=name) | ast.Attribute(attr=name)
            ) if "mock" in name:
                return True
    return False


RULE = (
    "as BigCodeBench: the prompt's imports put before the solution (calibrated), all unittest cases have to pass and "
    "none may error, 240 s; the judge runs the cases that need only plain data, others are labelled in-process"
)

IN_PROCESS = "in_process"
"""The fact of a result whose tests ran in the program's own process, where a program could forge them."""

_HARD = 148  # tasks of the hard set
_LIMITS = Judging(timeout=240.0, memory_mb=4096)
_NAMED = 5  # libraries in a notice
_SPLITS = {"complete": "complete_prompt", "instruct": "instruct_prompt"}


@dataclass(frozen=True, slots=True)
class Exercise:
    """A function with its unittest cases."""

    entry_point: str
    head: str  # the imports and the function's first line, which are put before every solution
    test: str
    # the same tests as the judge runs them; empty where they have to run beside the solution
    apart: str
    reference: str
    libraries: frozenset[str]


ExerciseTask = Task[Exercise]


def _on_hub(name: str) -> Publication:
    return Publication.on_hub(f"bigcode/{name}", "Apache-2.0, see its card", files="data/v0.1.4*")


class BigCodeBench(ProgramSuite):
    """Practical tasks with many libraries, from BigCodeBench's JSON lines, tested by their unittest cases."""

    name = "bigcodebench"
    options = BigCodeBenchOptions
    publication = _on_hub("bigcodebench")
    tasks: tuple[ExerciseTask, ...]
    configuration: BigCodeBenchOptions

    def __init__(
        self, source: str, tasks: Sequence[ExerciseTask], options: BigCodeBenchOptions, sandbox: str
    ) -> None:
        """Raises KoderzError where no task's libraries are there."""
        self.source = source
        self.limits = options.limits(_LIMITS)
        self.configuration = replace(
            options, test_timeout=self.limits.timeout, test_memory=self.limits.memory_mb
        )
        self.interpreter = own_or(options.python, sandbox)
        missing = self.interpreter.missing(
            frozenset().union(*(task.payload.libraries for task in tasks))
        )
        self.skipped = {
            task.id: lacking for task in tasks if (lacking := task.payload.libraries & missing)
        }
        self.tasks = tuple(task for task in tasks if task.id not in self.skipped)
        if not self.tasks:
            raise KoderzError(f"{source}: {_skipping(self.skipped, len(tasks), self.interpreter)}")
        told = [_skipping(self.skipped, len(tasks), self.interpreter)] if self.skipped else []
        self.notices = (
            *told,
            "BigCodeBench's own figures have 30 GB of memory a task; --test-memory sets it here",
        )
        self._sound_apart: Once[bool] = Once()

    @classmethod
    def load(cls, source: SuiteSource) -> BigCodeBench:
        """Raises KoderzError where the file is missing, or naming the line of a malformed row."""
        options = source.options or BigCodeBenchOptions()
        require_sandbox(source.sandbox)
        published, name = cls.publication, "BigCodeBench.jsonl"
        if options.hard:
            published, name = _on_hub("bigcodebench-hard"), "BigCodeBench-Hard.jsonl"
        path = source.dataset or cached_dataset(name)
        if path is None and options.hard:
            raise KoderzError(
                f"the hard set needs its file: get it with: {published.command}; then name it with --dataset FILE"
            )
        if path is None:
            raise published.missing(cls.name)
        tasks = read_exercises(path, options)
        if options.hard and len(tasks) > _HARD:
            raise KoderzError(
                f"--hard: {path} holds {len(tasks):,} tasks, and the hard set {_HARD}; name that of bigcodebench-hard"
            )
        return cls(str(path), tasks, options, source.sandbox or "contained")

    def messages(self, task: ExerciseTask, prompts: Prompts) -> tuple[Message, ...]:
        """The prompts `system` and `bigcodebench`."""
        reasoning = prompts.render("reasoning") if self.configuration.cot else ""
        values = {name: task.values[name] for name in ("question", "entry_point")}
        text = prompts.render("bigcodebench", **values, reasoning=reasoning)
        return {"role": "system", "content": prompts.render("system")}, {
            "role": "user",
            "content": text,
        }

    def details(self, tasks: Sequence[Task], settings: Settings) -> Mapping[str, Any]:  # noqa: ARG002
        """The rule of the verdicts, the interpreter, and the tasks that were left out for lack of a library."""
        return {
            "rule": RULE,
            "python": self.interpreter.path,
            "skipped": {each: sorted(why) for each, why in self.skipped.items()},
        }

    def outline(self, plan: Any) -> Iterable[str]:  # noqa: ARG002
        """The rule."""
        return (f"rule     {RULE}",)

    def simulate(self, messages: Sequence[Message], sampling: Sampling) -> str:  # noqa: ARG002
        """A function that does nothing, which passes hardly a task."""
        return "```python\ndef task_func(*arguments, **keywords):\n    return None\n```\n"

    def reference(self, task: ExerciseTask) -> str:
        """The task's own solution, whole."""
        return task.payload.reference

    async def judge(
        self, task: ExerciseTask, answer: Reply | str, context: JudgeContext
    ) -> Verdict:
        """Extracts the program from the answer and runs the task's cases on it."""
        from koderz.systems.code.extraction.limits import extract_within_limits
        from koderz.systems.code.programs import unusable

        text, finish = (
            (answer.text, answer.finish_reason) if isinstance(answer, Reply) else (answer, "stop")
        )
        payload = task.payload
        found = await extract_within_limits(text, task.values["head"], payload.entry_point, finish)
        if found.program is None or found.cause not in ("", "no_entry_point"):
            return unusable(found, payload.entry_point, finish)
        return await self.judge_program(task, found.program, context)

    async def judge_program(
        self,
        task: ExerciseTask,
        program: str,
        context: JudgeContext,
        *,
        line_offset: int = 0,  # noqa: ARG002
    ) -> Verdict:
        """Runs the task's cases on a whole program: in the judge's process if they can, else beside it."""
        verdict = await self._judged(task, program, context)
        if verdict.passed:
            return verdict
        open_to_all = context.limits.feedback == "tests"
        shown = (
            trimmed(verdict.detail, FEEDBACK_CHARS)
            if open_to_all
            else "The function doesn't pass its tests."
        )
        return replace(verdict, feedback=shown)

    def lesson(self, task: Task, verdicts: Sequence[Verdict]) -> Lesson | None:
        """The lesson of the attempts at a task, for memory."""
        return lesson_of(task.id, verdicts)

    async def _judged(self, task: ExerciseTask, program: str, context: JudgeContext) -> Verdict:
        payload = task.payload
        if payload.apart and self.interpreter.is_own:
            sound = await self._sound_apart(
                task.id.encode(),
                lambda: _passes(_job(payload, payload.reference, context.limits), context),
            )
            if sound:
                outcome = await context.sandbox.judge(_job(payload, program, context.limits))
                return Verdict(
                    outcome.verdict,
                    outcome.cause,
                    detail=outcome.message,
                    program=program,
                    metrics={"cpu": outcome.cpu, "wall": outcome.wall},
                    sandbox=outcome.isolation,
                    facts={IN_PROCESS: False},
                )
        return await self._beside(payload, program, context.limits)

    async def _beside(self, payload: Exercise, program: str, limits: Judging) -> Verdict:
        """The verdict of the cases in the program's own process."""
        whole = _calibrated(payload, program)
        ended, report, isolation = await self.interpreter.tested(whole, payload.test, limits)
        verdict, cause, detail = _finding(ended, report)
        return Verdict(
            verdict,
            cause,
            detail=detail,
            program=program,
            metrics={"cpu": ended.cpu, "wall": ended.seconds},
            sandbox=isolation,
            facts={IN_PROCESS: True},
        )


async def _passes(job: Job, context: JudgeContext) -> bool:
    """Whether the reference passes in the judge's process: else the tests can't be turned so."""
    try:
        return (await context.sandbox.judge(job)).verdict == "passed"
    except Fault:
        return False


def _job(payload: Exercise, program: str, limits: Judging) -> Job:
    return Job(
        program=_calibrated(payload, program),
        test=payload.apart,
        entry_point=payload.entry_point,
        timeout=limits.timeout,
        memory_mb=limits.memory_mb,
        line_offset=payload.head.count("\n") + 2,
    )


def _calibrated(payload: Exercise, program: str) -> str:
    """The program as the official leaderboard runs it: with the prompt's imports before it."""
    return f"{payload.head}\n    pass\n{program}" if payload.head else program


def _finding(ended: Any, report: Any) -> tuple[str, str, str]:
    """Verdict, cause and detail of cases that ran beside the program."""
    if ended.cause == "timeout":
        return "timeout", "wall", f"the tests were still running after {ended.seconds:.3g} s"
    if ended.cause:
        return "error", ended.cause, f"the tests were ended for their {ended.cause}"
    match report:
        case {"ran": int(), "failed": []}:
            return "passed", "", ""
        case {"ran": int(ran), "failed": [[str(name), str(kind), str(text)], *others]}:
            count = f"{1 + len(others)} of {ran} tests failed; the first: {name}\n" if ran else ""
            detail = f"{count}{text.strip()}"
            if kind == "AssertionError":
                return "failed", "assertion", detail
            return (
                "error",
                "syntax" if kind == "SyntaxError" and not ran else f"exception:{kind}",
                detail,
            )
    how = f"status {ended.status}" if ended.status >= 0 else f"signal {-ended.status}"
    return (
        "error",
        "killed",
        f"the process ended with {how} before its tests did\n{ended.output[-500:]}".strip(),
    )


def read_exercises(path: Path, options: BigCodeBenchOptions) -> tuple[ExerciseTask, ...]:
    """The tasks of a file, in its order. Raises KoderzError, which names the bad line."""
    tasks: dict[str, ExerciseTask] = {}
    for row in rows_in(path):
        task = _task(row, options)
        if task.id in tasks:
            raise row.error(f"the task {task.id} is there twice")
        tasks[task.id] = task
    if not tasks:
        raise KoderzError(f"{path} holds no task")
    return tuple(tasks.values())


def _task(row: Row, options: BigCodeBenchOptions) -> ExerciseTask:
    name, entry_point, test = row.id("task_id"), row.text("entry_point"), row.text("test")
    prompt, whole = row.text(_SPLITS[options.split]), row.text("complete_prompt")
    solution = row.text("canonical_solution")
    if not name.isprintable() or not 0 < len(name) <= 200:
        raise row.error("the field 'task_id' has to be 1 to 200 printable characters")
    if not entry_point.isidentifier():
        raise row.error(f"the field 'entry_point' is no Python name: {entry_point[:80]!r}")
    tree = as_python(row, "test", test)
    if not any(isinstance(node, ast.ClassDef) and node.name == "TestCases" for node in tree.body):
        raise row.error("the field 'test' defines no class TestCases")
    head, libraries = row.text("code_prompt", "").rstrip(), _libraries(row)
    reference = f"{whole}\n{solution}"
    as_python(row, "canonical_solution", reference)
    return Task(
        id=name,
        prompt=prompt,
        payload=Exercise(
            entry_point,
            head,
            test,
            judged_apart(test, entry_point, libraries),
            reference,
            libraries,
        ),
        values={
            "question": prompt.strip(),
            "prompt": prompt.strip(),
            "entry_point": entry_point,
            "head": head or whole,
        },
        digest=task_digest(name, prompt, entry_point, test, reference),
        cluster=row.cluster_by(options.cluster_column),
    )


def _libraries(row: Row) -> frozenset[str]:
    """The modules that a task uses: a list, or the text of one."""
    value = row.fields.get("libs", [])
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise row.error("the field 'libs' is no list of modules") from None
    if not isinstance(value, list) or not all(
        isinstance(name, str) and name.replace(".", "_").isidentifier() for name in value
    ):
        raise row.error("the field 'libs' is no list of modules")
    return frozenset(name.split(".")[0] for name in value)


def _skipping(
    skipped: Mapping[str, frozenset[str]], tasks: int, interpreter: TestingInterpreter
) -> str:
    counts = Counter(name for lacking in skipped.values() for name in lacking).most_common()
    named = ", ".join(f"{name} ({count})" for name, count in counts[:_NAMED])
    more = f" and {len(counts) - _NAMED} more" if len(counts) > _NAMED else ""
    return (
        f"{len(skipped):,} of {tasks:,} tasks are left out: {interpreter.path} has no {named}{more}; name an "
        "interpreter that has them with --python"
    )
