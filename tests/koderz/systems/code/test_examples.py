"""What of a prompt can be shown to a solver as a failing example, and what had better be left alone."""

from __future__ import annotations

from textwrap import indent

import pytest

from koderz.sandbox import Job, JobResult
from koderz.suites import load_suite
from koderz.systems.code.examples import examples_test
from koderz.systems.code.tasks import Function
from koderz.types import Task
from tests.koderz.suites.rows import JUDGES

WRONG_IN_THE_PROMPT = {"HumanEval/47", "HumanEval/116"}  # their references contradict their docstrings
WITHOUT = {38, 41, 50, 67, 80, 81, 83, 105, 115, 130, 149, 160}  # nothing there, or only in prose or misnamed


def prompt(docstring: str) -> str:
    return f'def f(a, b):\n    """Does it.\n\n{indent(docstring, "    ")}\n    """\n'


def asserted(docstring: str) -> list[str]:
    test = examples_test(prompt(docstring), "f") or ""
    return [line.strip().removeprefix("assert ") for line in test.splitlines()[1:]]


@pytest.mark.parametrize(
    ("docstring", "example"),
    [
        (">>> f(1, 2)\n3", "f(1, 2) == 3"),
        (">>> f(1, 2)  # as one sees\n3", "f(1, 2) == 3"),
        (">>> f(1, 2) == 3", "f(1, 2) == 3"),
        (">>> f(1, 2) == 3\nTrue", "f(1, 2) == 3"),
        (">>> round(f(1, 2), 2)\n-0.5", "round(f(1, 2), 2) == -0.5"),
        ('>>> f("a\\nb", 2)\n"c\\n"', "f(\"a\\nb\", 2) == 'c\\n'"),
        ("f(1, 2) ➞ 3", "f(1, 2) == 3"),
        ("f(1, 2) -> 3", "f(1, 2) == 3"),
        ("f(1, 2)==>True", "f(1, 2) == True"),
        ("f(1, 2) => true", "f(1, 2) == True"),
        ("f(1, 2) = 3", "f(1, 2) == 3"),
        ("* f(1, 2) returns [1, (2, 3)].", "f(1, 2) == [1, (2, 3)]"),
        ("for f(1, 2) == 'x'", "f(1, 2) == 'x'"),
        ("f(1, 2) should return 3.", "f(1, 2) == 3"),
        ("f(1, 2) # returns 'x'", "f(1, 2) == 'x'"),
        ("f(1, 2) # => 'No' (as (b) is even)", "f(1, 2) == 'No'"),
        ("f(')', (1)) => 3", "f(')', (1)) == 3"),
        ("For a = 1, b = 'the x' the output should be 3.", "f(1, 'the x') == 3"),
        ("For b = 2, a = 1, the result should be (1, 2)", "f(1, 2) == (1, 2)"),
        ("For a = 1, b = 2, the sum will be 3 the output should be '11'", "f(1, 2) == '11'"),
        ("Input: a = [1], b = 2\nOutput: 3 # their sum", "f([1], 2) == 3"),
        ("Input: 1, 2\nOutput: 3", "f(1, 2) == 3"),
    ],
)
def test_example_is_read_in_any_notation(docstring: str, example: str) -> None:
    assert asserted(docstring) == [example]


@pytest.mark.parametrize(
    "docstring",
    [
        "It gives 3 for 1 and 2.",
        ">>> f(1, 2)\n\n3",
        ">>> f(1, 2)\nSome number",
        ">>> print(f(1, 2))\n3",
        ">>> x = f(1, 2)\n3",
        ">>> f(x, 2)\n3",
        "f(x, 2) => 3",
        "g(1, 2) => 3",
        "f(1, 2) => 1 + 2 = 3",
        "f(1, 2) => ('a')",
        "f(1, 2) => [1,",
        "f(1, 2) => 3 because of 2",
        "f(1, b) = 1\nf(a) = f(a - 1)",
        "For a = 1 the output should be 3",
        "For a = 1, c = 2 the output should be 3",
        "Input: 1\nOutput: 3",
        "Input: a = 1, b = 2\n\nOutput: 3",
        "f(1, 2",
    ],
)
def test_doubtful_example_is_left_alone(docstring: str) -> None:
    assert examples_test(prompt(docstring), "f") is None


def test_equations_that_define_the_function_are_no_examples() -> None:
    assert asserted("f(1) = 3\nf(n) = 1 + n / 2, if n is even.\nf(2, 1) => 4") == ["f(2, 1) == 4"]


def test_examples_are_asserted_once_and_in_order() -> None:
    assert asserted("f(2, 1) => 3\nf(1, 2) => 3\nf(2, 1) => 3") == ["f(2, 1) == 3", "f(1, 2) == 3"]


def test_asserts_of_an_mbpp_prompt_are_its_examples() -> None:
    text = (
        '"""\nWrite a function.\nYour code should pass these tests:\n\nimport math\nclass Node:\n'
        "    def __init__(self, n):\n        self.n = n\nroot = Node(2)\n"
        'assert f(root) == 2\nassert math.isclose(f(Node(3)), 3)\n"""\n'
    )
    test = examples_test(text, "f")

    assert test is not None
    outcomes = judged(
        [(Task("T", text, Function("f")), test, program) for program in ("def f(n): return n.n", "def f(n): return 2")]
    )
    assert [outcome.verdict for outcome in outcomes] == ["passed", "failed"]


@pytest.mark.parametrize("text", ["", "Twice a number.", "def f(:", 'def g():\n    """>>> f(1)\n    1"""\n'])
def test_prompt_without_function_or_python_has_no_examples(text: str) -> None:
    assert examples_test(text, "f") is None


def test_prompt_in_prose_may_have_examples() -> None:
    assert examples_test("Give twice the number.\nf(1) => 2", "f") == "def check(f):\n    assert f(1) == 2\n"


def test_docstring_after_an_import_is_read() -> None:
    assert examples_test('def f(a):\n    import math\n    """\n    >>> f(1)\n    2\n    """\n', "f")


def test_humaneval_has_examples_in_152_of_its_prompts() -> None:
    tasks = load_suite("humaneval").tasks

    without = {
        number for number, task in enumerate(tasks) if examples_test(task.prompt, task.payload.entry_point) is None
    }

    assert without == WITHOUT


def test_humanevals_references_give_what_the_examples_say() -> None:
    tasks = [task for task in load_suite("humaneval").tasks if task.id not in WRONG_IN_THE_PROMPT]
    tests = [(task, examples_test(task.prompt, task.payload.entry_point)) for task in tasks]

    outcomes = judged([(task, test, task.prompt + task.payload.reference) for task, test in tests if test])

    assert [outcome.message for outcome in outcomes if outcome.verdict != "passed"] == []
    assert len(outcomes) == 150


def judged(cases: list[tuple[Task, str, str]]) -> list[JobResult]:
    jobs = (Job(program, test, task.payload.entry_point, context=task.prompt) for task, test, program in cases)
    return JUDGES.judged(jobs)
