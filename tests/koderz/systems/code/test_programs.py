"""What a suite makes of an answer, and what a solver is told of it."""

from __future__ import annotations

import asyncio

import pytest

from koderz.prompts import trimmed
from koderz.sandbox import Job, JobResult, Sandbox
from koderz.suites.suite import JudgeContext
from koderz.systems.code.programs import FEEDBACK_CHARS, CodeSuite
from koderz.systems.code.tasks import Function
from koderz.types import FeedbackKind, Judging, Reply, Task, Verdict
from tests.koderz.suites.rows import JUDGES

TASK = Task(
    id="Own/0",
    prompt='LIMIT = 10\n\n\ndef capped(n):\n    """At most LIMIT.\n\n    >>> capped(11)\n    10\n    """\n',
    payload=Function(
        "capped", "def check(candidate):\n    assert candidate(11) == LIMIT\n    assert candidate(-1) == -1\n"
    ),
)


class Recording(Sandbox):
    """A sandbox that takes every program for wrong, and keeps the jobs."""

    name = isolation = "recording"

    def __init__(self, message: str = "") -> None:
        self.jobs: list[Job] = []
        self._message = message

    async def judge(self, job: Job) -> JobResult:
        self.jobs.append(job)
        return JobResult("failed", "assertion", self._message)


def judged(
    answer: Reply | str, *, task: Task = TASK, feedback: FeedbackKind = "tests", sandbox: Sandbox | None = None
) -> Verdict:
    async def judge(opened: Sandbox) -> Verdict:
        context = JudgeContext(opened, Judging(feedback=feedback))
        return await CodeSuite("own", "here", (task,)).judge(task, answer, context)

    return asyncio.run(judge(sandbox)) if sandbox else JUDGES.run(judge)


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\n"


def test_right_answer_passes_without_feedback() -> None:
    verdict = judged(fenced("def capped(n):\n    return min(n, LIMIT)"))

    assert (verdict.verdict, verdict.cause, verdict.feedback) == ("passed", "", "")
    assert verdict.program is not None
    assert "LIMIT = 10" in verdict.program
    assert verdict.metrics.keys() == {"cpu", "wall"}


def test_wrong_answer_is_told_the_test_that_failed() -> None:
    verdict = judged(fenced("def capped(n):\n    return 10"))

    assert verdict.verdict == "failed"
    assert verdict.feedback == "capped(-1)\n  returned  10\n  expected  -1"


def test_tests_that_are_to_stay_hidden_do() -> None:
    wrong, wronger = "def capped(n):\n    return 10", "def capped(n):\n    return n"

    assert "-1" not in judged(fenced(wrong), feedback="examples").feedback
    assert "docstring's examples" in judged(fenced(wrong), feedback="examples").feedback
    assert judged(fenced(wronger), feedback="examples").feedback == "capped(11)\n  returned  11\n  expected  10"
    assert judged(fenced(wronger), feedback="none").feedback == "The function doesn't pass its tests."


def test_feedback_without_examples_tells_the_failure_alone() -> None:
    task = Task(id="Own/1", prompt="Cap it.", payload=TASK.payload)
    sandbox = Recording("a hidden test")

    verdict = judged(fenced("def capped(n):\n    return n"), task=task, feedback="examples", sandbox=sandbox)

    assert verdict.feedback == "The function doesn't pass its tests."
    assert verdict.detail == "a hidden test"


@pytest.mark.parametrize(
    ("answer", "cause", "told"),
    [
        ("", "no_code", "holds no Python code"),
        ("I'm sorry, but I can't help with that.", "refused", "only a refusal"),
        (fenced("def capped(n):\n    x = 1\n    return (n"), "syntax", "SyntaxError: '(' was never closed (line 3)"),
    ],
)
def test_answer_without_a_program_is_told_why(answer: str, cause: str, told: str) -> None:
    verdict = judged(answer, sandbox=Recording())

    assert (verdict.verdict, verdict.cause) == ("error", cause)
    assert told in verdict.feedback


BODY = "def capped(n):\\n    return min(n, 10)"


@pytest.mark.parametrize(
    ("code", "verdict", "cause"),
    [
        (f"exec('{BODY}')", "passed", ""),
        (f"source = '{BODY}'\nexec(compile(source, 'x', 'exec'))", "passed", ""),
        (f"exec('{BODY}'.replace('10', '11'))", "failed", "assertion"),
        ("globals()['capped'] = lambda n: min(n, 10)", "passed", ""),
        ("vars().update(capped=lambda n: min(n, LIMIT))", "passed", ""),
        ("import sys\nsetattr(sys.modules[__name__], 'cap' + 'ped', lambda n: min(n, 10))", "passed", ""),
        ("for name in ['capped']:\n    exec(f'def {name}(n): return min(n, 10)')", "passed", ""),
        ("exec('def cap(n): return n')", "error", "no_entry_point"),
        ("def cap(n):\n    return n", "error", "no_entry_point"),
        ("print(capped(11))", "error", "no_entry_point"),
        ("exec('raise OSError')", "error", "exception:OSError"),
    ],
)
def test_function_defined_at_run_time_is_judged(code: str, verdict: str, cause: str) -> None:
    found = judged(fenced(code))

    assert (found.verdict, found.cause) == (verdict, cause)
    if cause == "no_entry_point":
        assert found.feedback == "The answer doesn't define the function capped."


def test_function_of_a_star_import_is_judged() -> None:
    test = "def check(candidate):\n    assert candidate(4, 6) == 2\n"
    task = Task(id="Own/2", prompt="def gcd(a, b):\n", payload=Function("gcd", test))

    assert judged(fenced("from math import *"), task=task).verdict == "passed"
    assert judged(fenced("from cmath import *"), task=task).cause == "no_entry_point"


def test_truncated_answer_is_told_to_be_brief() -> None:
    verdict = judged(Reply(1, "```python\ndef capped(n):\n    return (", finish_reason="length"), sandbox=Recording())

    assert (verdict.verdict, verdict.cause) == ("error", "length")
    assert "more briefly" in verdict.feedback


@pytest.mark.parametrize(
    ("prompt", "context"),
    [
        (TASK.prompt, TASK.prompt),
        ("LIMIT = 10\n\n\ndef capped(n):\n", "LIMIT = 10\n\n\ndef capped(n):\n    pass\n"),
        ("Write capped(n), which is at most 10.", ""),
        ("", ""),
    ],
)
def test_tests_lean_on_the_prompt_as_far_as_it_is_python(prompt: str, context: str) -> None:
    sandbox = Recording()

    judged(
        fenced("def capped(n):\n    return n"),
        task=Task(id="Own/2", prompt=prompt, payload=TASK.payload),
        sandbox=sandbox,
    )

    assert [job.context for job in sandbox.jobs] == [context]


def test_long_feedback_loses_its_middle() -> None:
    feedback = judged(fenced("def capped(n):\n    return n"), sandbox=Recording("begin" + "x" * 5000 + "end")).feedback

    assert feedback.startswith("begin")
    assert feedback.endswith("end")
    assert "characters left out" in feedback
    assert len(feedback) <= FEEDBACK_CHARS
    assert trimmed("short", 10) == "short"
