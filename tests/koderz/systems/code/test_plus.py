"""EvalPlus' rows: every input counts, the reference says what is right, and tuples are tuples again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from koderz.suites.suite import SuiteSource
from koderz.systems.code import oracle
from koderz.systems.code.humaneval import HumanEval, HumanEvalPlus
from koderz.systems.code.mbpp import MbppPlus
from koderz.systems.code.plus import HUMANEVAL_ORACLES, MBPP_ORACLES
from koderz.types import Judging, Task
from tests.koderz.suites.rows import Row, complaint, only_task, outcomes, verdicts, whole, written

RELEASED: Row = {
    "task_id": "HumanEval/900",
    "prompt": 'def double(numbers: list) -> list:\n    """Twice each of them."""\n',
    "entry_point": "double",
    "canonical_solution": "    for index, number in enumerate(numbers):\n        numbers[index] = number * 2\n"
    "    return numbers\n",
    "test": "def check(candidate):\n    assert candidate([1]) == [2]\n",
    "contract": "    assert isinstance(numbers, list) # $_CONTRACT_$\n",
    "base_input": [[[1]]],
    "plus_input": [[[]], [[0.1, 0.2]], [[123456789012345678901234567890]], [["ä\ud800"]]],
    "atol": 0,
}
ROOT: Row = {
    **RELEASED,
    "prompt": 'import math\n\n\ndef find_zero(xs: list):\n    """A root."""\n',
    "entry_point": "find_zero",
    "canonical_solution": "    return -xs[0] / xs[1]\n",
    "base_input": [[[1, 2]]],
    "plus_input": [[[6, -5, 1][:2]]],
    "atol": 1e-4,
}
EXPORTED_TEST = """\
{imports}
def is_floats(x) -> bool:
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64
    return isinstance(x, float)


def assertion(out, exp, atol):
    assert np.allclose(out, exp, rtol=1e-07, atol=atol)


