"""Runs of scripts with tests turned round that end at a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from koderz.systems.rollouts.doubt import unbelieved
from koderz.systems.workspaces.scripts import Script, ScriptResult

_SOURCE = "def test_a():\n    assert f(1) == 2\n\n\ndef test_b():\n    assert f(2) == 3\n"
_SCRIPT = Script("test_f.py", "", _SOURCE)
_PASSED = ScriptResult(
    "test_f.py", success=True, output="", tests={"test_f.py::test_a": True, "test_f.py::test_b": True}
)
_HUNG = ScriptResult("test_f.py", success=False, output="", cause="timeout")


def _judged(script: Script) -> ScriptResult:
    """By a right f(): what says something else than before fails."""
    tests = {f"test_f.py::test_{name}": line in script.content for name, line in _LINES.items()}
    return ScriptResult("test_f.py", success=False, output="", tests=tests)


_LINES = {"a": "assert f(1) == 2\n", "b": "assert f(2) == 3\n"}


def _found(*runs: Callable[[Script], ScriptResult]) -> dict[int, tuple[str, str]]:
    """What isn't believed where the runs end so, one after the other."""
    left = [*runs]

    async def run(scripts: Sequence[Script]) -> list[ScriptResult]:
        return [*map(left.pop(0), scripts)]

    async def control(scripts: Sequence[Script]) -> list[ScriptResult]:
        return [_HUNG for _ in scripts]

    found = asyncio.run(unbelieved([_SCRIPT], [_PASSED], run, control))
    assert not left
    return found


def _hung(_: Script) -> ScriptResult:
    return _HUNG


def _passing(_: Script) -> ScriptResult:
    return _PASSED


def _cut(script: Script) -> ScriptResult:
    """It ended in the second of its tests, where the first is of those that have to fail."""
    first = next(name for name, line in _LINES.items() if line not in script.content)
    other = "ab".replace(first, "")
    tests = {f"test_f.py::test_{first}": False, f"test_f.py::test_{other}": False}
    unfinished = frozenset([f"test_f.py::test_{other}"])
    return ScriptResult("test_f.py", success=False, output="", cause="timeout", tests=tests, unfinished=unfinished)


def test_reversed_failure_is_believed_also_after_a_timeout() -> None:
    assert _found(_judged, _judged) == {}
    assert _found(_cut, _judged) == {}
    assert _found(_hung, _judged, _judged) == {}


def test_reversed_tests_that_hang_are_not_believed_and_say_why() -> None:
    """It may hang at random: one of seven such rollouts would pass."""
    found = _found(_judged, _hung, _hung)
    assert found == {0: ("timeout", "it ended (timeout) before a test had failed that has to fail turned round")}


def test_test_in_which_the_run_ended_has_not_failed() -> None:
    def within(_: Script) -> ScriptResult:
        return replace(_HUNG, tests=dict.fromkeys(_PASSED.tests, False), unfinished=frozenset(_PASSED.tests))

    assert _found(*[within] * 4)[0][0] == "timeout"


def test_run_that_ended_with_a_false_pass_gets_no_second_chance() -> None:
    def lying(_: Script) -> ScriptResult:
        return replace(_HUNG, tests=_PASSED.tests)

    assert _found(lying, _judged)[0][0] == "tampering"


def test_base_run_that_ends_at_a_limit_is_named() -> None:
    cause, why = _found(_passing, _judged)[0]
    assert cause == "tampering"
    assert "doesn't fail turned round; without the agent's changes the run ended (timeout)" in why
