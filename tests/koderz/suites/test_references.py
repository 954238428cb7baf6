"""Suites whose references are tried before anything else is judged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koderz.suites import judge_asks
from koderz.suites.references import CheckedSuite
from koderz.types import Judging, Reply, Task, Verdict
from tests.koderz.world import NoSandbox, Words

TASK = Task("T/0", "", "f")


class Asking(Words):
    """A suite whose judge passes what it may ask a model about."""

    async def judge(self, task: Task, answer: Reply | str, sandbox: Any, how: Judging, ask: Any = None) -> Verdict:
        return Verdict("passed") if ask else Verdict("failed", "assertion", "ask is None")


@pytest.mark.parametrize("asks", [True, False])
def test_suite_with_references_hands_its_judge_what_it_asks_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    suite = CheckedSuite((Asking if asks else Words)((TASK,)), NoSandbox(), Judging())
    asking: dict[str, Any] = {"ask": lambda: None} if judge_asks(suite) else {}

    verdict = asyncio.run(suite.judge(TASK, "GOOD", NoSandbox(), Judging(), **asking))

    assert verdict.passed
    assert judge_asks(suite) is asks
