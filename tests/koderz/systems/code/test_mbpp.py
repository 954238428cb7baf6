"""MBPP as its authors publish it, whole and sanitized, and MBPP+ in both of its forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from koderz.suites import load_suite
from koderz.suites.suite import SuiteSource
from koderz.systems.code.mbpp import _TYPED, Mbpp, MbppPlus
from tests.koderz.suites.rows import Row, complaint, only_task, outcomes, verdicts, written

WHOLE: Row = {
    "text": "Write a function to keep what two tuples share.",
    "code": "def as_set(items):\r\n  return set(items)\r\ndef shared(one, other):\r\n  return as_set(one) & set(other)",
    "task_id": 2,
    "test_setup_code": "",
    "test_list": ["assert shared((3, 4),(4, 5)) == {4} ", "assert shared((1,),(2,)) == set()"],
    "challenge_test_list": ["assert shared((),()) == set()"],
}
SANITIZED: Row = {
    "source_file": "a notebook",
    "task_id": 82,
    "prompt": "Write a function to find the volume of a sphere.",
    "code": "import math\ndef volume(r):\n  return 4/3 * math.pi * r**3",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(volume(10), 4188.79, rel_tol=0.001)"],
}
TREE: Row = {
    **WHOLE,
    "task_id": 927,
    "code": "import os\nclass Base:\n  pass\nclass Node(Base):\n  def __init__(self, data):\n    self.left = None\n"
    "def height(node):\n  return 1 + height(node.left) if node else 0",
    "test_setup_code": "root = Node(1) \r\nroot.left = Node(2)",
    "test_list": ["assert (height(root)) == 2"],
}
RELEASED: Row = {
    "task_id": "Mbpp/2",
    "prompt": '"""\nWrite a function to find what is shared.\nassert set(similar_elements((3, 4),(4,))) == {4}\n"""\n',
    "entry_point": "similar_elements",
    "canonical_solution": "\ndef similar_elements(one, other):\n  assert isinstance(one, tuple)\n"
    "  return tuple(set(one) & set(other))\n",
    "base_input": [[[3, 4], [4]]],
    "plus_input": [[[1, 2, 3], [3, 2]], [[], []]],
    "atol": 0,
    "contract": "\n  assert isinstance(one, tuple) # $_CONTRACT_$\n",
    "assertion": "\nassert set(similar_elements((3, 4),(4,))) == {4}\n",
}
EXPORTED: Row = {
    "task_id": 2,
    "prompt": "Write a function to find what is shared.",
    "code": RELEASED["canonical_solution"],
    "source_file": "a notebook",
    "test_imports": [],
    "test_list": ["assert set(similar_elements((3, 4),(4,))) == {4}", "assert similar_elements((), ()) == ()"],
    "test": "import numpy as np\nfrom math import inf\n\ndef is_floats(x) -> bool:\n    return False\n\n"
    "def assertion(out, exp, atol):\n    assert set(out) == set(exp)\n\n\n"
    "inputs = [[(3, 4), (4,)], [(1, 2, inf), (inf, 2)]]\nresults = [(4,), (2, inf)]\n"
    "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(similar_elements(*inp), exp, 0)\n",
}
BACKWARDS = "def similar_elements(one, other):\n    return sorted(set(one) & set(other), reverse=True)"
FIRST_ONLY = "def similar_elements(one, other):\n    return (4,)"


def test_mbpp_file_makes_a_task_of_every_row(tmp_path: Path) -> None:
    path = written(tmp_path / "mbpp.jsonl", {**WHOLE, "task_id": 600}, WHOLE, {**WHOLE, "task_id": 11})

    suite = load_suite("mbpp", path)

    assert [task.id for task in suite.tasks] == ["Mbpp/600", "Mbpp/2", "Mbpp/11"]
    assert suite.name == "mbpp"


def test_prompt_has_the_sentence_and_the_asserts(tmp_path: Path) -> None:
    task = only_task(Mbpp.load(SuiteSource(written(tmp_path / "mbpp.jsonl", WHOLE))))

    assert task.prompt == (
        '"""\nWrite a function to keep what two tuples share.\nYour code should pass these tests:\n\n'
        'assert shared((3, 4),(4, 5)) == {4}\nassert shared((1,),(2,)) == set()\n"""\n'
    )
    assert task.payload.entry_point == "shared"