def check(candidate):
    inputs = {inputs}
    results = {results}
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        {judge}
"""


def exported(inputs: str, results: str, judge: str = "assertion(candidate(*inp), exp, 0)", **changes: Any) -> Row:
    """A row as the Hugging Face export has it, with a helper that needs numpy."""
    test = EXPORTED_TEST.format(imports="import numpy as np\n", inputs=inputs, results=results, judge=judge)
    kept = {name: RELEASED[name] for name in ("task_id", "prompt", "entry_point", "canonical_solution")}
    return {**kept, "test": test, **changes}


def task_of(tmp_path: Path, row: Row) -> Task:
    return only_task(HumanEvalPlus.load(SuiteSource(written(tmp_path / "plus.jsonl", row))))


def test_answer_has_to_be_right_for_every_input_of_a_release(tmp_path: Path) -> None:
    task = task_of(tmp_path, RELEASED)
    by_itself = "def double(numbers):\n    return [number + number for number in numbers]"
    base_only = "def double(numbers):\n    return [2]"
    rounded = "def double(numbers):\n    return [n * 2.0 if isinstance(n, int) else n * 2 for n in numbers]"

    assert verdicts(task, whole(task), by_itself, base_only, rounded) == ["passed", "passed", "failed", "failed"]


def test_failure_tells_call_result_and_expectation(tmp_path: Path) -> None:
    (outcome,) = outcomes(task_of(tmp_path, RELEASED), ["def double(numbers):\n    return [2]"])

    assert outcome.message == "double([])\n  returned  [2]\n  expected  []"


def test_answer_that_changes_its_arguments_spoils_no_other(tmp_path: Path) -> None:
    task = task_of(tmp_path, ROOT)
    greedy = "def find_zero(xs):\n    slope = xs.pop()\n    return -xs.pop() / slope"

    assert verdicts(task, greedy) == ["passed"]


def test_root_of_a_polynomial_may_be_any_if_declared(tmp_path: Path) -> None:
    task = task_of(tmp_path, {**ROOT, "base_input": [[[2, -3, 1]]], "plus_input": []})

    assert verdicts(task, *(f"def find_zero(xs): return {root}" for root in ("1", "2.00001", "3", "'1'"))) == [
        "passed",
        "passed",
        "failed",
        "failed",
    ]


def test_export_needs_no_numpy(tmp_path: Path) -> None:
    row = exported("[[[1]], [[0.1, inf]], [[(1, 2)]]]", "[[2], [0.2, inf], [(1, 2, 1, 2)]]")
    task = task_of(tmp_path, row)

    assert "numpy" not in task.payload.test.partition("EXPECTED")[2]
    assert verdicts(task, whole(task), "def double(numbers): return [2]") == ["passed", "failed"]


@pytest.mark.parametrize(
    ("judge", "tolerance"),
    [
        ("assertion(candidate(*inp), exp, 0)", "0"),
        ("assertion(candidate(*inp), exp, 1e-06)", "1e-06"),
        ("assert abs(_poly(*inp, candidate(*inp))) <= 0.0001", "0.0001"),
        ("assert _poly(*candidate(*inp), inp) <= 0.0001", "0.0001"),
    ],
)
def test_export_keeps_its_tolerance(tmp_path: Path, judge: str, tolerance: str) -> None:
    task = task_of(tmp_path, exported("[[[1]]]", "[[2]]", judge))

    assert f"tolerances_of(EXPECTED, {tolerance}, (1,) * len(EXPECTED))" in task.payload.test


def test_export_with_computed_results_is_read(tmp_path: Path) -> None:
    test = (
        "import numpy as np\ndef assertion(out, exp, atol):\n    assert out == exp\n\ndef ref_func(numbers):\n"
        "    return numbers * 2\n\ndef check(candidate):\n    inputs = [[[1]]]\n"
        "    for i, inp in enumerate(inputs):\n        assertion(candidate(*inp), ref_func(*inp), 0)\n"
    )
    task = task_of(tmp_path, exported("", "", test=test))

    assert verdicts(task, whole(task), "def double(numbers): return [3]") == ["passed", "failed"]


def test_users_test_with_inputs_is_unchanged(tmp_path: Path) -> None:
    test = "def check(candidate):\n    inputs = [[1]]\n    for one in inputs:\n        assert candidate(one)\n"

    assert task_of(tmp_path, exported("", "", test=test)).payload.test == test


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"base_input": [[1], 2]}, "'base_input' has to be a list of lists"),
        ({"plus_input": "none"}, "'plus_input' has to be a list of lists"),
        ({"base_input": [], "plus_input": []}, "hold no input"),
        ({"atol": "much"}, "'atol' has to be a number"),
        ({"canonical_solution": ""}, "nothing says what is right"),
        ({"canonical_solution": "    return ("}, "'canonical_solution' isn't Python"),
        ({"entry_point": "treble"}, "doesn't define the function treble"),
        (exported("[[1]]", "[[2]]", "pass pass"), "'test' isn't Python"),
    ],
)
def test_row_without_a_judgement_is_named_by_its_line(tmp_path: Path, change: Row, said: str) -> None:
    row = change if "test" in change else {**RELEASED, **change}
    path = written(tmp_path / "plus.jsonl", {**RELEASED, "task_id": "first"}, row)

    assert f"{path}, line 2: " in complaint(lambda file: HumanEvalPlus.load(SuiteSource(file)), path)
    assert said in complaint(lambda file: HumanEvalPlus.load(SuiteSource(file)), path)


@pytest.mark.parametrize("field", ["base_input", "plus_input", "atol", "canonical_solution", "prompt"])
def test_digest_changes_with_the_rules_of_a_release(tmp_path: Path, field: str) -> None:
    more = {"base_input": [], "plus_input": [], "atol": 1, "canonical_solution": "    return []\n", "prompt": ""}
    change = more[field] if field != "prompt" else "import os\n" + RELEASED["prompt"]

    assert task_of(tmp_path, {**RELEASED, field: change}).digest != task_of(tmp_path, RELEASED).digest
    assert task_of(tmp_path, {**RELEASED, "contract": ""}).digest == task_of(tmp_path, RELEASED).digest


def test_oracles_that_tasks_name_exist() -> None:
    for name in {*HUMANEVAL_ORACLES.values(), *MBPP_ORACLES.values()}:
        assert callable(getattr(oracle, name))


@pytest.mark.parametrize(
    ("result", "expected", "tolerance", "right"),
    [
        (2, 2, 0, True),
        (True, 1, 0, True),
        (2, 3, 0, False),
        ([1, 2], (1, 2), 0, False),
        (0.1 + 0.2, 0.3, 1e-6, True),
        (0.1 + 0.2, 0.3, 0, False),
        (0.3001, 0.3, 1e-6, False),
        (0.3001, 0.3, 1e-3, True),
        ([0.1 + 0.2], [0.3], 1e-6, True),
        ((0.1 + 0.2,), [0.3], 0, False),
        ([0.3, 0.3], [0.3], 1, False),
        ([0.1 + 0.2, 1], [0.3, 1], 0, False),
        ([0.1 + 0.2, 1], [0.3, 1], 1e-6, True),
        ([0.3, "a"], [0.3, "b"], 1, False),
        ([10**12 + 1], [10**12], 1e-4, True),
        ([10**24, 1.0], [10**24, 1.1], 1, False),
        ([(1.0, 2)], [[1.1, 2]], 1, True),
        ([None, 1.0], [None, 1.1], 1, False),
        (1, 1.0000001, 0, False),
        (math.nan, math.nan, 1e-6, True),
        ([math.nan, 1.0], [math.nan, 1.0], 1e-6, True),
        (math.nan, 1.0, 1, False),
        (math.inf, math.inf, 0, True),
        (1.0, math.inf, 1, False),
        (-math.inf, math.inf, 1, False),
        (1 + 1e-9j, 1 + 0j, 1e-6, True),
        ("0.3", 0.3, 1, False),
        (None, 0.3, 1, False),
        ([], [], 0, True),
        ([], 0.0, 1, False),
        (10**400, 1.0, 1, False),
        ([10**400], [1.0], 1, False),
    ],
)
def test_results_are_compared_as_evalplus_does(result: Any, expected: Any, tolerance: float, right: bool) -> None:
    assert oracle.is_equal([], result, expected, tolerance) is right


def test_special_cases_are_judged_as_by_evalplus() -> None:
    assert oracle.has_same_elements([], [2, 1, 1], (1, 2), 0)
    assert not oracle.has_same_elements([], 3, (1, 2), 0)
    assert oracle.has_same_elements([], [0.1 + 0.2], [0.3], 1e-6)
    assert oracle.is_found_too([], "a match", object(), 0)
    assert oracle.is_found_too([], False, None, 0)
    assert oracle.is_found_too([], True, False, 0)
    assert not oracle.is_found_too([], None, True, 0)
    assert oracle.is_any([], "whatever", True, 0)
    assert oracle.is_equal_or_zero([8], 0, 7, 0)
    assert not oracle.is_equal_or_zero([8], 1, 7, 0)
    assert [oracle.is_surface_area([3, 4], area, 33, 0) for area in (33, 35, 34, "33")] == [True, True, False, False]
    assert [oracle.is_digit_distance([1, 23], given, 3, 0) for given in (3, 4, 5)] == [True, True, False]
    assert not oracle.is_digit_distance([-1, 23], 5, 3, 0)


@pytest.mark.parametrize(
    ("task", "call", "meant"),
    [
        (98, [[1, [2]], "a"], [[1, [2]], "a"]),
        (2, [[1, [2]], [3]], [(1, [2]), (3,)]),
        (2, ["ab"], [("a", "b")]),
        (259, [[[1, 2], [3]], [[]]], [((1, 2), (3,)), ((),)]),
        (63, [[[1, 2], [3]], [[]]], [[(1, 2), (3,)], [()]]),
        (75, [[[1, 2]], [3]], [[(1, 2)], [3]]),
        (722, [{"a": [1, 2]}, 3, [4]], [{"a": (1, 2)}, 3, [4]]),
        (307, [[1, [2]], [3], 4], [(1, [2]), [3], 4]),
        (278, [[1, [2, [3]]]], [(1, (2, [3]))]),
        (106, [[1], [2]], [[1], (2,)]),
        (580, [[1, [2, [3]]], 4], [(1, (2, (3,))), 4]),
        (115, [[[1, 1, 2], [], {}]], [[{1, 2}, {}, {}]]),
        (124, ["3", "(1+2j)"], [3.0, 1 + 2j]),
        (252, ["(1+2j)"], [1 + 2j]),
    ],
)
def test_types_that_json_has_not_are_given_back(tmp_path: Path, task: int, call: list[Any], meant: list[Any]) -> None:
    row = {**RELEASED, "task_id": f"Mbpp/{task}", "base_input": [call], "plus_input": []}
    row["canonical_solution"] = "def double(*_): return 1"
    test = only_task(MbppPlus.load(SuiteSource(written(tmp_path / "plus.jsonl", row)))).payload.test
    namespace: dict[str, Any] = {}

    exec(test, namespace)
    (found,) = namespace["drawn"]()

    assert found == meant
    assert repr(found) == repr(meant)


def test_tolerance_follows_the_first_float_of_the_results() -> None:
    expected = [1, 0.5, 2, [3, "a"], 4, [0.5], 5]

    assert oracle.tolerances_of(expected, 0, (4, 3)) == [0, 1e-6, 1e-6, 1e-6, 0, 1e-6, 1e-6]
    assert oracle.tolerances_of(expected, 0, (1,) * 7) == [0, 1e-6, 0, 0, 0, 1e-6, 0]
    assert oracle.tolerances_of(expected, 0.1, (4, 3)) == [0.1] * 7


def test_base_inputs_and_added_ones_are_sets_of_their_own(tmp_path: Path) -> None:
    row = {**RELEASED, "base_input": [[[0.5]]], "plus_input": [[[1, 0.25]], [[0.5]], [[1, 0.25]]]}
    off = "def double(numbers):\n    global calls\n    calls = calls + 1\n"
    off += "    return [n * 2 + (1e-9 if calls in {called} else 0) for n in numbers]\ncalls = 0"

    task = task_of(tmp_path, row)

    assert verdicts(task, off.replace("{called}", "(1, 3, 4)"), off.replace("{called}", "(2,)")) == ["passed", "failed"]


@pytest.mark.slow
def test_results_too_large_to_be_sent_are_compared(tmp_path: Path) -> None:
    body = "    return [(numbers[0], n) for n in range(200_000)] * 10\n"
    task = task_of(tmp_path, {**RELEASED, "canonical_solution": body, "plus_input": []})
    right, other = whole(task), whole(task).replace("200_000", "200_001")
    listed = whole(task).replace("(numbers[0], n)", "[numbers[0], n]")

    assert verdicts(task, right, other, listed) == ["passed", "failed", "failed"]


def test_evalplus_suites_have_the_limits_of_its_own_evaluator(tmp_path: Path) -> None:
    path = written(tmp_path / "plus.jsonl", RELEASED)

    assert HumanEvalPlus.load(SuiteSource(path)).limits == Judging(60.0, 4096, call_timeout=10.0)
    assert HumanEval.load(SuiteSource(path)).limits == Judging(6.0, 1024)
