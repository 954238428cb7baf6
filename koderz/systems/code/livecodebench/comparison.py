"""The tests of a LiveCodeBench task as the judge runs them: the texts that a program is given, and what it has to say.

The text of this module is loaded into the judge's process, where `DATA` is the task's cases as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

_SHOWN = 150  # characters of each end of a text

DATA = ""


def check(program: Callable[..., Any]) -> None:
    """Raises AssertionError at the first test that the program doesn't pass."""
    cases = json.loads(DATA)
    compare = _compare_values if cases["function"] else _compare_texts
    compare(program, cases["inputs"], cases["outputs"])


def _compare_values(function: Callable[..., Any], inputs: list[str], outputs: list[str]) -> None:
    try:
        arguments = [[json.loads(line) for line in text.split("\n")] for text in inputs]
        expected = [json.loads(text) for text in outputs]
    except ValueError as error:
        raise AssertionError(f"the task's own tests can't be read, so that no answer passes: {error}") from None
    for number, (given, wanted) in enumerate(zip(arguments, expected), 1):  # noqa: B905 as the official harness
        value = function(*given)
        if not value == wanted:
            raise AssertionError(f"test {number} of {len(inputs)}: expected {_shown(repr(wanted))}")


def _compare_texts(program: Callable[[str], str], inputs: list[str], outputs: list[str]) -> None:
    for number, (text, wanted) in enumerate(zip(inputs, outputs), 1):  # noqa: B905 as above
        printed = program(text)
        if reason := _difference(_lines(printed), _lines(wanted)):
            raise AssertionError(f"test {number} of {len(inputs)}: {reason}")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _difference(printed: list[str], wanted: list[str]) -> str:
    """The first difference in words; empty where there is none."""
    if len(printed) != len(wanted):
        return f"{len(printed)} lines instead of {len(wanted)}; expected {_shown(chr(10).join(wanted))}"
    for number, (ours, theirs) in enumerate(zip(printed, wanted), 1):  # noqa: B905 they are as many
        if ours != theirs and not _are_equal_numbers(ours, theirs):
            return f"line {number} is {_shown(ours)!r} instead of {_shown(theirs)!r}"
    return ""


def _are_equal_numbers(ours: str, theirs: str) -> bool:
    try:
        return [*map(Decimal, ours.split())] == [*map(Decimal, theirs.split())]
    except (InvalidOperation, ValueError):
        return False


def _shown(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]} … {text[-_SHOWN:]}"