def test_asserts_judge(tmp_path: Path) -> None:
    task = only_task(Mbpp.load(SuiteSource(written(tmp_path / "mbpp.jsonl", WHOLE))))

    assert verdicts(task, task.payload.reference, "def shared(one, other): return {4}") == ["passed", "failed"]
    (outcome,) = outcomes(task, ["def shared(one, other): return {4}"])
    assert outcome.message == "shared((1,), (2,))\n  returned  {4}\n  expected  set()"


def test_sanitized_file_is_one_list_and_has_imports(tmp_path: Path) -> None:
    path = tmp_path / "sanitized-mbpp.json"
    path.write_text(json.dumps([SANITIZED, {**WHOLE, "prompt": "p", "task_id": 3}], indent=1))

    task = Mbpp.load(SuiteSource(path)).tasks[0]

    assert task.id == "Mbpp/82"
    assert "import math\nassert math.isclose(volume(10)" in task.prompt
    assert verdicts(task, task.payload.reference, "def volume(r): return r") == ["passed", "failed"]


def test_function_named_check_is_judged(tmp_path: Path) -> None:
    row = {**WHOLE, "code": "def check(n):\n  return n == 73", "test_list": ["assert check(73)", "assert not check(7)"]}

    task = only_task(Mbpp.load(SuiteSource(written(tmp_path / "mbpp.jsonl", row))))

    assert task.payload.entry_point == "check"
    assert verdicts(task, task.payload.reference, "def check(n): return True") == ["passed", "failed"]


def test_prompt_has_the_code_that_tests_borrow_of_the_reference(tmp_path: Path) -> None:
    task = only_task(Mbpp.load(SuiteSource(written(tmp_path / "mbpp.jsonl", TREE))))

    assert "class Node(Base):" in task.prompt
    assert "class Base:" in task.prompt
    assert "def height" not in task.prompt
    assert "import os" not in task.prompt
    assert task.payload.entry_point == "height"
    own = "def height(tree):\n    return max(1, 2) if tree.left else 1"
    assert verdicts(task, task.payload.reference, own, "def height(node): return 1") == ["passed", "passed", "failed"]


def test_tests_may_lean_on_all_that_a_module_gives(tmp_path: Path) -> None:
    code = "from collections import *\ndef count(text):\n  return OrderedDict(Counter(text))"
    row = {**WHOLE, "code": code, "test_list": ["assert count('aa') == OrderedDict({'a': 2})"]}

    task = only_task(Mbpp.load(SuiteSource(written(tmp_path / "mbpp.jsonl", row))))

    assert verdicts(task, task.payload.reference) == ["passed"]


@pytest.mark.parametrize(
    "setup",
    [
        "class Pair:\n    @property\n    def v(self): ...\n    @v.setter\n    def v(self, to): ...",
        "def begin():\n    global q\n    q = 1\nbegin()\nassert q",
    ],
    ids=["in a class", "in a function"],
)
def test_names_bound_within_a_setup_are_defined(tmp_path: Path, setup: str) -> None:
    assert only_task(Mbpp.load(SuiteSource(written(tmp_path / "mbpp.jsonl", {**WHOLE, "test_setup_code": setup}))))


