"""Conformance tests of sandboxes: functions that raise AssertionError if a sandbox breaks the rules.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_box_is_a_sandbox(check):
        asyncio.run(check("box"))

The argument is the sandbox' name, or a sandbox that is open, which several checks may share. They run harmless
programs of their own. Whether hostile ones are contained is what a sandbox' own tests have to show.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from koderz.sandbox import Job, JobResult, Sandbox, open_sandbox

Check = Callable[[str | Sandbox], Coroutine[Any, Any, None]]

_TEST = "def check(candidate):\n    assert candidate(2) == 4\n"


async def a_right_program_passes(sandbox: str | Sandbox) -> None:
    """A program whose tests return has passed."""
    (found,) = await _judged(sandbox, "def f(n):\n    return 2 * n\n")
    assert found.verdict == "passed", f"{found.verdict}: {found.message}"


async def a_wrong_program_is_told_why(sandbox: str | Sandbox) -> None:
    """A failing assertion and an exception are told apart, with a cause and a message that a model can read."""
    wrong, raising = await _judged(
        sandbox, "def f(n):\n    return n\n", "def f(n):\n    return n / 0\n"
    )
    assert (wrong.verdict, wrong.cause) == ("failed", "assertion"), (
        f"{wrong.verdict} by {wrong.cause}"
    )
    assert raising.verdict in ("failed", "error"), raising.verdict
    assert "ZeroDivisionError" in f"{raising.cause} {raising.message}", (
        f"{raising.cause}: {raising.message}"
    )


async def a_program_that_goes_on_times_out(sandbox: str | Sandbox) -> None:
    """A program beyond its limit of CPU is ended, and gets the verdict `timeout`."""
    (found,) = await _judged(sandbox, "def f(n):\n    while True:\n        n += 1\n", timeout=0.5)
    assert found.verdict == "timeout", f"{found.verdict} by {found.cause}: {found.message}"


async def a_program_that_leaves_has_not_passed(sandbox: str | Sandbox) -> None:
    """A program that ends its process, or defines nothing to call, passes no test."""
    programs = (
        "import os\n\ndef f(n):\n    os._exit(0)\n",
        "import sys\n\nsys.exit(0)\n",
        "def another(n):\n    return 4\n",
        "def f(n:\n",
    )
    for program, found in zip(programs, await _judged(sandbox, *programs), strict=True):
        assert found.verdict in ("failed", "error"), f"{found.verdict} for {program!r}"
        assert found.cause, f"no cause for {program!r}"


async def a_program_can_not_compare_for_its_tests(sandbox: str | Sandbox) -> None:
    """An answer that claims to equal everything isn't equal to what is expected."""
    program = "class Yes:\n    def __eq__(self, other):\n        return True\n\ndef f(n):\n    return Yes()\n"
    (found,) = await _judged(sandbox, program)
    assert found.verdict != "passed", "a program has forged its verdict"


async def programs_at_once_get_their_own_verdicts(sandbox: str | Sandbox) -> None:
    """Any number of jobs may be asked for at once; none sees another's answer or names."""
    programs = [f"seen = {n}\n\ndef f(n):\n    return {n}\n" for n in range(8)]
    jobs = [
        Job(program, "def check(candidate):\n    assert candidate(0) == 4\n", "f")
        for program in programs
    ]
    async with _opened(sandbox) as opened:
        found = await asyncio.gather(*map(opened.judge, jobs))
    assert [each.verdict == "passed" for each in found] == [n == 4 for n in range(8)], [*found]


async def its_isolation_is_named(sandbox: str | Sandbox) -> None:
    """Once entered, it says what contains candidates, and by which factor it stretches limits."""
    async with _opened(sandbox) as opened:
        assert opened.isolation, "it doesn't say what contains candidates"
        assert opened.speed > 0


CHECKS: tuple[Check, ...] = (
    a_right_program_passes,
    a_wrong_program_is_told_why,
    a_program_that_goes_on_times_out,
    a_program_that_leaves_has_not_passed,
    a_program_can_not_compare_for_its_tests,
    programs_at_once_get_their_own_verdicts,
    its_isolation_is_named,
)
"""All of them. None depends on another."""


async def _judged(sandbox: str | Sandbox, *programs: str, **limits: Any) -> Sequence[JobResult]:
    """The results of programs, one after another."""
    async with _opened(sandbox) as opened:
        return [await opened.judge(Job(program, _TEST, "f", **limits)) for program in programs]


@asynccontextmanager
async def _opened(sandbox: str | Sandbox) -> AsyncIterator[Sandbox]:
    """The sandbox: opened and closed again if it is named, else as it is."""
    if isinstance(sandbox, str):
        async with open_sandbox(sandbox, judges=2, own_programs=True) as opened:
            yield opened
    else:
        yield sandbox
