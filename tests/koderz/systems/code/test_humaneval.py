"""HumanEval as it comes with its package, and files of users' own in its format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koderz.suites import load_suite
from koderz.suites.suite import SuiteSource
from koderz.systems.code.humaneval import HumanEval, HumanEvalPlus, read_humaneval
from koderz.systems.code.programs import CodeSuite
from tests.koderz.suites.rows import HUMANEVAL, complaint, only_task, verdicts, whole, written


def test_humaneval_has_its_164_tasks_without_a_file() -> None:
    suite = load_suite("humaneval")

    assert [task.id for task in suite.tasks] == [f"HumanEval/{number}" for number in range(164)]
    assert len({task.digest for task in suite.tasks}) == 164
    assert all(task.prompt and task.payload.test and task.payload.reference for task in suite.tasks)


def test_users_file_is_read_in_its_order(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", {**HUMANEVAL, "task_id": "Own/2"}, {**HUMANEVAL, "task_id": "Own/1"})

    suite = HumanEval.load(SuiteSource(path))

    assert [task.id for task in suite.tasks] == ["Own/2", "Own/1"]
    assert suite.source == str(path)
    assert verdicts(suite.tasks[0], whole(suite.tasks[0]), "def half(n): return 1") == ["passed", "failed"]


def test_humaneval_plus_takes_rows_in_plain_humaneval_form_too(tmp_path: Path) -> None:
    task = only_task(HumanEvalPlus.load(SuiteSource(written(tmp_path / "plus.jsonl", HUMANEVAL))))

    assert task.payload.test == HUMANEVAL["test"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task_id": None}, "'task_id' is missing"),
        ({"task_id": 3.5}, "'task_id' has to be text"),
        ({"task_id": ""}, "1 to 200 printable characters"),
        ({"task_id": "a\nb"}, "1 to 200 printable characters"),
        ({"prompt": None}, "'prompt' is missing"),
        ({"prompt": ["def"]}, "'prompt' has to be text"),
        ({"entry_point": "half of it"}, "no Python name: 'half of it'"),
        ({"entry_point": "class"}, "no Python name: 'class'"),
        ({"canonical_solution": 1}, "'canonical_solution' has to be text"),
        ({"test": None}, "'test' is missing"),
        ({"test": "def check(candidate:\n"}, "'test' isn't Python"),
        ({"test": "\0"}, "'test' isn't Python"),
        ({"test": "assert half(3) == 1.5\n"}, "no check(candidate)"),
        ({"test": "def check():\n    pass\n"}, "no check(candidate)"),
    ],
)
def test_row_that_would_spoil_its_verdicts_is_named_by_its_line(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = written(tmp_path / "own.jsonl", {**HUMANEVAL, "task_id": "Own/9"}, {**HUMANEVAL, **change})

    assert said in complaint(read_humaneval, path)
    assert f"{path}, line 2: " in complaint(read_humaneval, path)


def test_duplicate_task_and_empty_file_are_refused(tmp_path: Path) -> None:
    assert "line 2: the task Own/0 is there twice" in complaint(
        read_humaneval, written(tmp_path / "a.jsonl", HUMANEVAL, HUMANEVAL)
    )
    assert "holds no task" in complaint(read_humaneval, written(tmp_path / "b.jsonl"))


def test_doubtful_escape_in_a_test_gives_no_warning(tmp_path: Path) -> None:
    row = {**HUMANEVAL, "test": "def check(candidate):\n    assert candidate(2) == len('\\d') / 2\n"}

    assert only_task(HumanEval.load(SuiteSource(written(tmp_path / "own.jsonl", row)))).id == "Own/0"


@pytest.mark.parametrize("field", ["task_id", "prompt", "entry_point", "canonical_solution", "test"])
def test_digest_changes_with_verdict_and_answer_inputs(tmp_path: Path, field: str) -> None:
    other = {**HUMANEVAL, field: HUMANEVAL[field] + ("x" if field in ("task_id", "entry_point") else "\n\n")}
    extra = {**HUMANEVAL, "note": "what is not asked for"}

    def digest(row: Any) -> str:
        suite: CodeSuite = HumanEval.load(SuiteSource(written(tmp_path / "own.jsonl", row)))
        return only_task(suite).digest

    assert digest(other) != digest(HUMANEVAL) == digest(extra)