@pytest.mark.parametrize("text", ['Find """ in a text', "Find \\d and \\", "'''", "Both ''' and \"\"\"", 'ends with "'])
def test_prompt_is_python_for_any_sentence(tmp_path: Path, text: str) -> None:
    task = only_task(Mbpp.load(SuiteSource(written(tmp_path / "mbpp.jsonl", {**WHOLE, "text": text}))))

    compile(task.prompt, "prompt", "exec")
    assert text in task.prompt


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task_id": None}, "'task_id' is missing"),
        ({"task_id": True}, "'task_id' has to be text"),
        ({"text": None}, "'text' is missing"),
        ({"code": None}, "'code' is missing"),
        ({"code": "def shared(:"}, "'code' isn't Python"),
        ({"test_list": None}, "'test_list' is missing"),
        ({"test_list": []}, "holds no assert"),
        ({"test_list": ["shared((), ())"]}, "holds no assert"),
        ({"test_list": ["assert shared("]}, "'test_list[1]' isn't Python"),
        ({"test_list": [3]}, "'test_list' has to be a list of texts"),
        ({"test_list": ["assert sharing() == 1"]}, "call no function that the field 'code' defines"),
        ({"test_list": ["assert shared(tree) == 1"]}, "its tests use tree, which nothing defines"),
        ({"test_setup_code": "tree ="}, "'test_setup_code' isn't Python"),
    ],
)
def test_row_that_would_spoil_its_verdicts_is_named_by_its_line(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = written(tmp_path / "mbpp.jsonl", TREE, {**WHOLE, **change})

    assert f"{path}, line 2: " in complaint(lambda file: Mbpp.load(SuiteSource(file)), path)
    assert said in complaint(lambda file: Mbpp.load(SuiteSource(file)), path)


@pytest.mark.parametrize("row", [RELEASED, EXPORTED], ids=["release", "export"])
def test_mbpp_plus_judges_by_all_its_inputs_in_either_form(tmp_path: Path, row: Row) -> None:
    task = only_task(MbppPlus.load(SuiteSource(written(tmp_path / "plus.jsonl", row))))

    assert (task.id, task.payload.entry_point, task.prompt) == ("Mbpp/2", "similar_elements", RELEASED["prompt"])
    assert verdicts(task, task.payload.reference, BACKWARDS, FIRST_ONLY) == ["passed", "passed", "failed"]


def test_inputs_have_the_types_that_evalplus_gives_them_by_task(tmp_path: Path) -> None:
    picky = "def similar_elements(one, other):\n    return {*one} & {*other} if type(one) is tuple else 0"
    task = only_task(MbppPlus.load(SuiteSource(written(tmp_path / "plus.jsonl", RELEASED))))
    of_lists = {"task_id": "Mbpp/98", "canonical_solution": "def similar_elements(one, other): return one"}
    other = only_task(MbppPlus.load(SuiteSource(written(tmp_path / "other.jsonl", {**RELEASED, **of_lists}))))

    assert (verdicts(task, picky), verdicts(other, picky)) == (["passed"], ["failed"])


def test_empty_object_is_no_added_input(tmp_path: Path) -> None:
    task = only_task(MbppPlus.load(SuiteSource(written(tmp_path / "plus.jsonl", {**RELEASED, "plus_input": {}}))))

    assert verdicts(task, task.payload.reference) == ["passed"]


def test_types_are_restored_in_one_way_a_task() -> None:
    numbers = [number for listed in _TYPED.values() for number in listed.split()]

    assert len(numbers) == len({*numbers})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**RELEASED, "plus_input": {"a": 1}}, "'plus_input' has to be a list of lists"),
        ({**RELEASED, "canonical_solution": "x = 1"}, "doesn't define the function similar_elements"),
        ({**RELEASED, "canonical_solution": None}, "'canonical_solution' is missing"),
        ({**EXPORTED, "test": "assert similar_elements((), ()) == ()"}, "of the form that EvalPlus publishes"),
        ({**EXPORTED, "test_list": []}, "holds no assert"),
    ],
)
def test_plus_row_without_a_judgement_is_named_by_its_line(tmp_path: Path, row: Row, said: str) -> None:
    path = written(tmp_path / "plus.jsonl", {**RELEASED, "task_id": "Mbpp/1"}, row)

    assert f"{path}, line 2: " in complaint(lambda file: MbppPlus.load(SuiteSource(file)), path)
    assert said in complaint(lambda file: MbppPlus.load(SuiteSource(file)), path)


def test_cached_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "koderz").mkdir()
    path = written(tmp_path / "koderz" / "MbppPlus.jsonl", RELEASED)

    assert load_suite("mbpp+").source == str(path)
