"""References, which are tried before anything else of their task is judged."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from koderz.errors import Fault
from koderz.plans.arms import Arm
from koderz.suites.references import ReferenceFault, References
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


@dataclass
class Unlucky(Asking):
    """Passes, once so many trials have ended by the machine's doing: in a fault, or with the judges killed."""

    unlucky: int = 2
    faulty: bool = False

    async def judge_program(self, task: Task, program: str, context: JudgeContext, *_: object, **__: object) -> Verdict:
        self.unlucky -= 1
        if self.unlucky >= 0 and self.faulty:
            raise Fault("no memory for a judge")
        return Verdict("error", "killed") if self.unlucky >= 0 else Verdict("passed")


@pytest.mark.parametrize("faulty", [True, False])
@pytest.mark.parametrize(("unlucky", "sound"), [(0, True), (2, True), (3, False)])
async def test_reference_whose_judges_die_is_tried_again(
    tmp_path: Path, unlucky: int, sound: bool, faulty: bool
) -> None:
    tasks = (await planned(tmp_path, 1)).tasks
    references = References(Unlucky(tasks, program="pass", unlucky=unlucky, faulty=faulty), NoSandbox())

    with nullcontext() if sound else pytest.raises(ReferenceFault, match=r"no memory|killed"):
        await references.require(tasks[0])


def test_references_that_fail_end_their_experiments_as_faults(tmp_path: Path) -> None:
    run = judged(tmp_path, program="def f(): ...")

    (fault,) = run.of("fault")
    assert fault.reason == "reference fails here: failed () ask is None"
    assert not run.of("call")
