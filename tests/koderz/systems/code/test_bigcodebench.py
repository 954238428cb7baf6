"""BigCodeBench: its published rows, where their cases run, and the interpreter that has their libraries."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.prompts import load_prompts
from koderz.suites.suite import JudgeContext, SuiteSource
from koderz.systems.code.bigcodebench.suite import BigCodeBench, judged_apart
from koderz.systems.code.options import BigCodeBenchOptions
from koderz.types import Verdict
from tests.koderz.suites.rows import JUDGES, complaint, written

CASES = "import unittest\n\nclass TestCases(unittest.TestCase):\n"
PLAIN = CASES + (
    "    def test_counts(self):\n        self.assertEqual(task_func('aab'), {'a': 2, 'b': 1})\n"
    "    def test_refuses(self):\n        with self.assertRaises(TypeError):\n            task_func(5)\n"
)
FILES = (
    "import os, tempfile\n" + CASES + "    def test_file(self):\n        path = os.path.join(tempfile.mkdtemp(), 'a')\n"
    "        self.assertTrue(task_func(path))\n        self.assertTrue(task_func('here.txt'))\n"
)


def row(
    number: int, test: str, body: str, *, libs: Sequence[str] = (), imports: str = "", **more: Any
) -> dict[str, Any]:
    head = f"{imports}def task_func(value):"
    return {
        "task_id": f"BigCodeBench/{number}",
        "complete_prompt": f'{head}\n    """Do what is asked of the value."""',
        "instruct_prompt": "Write what is asked.\nYou should start with:\n```\ndef task_func(value):\n```",
        "canonical_solution": body,
        "code_prompt": head,
        "test": test,
        "entry_point": "task_func",
        "doc_struct": "{}",
        "libs": repr([*libs]),
        **more,
    }


COUNTING = row(
    0, PLAIN, "    return dict(Counter(value))", libs=["collections"], imports="from collections import Counter\n"
)
WRITING = row(
    1, FILES, "    open(value, 'w').close()\n    return os.path.exists(value)", libs=["os"], imports="import os\n"
)


def suite_of(folder: Path, *rows: Mapping[str, Any], **options: Any) -> BigCodeBench:
    path = written(folder / "bigcodebench.jsonl", *rows)
    return BigCodeBench.load(SuiteSource(path, BigCodeBenchOptions(**options), sandbox="contained"))


def verdicts(suite: BigCodeBench, *programs: str) -> list[Verdict]:
    async def judge(sandbox: Any) -> list[Verdict]:
        context = JudgeContext(sandbox, suite.limits)
        return await asyncio.gather(*(suite.judge_program(suite.tasks[0], each, context) for each in programs))

    return JUDGES.run(judge)


def words(found: Sequence[Verdict]) -> list[str]:
    return [each.cause or each.verdict for each in found]


def test_bigcodebench_judges_plain_cases_apart_from_the_program(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, COUNTING)
    found = verdicts(
        suite,
        suite.reference(suite.tasks[0]),
        "def task_func(value):\n    return Counter(value)",  # by the import that is put before it
        "def task_func(value):\n    return {}",
        "def task_func(value):\n    return dict(Counter(str(value)))",  # raises nothing
        "class Same(dict):\n    __eq__ = lambda *_: True\ndef task_func(value): return iter(value) and Same()",
        "import unittest\nunittest.TestCase.run = lambda *_: None\ndef task_func(value): return 1",
        "import os\nos._exit(0)",
    )
    assert words(found) == ["passed", "passed"] + ["assertion"] * 4 + ["killed"]
    assert [each.facts for each in found] == [{"in_process": False}] * 7
    assert "in-process" not in found[0].sandbox


@pytest.mark.slow
def test_bigcodebench_labels_cases_beside_the_program(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, WRITING)
    found = verdicts(
        suite,
        suite.reference(suite.tasks[0]),
        "def task_func(value):\n    return False",
        "def task_func(value):\n    return open('/nowhere/a').read()",
        "def task_func(value: 1/0",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "def task_func(value):\n    print(input())",
    )
    assert words(found) == [
        "passed",
        "assertion",
        "exception:FileNotFoundError",
        "syntax",
        "exception:SystemExit",
        "killed",
        "exception:OSError",
    ]
    assert "1 of 1 tests failed; the first: test_file" in found[1].detail
    assert all(each.facts == {"in_process": True} and each.sandbox.endswith(", in-process") for each in found)


@pytest.mark.slow
def test_bigcodebench_runs_beside_what_the_reference_does_not_pass_apart(tmp_path: Path) -> None:
    test = CASES + "    def test_match(self):\n        self.assertTrue(task_func('a').match('a'))\n"
    suite = suite_of(tmp_path, row(0, test, "    return re.compile(value)", libs=["re"], imports="import re\n"))
    assert suite.tasks[0].payload.apart
    (found,) = verdicts(suite, suite.reference(suite.tasks[0]))
    assert (found.verdict, found.facts) == ("passed", {"in_process": True})


@pytest.mark.slow
def test_bigcodebench_ends_cases_that_never_end(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, WRITING, test_timeout=2)
    assert words(verdicts(suite, "while True: pass")) == ["wall"]


@pytest.mark.slow
def test_bigcodebench_tests_in_the_interpreter_that_is_named(tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "environment", symlinks=True)
    packages = next((tmp_path / "environment").glob("lib/python*/site-packages"))
    (packages / "onlythere.py").write_text("answer = 42\n")
    test = CASES + "    def test_answer(self):\n        self.assertEqual(task_func(0), 42)\n"
    needing = row(0, test, "    return onlythere.answer", libs=["onlythere"], imports="import onlythere\n")
    suite = suite_of(tmp_path, needing, python=str(tmp_path / "environment/bin/python"))
    assert words(verdicts(suite, suite.reference(suite.tasks[0]))) == ["passed"]
    with pytest.raises(KoderzError, match=r"1 of 1 tasks are left out: .* has no onlythere \(1\)"):
        suite_of(tmp_path, needing)
    with pytest.raises(KoderzError, match="no Python runs there"):
        suite_of(tmp_path, needing, python=str(tmp_path / "none"))


def test_bigcodebench_leaves_out_tasks_without_their_library(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, COUNTING, row(2, PLAIN, "    return 1", libs=["nosuchlib", "os"]))
    assert [task.id for task in suite.tasks] == ["BigCodeBench/0"]
    assert f"1 of 2 tasks are left out: {sys.executable} has no nosuchlib (1)" in suite.notices[0]
    assert suite.details(suite.tasks, None)["skipped"] == {"BigCodeBench/2": ["nosuchlib"]}  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["complete", "instruct"])
def test_bigcodebench_asks_by_its_split(tmp_path: Path, split: str) -> None:
    suite = suite_of(tmp_path, COUNTING, split=split)
    text = suite.messages(suite.tasks[0], load_prompts())[1]["content"]
    assert ("You should start with" in text) == (split == "instruct")
    assert ("Do what is asked of the value" in text) == (split == "complete")


@pytest.mark.parametrize(
    ("change", "is_apart"),
    [
        ("", True),
        ("import os\n", False),
        ("from unittest.mock import patch\n", False),
        ("import numpy\n", False),
        ("import random\n", False),
        ("from . import x\n", False),
        ("x = open('a')\n", False),
        ("def setUpModule(): pass\n", False),
        ("class Other: pass\nx = unittest.mock\n", False),
    ],
)
def test_bigcodebench_judges_apart_only_what_needs_plain_data(change: str, is_apart: bool) -> None:
    assert bool(judged_apart(change + PLAIN, "task_func", frozenset({"re"}))) == is_apart
    assert not judged_apart(PLAIN, "task_func", frozenset({"pandas"}))
    assert not judged_apart(PLAIN, "other", frozenset())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"test": "x = 1"}, "defines no class TestCases"),
        ({"test": "class"}, "isn't Python"),
        ({"libs": "__import__('os')"}, "'libs' is no list of modules"),
        ({"libs": [1]}, "'libs' is no list of modules"),
        ({"entry_point": "a b"}, "no Python name"),
        ({"task_id": ""}, "'task_id' has to be"),
        ({"complete_prompt": None}, "'complete_prompt' is missing"),
        ({"canonical_solution": "return ("}, "isn't Python"),
    ],
)
def test_bigcodebench_refuses_hostile_rows(tmp_path: Path, change: Mapping[str, Any], reason: str) -> None:
    path = written(tmp_path / "a.jsonl", COUNTING, {**WRITING, **change})
    said = complaint(lambda path: BigCodeBench.load(SuiteSource(path, BigCodeBenchOptions())), path)
    assert f"{path}, line 2: " in said
    assert reason in said


def test_bigcodebench_hard_is_a_file_of_its_own(tmp_path: Path) -> None:
    many = [{**COUNTING, "task_id": str(number)} for number in range(149)]
    assert len(suite_of(tmp_path, *many[:148], hard=True).tasks) == 148
    with pytest.raises(KoderzError, match="149 tasks, and the hard set 148"):
        suite_of(tmp_path, *many, hard=True)


def test_bigcodebench_refuses_sandboxes_without_its_libraries(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", COUNTING)
    with pytest.raises(KoderzError, match="--sandbox docker: the libraries of bigcodebench"):
        BigCodeBench.load(SuiteSource(path, BigCodeBenchOptions(), sandbox="docker"))
