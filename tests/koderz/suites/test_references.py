"""References, which are tried before anything else of their task is judged."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from koderz.plans.arms import Arm
from koderz.suites.references import References
from koderz.suites.suite import JudgeContext
from koderz.testing import a_model
from koderz.types import Reply, Task, Verdict
from tests.koderz.world import NoSandbox, Run, Words, begun, planned


@dataclass
class Asking(Words):
    """Passes any reply if its judge may ask a model, and never its own reference."""

    asks_judge: bool = True
    program: str = ""

    def reference(self, task: Task) -> str:
        return self.program

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        return Verdict("passed" if context.ask else "failed", detail="asked" if context.ask else "ask is None")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def judged(folder: Path, *, asks: bool = True, program: str = "") -> Run:
    async def go() -> Run:
        plan = await planned(folder, 1)
        arms = tuple(Arm(arm.name, arm.solver, {**arm.models, "judge": "grader"}) for arm in plan.arms)
        suite = Asking(plan.tasks, asks_judge=asks, program=program)
        models = {"scripted": a_model("GOOD"), "grader": a_model("GOOD")}
        references = References(suite, NoSandbox())
        return await begun(replace(plan, suite=suite, arms=arms), models, references=references)

    return asyncio.run(go())


@pytest.mark.parametrize("asks", [True, False])
def test_suite_with_references_hands_its_judge_what_it_asks_by(tmp_path: Path, asks: bool) -> None:
    (attempt,) = judged(tmp_path, asks=asks).of("attempt")

    assert attempt.detail == ("asked" if asks else "ask is None")


def test_references_that_fail_end_their_experiments_as_faults(tmp_path: Path) -> None:
    run = judged(tmp_path, program="def f(): ...")

    (fault,) = run.of("fault")
    assert fault.reason == "reference fails here: failed () ask is None"
    assert not run.of("call")
