"""Suites that need no dataset of others pass the tests that every suite has to pass."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from koderz.testing.engines import write_tasks
from koderz.testing.suites import CHECKS, Check
from tests.toys import toy_suite

LONG = {"context_lengths": ("1024",), "limit": 1}
SEARCH = {"budget_calls": 30, "validation_items": 10, "test_items": 10, "train_items": 10, "limit": 1}

SLOW: Mapping[str, Mapping[str, Any]] = {
    "ruler": LONG,
    "oolong": {"limit": 1},
    "browsecomp-plus": {"limit": 1},
    "datasets": {"solver": "none", **SEARCH},
    "rollouts": {"limit": 1},
}

BROKEN = {
    "tasks_can_be_told_apart": "    tasks = (Task('a', 'A?', 'a', digest='a'),) * 2",
    "loading_again_gives_equal_tasks": (
        "    def __init__(self):\n        self.tasks = (Task('a', 'A?', 'a', digest=uuid.uuid4().hex),)"
    ),
    "messages_have_roles_and_contents": (
        "    def messages(self, task, prompts):\n        return [{'role': 'wizard', 'content': 'A?'}]"
    ),
    "verdicts_are_of_the_declared_kinds": (
        "    async def judge(self, task, answer, context):\n        return Verdict('splendid', passes=True)"
    ),
    "verdicts_are_the_same_again": (
        "    async def judge(self, task, answer, context):\n        return Verdict('passed', score=random.random())"
    ),
    "an_empty_answer_is_no_fault": (
        "    async def judge(self, task, answer, context):\n        return Verdict('passed')"
    ),
}
SOUND = """
import random
import uuid

from koderz.extend import Suite, Task, Verdict


class Own(Suite):
    name, source, scorer = "own", "here", "equals"
    tasks = tuple(Task(name, f"Say {name}.", name, needs=frozenset(), digest=name) for name in "ab")

    def simulate(self, messages, sampling):
        return "a"

"""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_suite_of_programs_passes(check: Check, tmp_path: Path) -> None:
    asyncio.run(check(tmp_path, "humaneval", {"dataset": write_tasks(tmp_path / "tasks.jsonl", 2)}))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SLOW)
def test_suite_passes_in_its_system(name: str, check: Check, tmp_path: Path) -> None:
    asyncio.run(check(tmp_path, name, SLOW[name]))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_suite_in_a_file_passes(check: Check, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SOUND)
    asyncio.run(check(tmp_path, f"{tmp_path}/own.py:Own", {}))
    asyncio.run(check(tmp_path, f"{toy_suite.__file__}:ToySession", {}))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_suite_that_breaks_a_rule_does_not_pass(check: Check, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{SOUND}{BROKEN[check.__name__]}\n")

    with pytest.raises(AssertionError):
        asyncio.run(check(tmp_path, f"{tmp_path}/own.py:Own", {}))
