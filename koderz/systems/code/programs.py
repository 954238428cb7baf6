"""Suites whose answers are Python functions, judged by running tests on them."""

from __future__ import annotations

import ast
import contextlib
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koderz.prompts import Prompts, trimmed
from koderz.sandbox import Job, JobResult
from koderz.suites.options import USUAL, CodeOptions
from koderz.suites.suite import JudgeContext, ProgramSuite
from koderz.systems.code.extraction.statements import BUILTINS, parse
from koderz.systems.code.tasks import CodeTask, reference_program
from koderz.types import Judging, Lesson, Message, Reply, Verdict

if TYPE_CHECKING:
    from koderz.models.simulated import SimulatedReplies
    from koderz.suites.options import SimulatedOptions
    from koderz.systems.code.extraction.blocks import Extraction


FEEDBACK_CHARS = 2000

_UNDEFINED = "no_entry_point"

_NO_PROGRAM: Mapping[str, str] = {
    "no_code": "The answer holds no Python code. Put the whole function in one ```python code block.",
    _UNDEFINED: "The answer doesn't define the function {entry_point}.",
    "refused": "The answer holds no code, only a refusal. Put the whole function in one ```python code block.",
    "length": "The answer was cut off before the function was complete. Answer more briefly.",
    "syntax": "The code isn't valid Python.",
}


class CodeSuite(ProgramSuite):
    """Tasks that ask for one function each, with `check(candidate)` tests."""

    options = CodeOptions
    tasks: tuple[CodeTask, ...]
    configuration: CodeOptions

    def __init__(
        self,
        name: str,
        source: str,
        tasks: tuple[CodeTask, ...],
        options: CodeOptions | None = None,
        *,
        usual: Judging = ProgramSuite.limits,
        is_sound: bool = False,
    ) -> None:
        """`usual`: how answers are judged unless the options say otherwise."""
        self.name, self.source, self.tasks, self.is_sound = name, source, tasks, is_sound
        options = options or USUAL
        self.limits = options.limits(usual)
        self.configuration = replace(
            options, test_timeout=self.limits.timeout, test_memory=self.limits.memory_mb
        )

    def messages(self, task: CodeTask, prompts: Prompts) -> tuple[Message, ...]:
        """The prompts `system` and `task`."""
        return prompts.first_messages(task.values, cot=self.configuration.cot)

    def simulated_model(
        self, tasks: Sequence[CodeTask], seed: int, options: SimulatedOptions
    ) -> SimulatedReplies:
        """The simulated model that answers these tasks."""
        from koderz.systems.code.simulated import Simulated

        return Simulated(
            tasks,
            seed=seed,
            skill=options.simulated_skill,
            latency=options.simulated_latency,
            fault_rate=options.simulated_fault_rate,
        )

    def reference(self, task: CodeTask) -> str:
        """The task's own solution as a program; empty without one."""
        return reference_program(task)

    async def judge(self, task: CodeTask, answer: Reply | str, context: JudgeContext) -> Verdict:
        """Extracts the program from the answer and runs the task's tests on it."""
        from koderz.systems.code.extraction.limits import extract_within_limits

        text, finish = (
            (answer.text, answer.finish_reason) if isinstance(answer, Reply) else (answer, "stop")
        )
        found = await extract_within_limits(text, task.prompt, task.payload.entry_point, finish)
        if found.cause not in ("", _UNDEFINED) or found.program is None:
            return unusable(found, task.payload.entry_point, finish)
        outcome, verdict = await self._run(task, found, context)
        if verdict.passed:
            return verdict
        if found.cause and _lacks(outcome, task.payload.entry_point):
            return unusable(found, task.payload.entry_point, finish)
        return replace(verdict, feedback=await _feedback(task, found, outcome, context))

    async def judge_program(
        self, task: CodeTask, program: str, context: JudgeContext, *, line_offset: int = 0
    ) -> Verdict:
        """Runs the task's tests on a whole program. Its first `line_offset` lines aren't its author's."""
        from koderz.systems.code.extraction.blocks import Extraction

        _, verdict = await self._run(task, Extraction(program, "", line_offset), context)
        return verdict

    def lesson(self, task: CodeTask, verdicts: Sequence[Verdict]) -> Lesson | None:
        """The lesson of the attempts at a task, for memory."""

        return lesson_of(task.id, verdicts)

    async def _run(
        self, task: CodeTask, found: Extraction, context: JudgeContext
    ) -> tuple[JobResult, Verdict]:
        job = _job(task, found, task.payload.test, context.limits)
        outcome = await context.sandbox.judge(job._replace(graded=context.graded))
        return outcome, Verdict(
            verdict=outcome.verdict,
            cause=outcome.cause,
            detail=outcome.message,
            program=found.program,
            metrics={"cpu": outcome.cpu, "wall": outcome.wall},
            sandbox=outcome.isolation,
            tests_passed=outcome.tests_passed,
            tests=outcome.tests,
            tampering=tuple(outcome.tampering),
        )


