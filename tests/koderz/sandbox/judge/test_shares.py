"""Tests parted into those that count each for itself."""

from __future__ import annotations

import pytest

from koderz.sandbox import Job
from koderz.sandbox.judge.suite_tests import parted
from tests.koderz.sandbox.conftest import Judges

ASSERTS = """
def check(candidate):
    assert True, "it prints"
    assert candidate(1, 2) == 3
    assert candidate(2, 2) == 4
    for n in range(3):
        assert candidate(n, 2) == n + 2
    assert candidate(5, 5) == 10
"""
INPUTS = """
GIVEN = [[n, 1] for n in range(50)]
def check(candidate):
    inputs = [[n, 1] for n in range(50)]
    for arguments, given in zip(inputs, GIVEN):
        result = candidate(*arguments)
        assert result == given[0] + 1
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "of_asserts", "of_inputs"),
    [
        ("return x + y", (4, 4), (50, 50)),
        ("return x + y if x != 2 else 0", (2, 4), (49, 50)),
        ("import os\n    return x + y if x != 2 else os._exit(3)", (2, 4), (49, 50)),
        ("while x == 2: pass\n    return x + y", (2, 4), (49, 50)),
        ("raise ValueError", (0, 4), (0, 50)),
        ("import os\n    return x + y if x % 2 == 0 else os._exit(0)", (1, 4), (25, 50)),
    ],
)
def test_shares_count_each_part_for_itself(
    judged: Judges, body: str, of_asserts: tuple[int, int], of_inputs: tuple[int, int]
) -> None:
    program = f"def add(x, y):\n    {body}"
    jobs = [Job(program, test, "add", timeout=0.5, graded=True) for test in (ASSERTS, INPUTS)]
    plain = [job._replace(graded=False) for job in jobs]

    graded, other, *ungraded = judged(*jobs, *plain)

    if "while" in body:  # the first call takes the time that all have: of asserts, a later one comes to it again
        of_asserts = (graded.tests_passed or 0, 4)
        assert 1 <= of_asserts[0] <= 2
    assert (graded.tests_passed, graded.tests) == of_asserts
    assert (other.tests_passed, other.tests) == of_inputs
    assert [(each.verdict, each.cause) for each in (graded, other)] == [(e.verdict, e.cause) for e in ungraded]
    assert {each.tests for each in ungraded} == {None}


def test_shares_of_a_program_that_does_not_load_are_none_of_all(judged: Judges) -> None:
    (found,) = judged(Job("def add(x, y", ASSERTS, "add", graded=True))

    assert (found.cause, found.tests_passed, found.tests) == ("syntax", 0, 4)


@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, 2) == 3\n",
        "def check(candidate):\n    for n in range(3):\n        assert candidate(n, 1) == n + 1\n",
        "def check(candidate):\n    compare(candidate)\n",
    ],
)
def test_tests_without_parts_are_left_whole(test: str) -> None:
    assert parted(test, "<test>") is None


def test_message_of_a_parted_test_names_call_and_expectation(judged: Judges) -> None:
    jobs = [Job("def add(x, y): return 0", ASSERTS, "add", graded=graded) for graded in (True, False)]

    graded, plain = judged(*jobs)

    assert graded.message == plain.message
    assert "expected  3" in graded.message
