"""Whether tasks are fit to be used."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Unreachable
from koderz.sandbox.workspace.local import Local
from koderz.systems.rollouts import checking
from koderz.systems.rollouts.formats import load_task
from koderz.systems.rollouts.suite import SAMPLE


def _checked(times: int) -> checking.Checked:
    try:
        (found,) = asyncio.run(checking.check_tasks([load_task(SAMPLE / "greeting")], Local(), times=times))
    except Unreachable as error:
        pytest.skip(str(error))
    return found


@pytest.mark.slow
def test_check_finds_a_flaky_task_at_the_third_try(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tried = checking._graded, list[bool]()

    async def graded(task: Any, stores: Any, *, solve: bool) -> Any:
        """The third solution isn't carried out."""
        tried.append(solve)
        return await real(task, stores, solve=solve and tried.count(True) < 3)

    monkeypatch.setattr(checking, "_graded", graded)
    assert _checked(1) == checking.Checked("sample/greeting")
    tried.clear()
    assert "its own solution doesn't pass" in _checked(3).wrong
    assert tried == [True, False, True, False, True, False]


def test_check_names_a_task_without_a_solution(tmp_path: Path) -> None:
    (tmp_path / "tb_meta.json").write_text('{"task_id": "bare", "lm": {"instructions": "Do it."}}')
    try:
        (found,) = asyncio.run(checking.check_tasks([load_task(tmp_path)], Local()))
    except Unreachable as error:
        pytest.skip(str(error))
    assert "has no solution" in found.wrong