def _job(task: CodeTask, found: Extraction, test: str, limits: Judging) -> Job:
    assert found.program is not None
    return Job(
        program=found.program,
        test=test,
        entry_point=task.payload.entry_point,
        context=_context(task.prompt),
        timeout=limits.timeout,
        memory_mb=limits.memory_mb,
        line_offset=found.line_offset,
        call_timeout=limits.call_timeout,
    )


def _context(prompt: str) -> str:
    """The part of the prompt that tests may use, with a body for its last function if it has none."""
    for source in (prompt, f"{prompt.rstrip()}\n    pass\n"):
        with contextlib.suppress(SyntaxError):
            parse(source)
            return source
    return ""


def _lacks(outcome: JobResult, entry_point: str) -> bool:
    """Whether a program that ran doesn't define the function, or failed for lack of it."""
    return outcome.cause == _UNDEFINED or f"name {entry_point!r} is not defined" in outcome.message


def unusable(found: Extraction, entry_point: str, finish: str) -> Verdict:
    """The verdict on an answer that holds no program to be judged."""
    cause = "length" if finish == "length" else found.cause or "no_code"
    general = _NO_PROGRAM[cause].format(entry_point=entry_point)
    feedback = (
        found.reason if cause == "no_code" and found.reason else f"{general} {found.reason}".strip()
    )
    return Verdict("error", cause, feedback=feedback, detail=feedback, program=found.program)


async def _feedback(
    task: CodeTask, found: Extraction, outcome: JobResult, context: JudgeContext
) -> str:
    """The feedback for the solver, which is less than the record holds unless tests are open to it."""
    kind = context.limits.feedback
    if kind == "tests":
        return trimmed(outcome.message, FEEDBACK_CHARS)
    from koderz.systems.code.examples import examples_test

    failed = "The function doesn't pass its tests."
    test = examples_test(task.prompt, task.payload.entry_point) if kind == "examples" else None
    if test is None:
        return failed
    shown = await context.sandbox.judge(_job(task, found, test, context.limits))
    if shown.verdict == "passed":
        return "The function gives the results of the docstring's examples, but doesn't pass all tests."
    return trimmed(shown.message, FEEDBACK_CHARS)


_LARGEST = 50_000  # characters of a program that is looked into
_NAMED = 6  # names of one kind in a lesson
# functions that a lesson may name
_FUNCTIONS = frozenset(name for name in BUILTINS if not name.startswith("_"))
_STRUCTURES = {
    ast.For: "a for loop",
    ast.While: "a while loop",
    ast.Try: "try",
    ast.ListComp: "a list comprehension",
    ast.Lambda: "a lambda",
    ast.If: "an if",
    ast.IfExp: "a conditional expression",
    ast.Slice: "slicing",
}


def lesson_of(task_id: str, verdicts: Sequence[Verdict]) -> Lesson | None:
    """The lesson of the attempts at a task; None if the first passed, or the last didn't."""
    if len(verdicts) < 2 or not verdicts[-1].passed:
        return None
    from koderz_tracker.memory.memories import how_it_failed  # loads SQLite

    failed, passed = verdicts[-2:]
    told = (
        how_it_failed(one.verdict, one.cause, one.detail or one.feedback) for one in verdicts[:-1]
    )
    changes = _changes(failed.program or "", passed.program or "")
    text = f"{task_id}: {', then '.join(dict.fromkeys(told))}. What fixed it: {changes}."
    return Lesson(failed.cause or failed.verdict, text)


def _changes(before: str, after: str) -> str:
    """The differences between two programs in words, without quoting a line of either."""
    lines = list(
        difflib.unified_diff(
            before.splitlines()[:2000], after.splitlines()[:2000], lineterm="", n=0
        )
    )[2:]
    written, taken_out = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    told = [
        _counted(written, "written anew")
        if written or not taken_out
        else _counted(taken_out, "taken out")
    ]
    old, new = _traits(before), _traits(after)
    if old is not None and new is not None:
        told += [
            f"{word} {', '.join(names[:_NAMED])}"
            for word, names in (("now with", sorted(new - old)), ("without", sorted(old - new)))
            if names
        ]
    return "; ".join(told)


def _counted(lines: int, what: str) -> str:
    return f"one line {what}" if lines == 1 else f"{lines} lines {what}"


def _traits(program: str) -> set[str] | None:
    """The modules, built-in functions, methods and structures that a program uses, without its own names."""
    if not program or len(program) > _LARGEST:
        return None
    try:
        nodes: list[Any] = list(ast.walk(parse(program)))
    except SyntaxError:
        return None
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
            )
            found |= {f"the module {module}" for module in modules}
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _FUNCTIONS
        ):
            found.add(f"{node.func.id}()")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and len(node.func.attr) <= 40
        ):
            found.add(f".{node.func.attr}()")
        elif type(node) in _STRUCTURES:
            found.add(_STRUCTURES[type(node)])
    return found
