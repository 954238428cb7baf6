"""A judge that is a model: its calls are on record, priced, and used again when verdicts are made anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.experiments.replay import Replaying
from koderz.models import Price
from koderz.plans.arms import Arm, make_arms
from koderz.plans.estimate import estimate
from koderz.plans.plan import Plan
from koderz.settings.schema import Settings
from koderz.suites.suite import JudgeContext
from koderz.testing import FakeModel, a_model
from koderz.types import Completion, Message, Reply, Sampling, Task, Verdict
from koderz_tracker.journal import NAME
from tests.koderz.world import Run, Words, begun, planned, resumed


@dataclass
class Asked(Words):
    """Passes what the model in the role `judge` says yes to, asked twice; without a model, what has the word."""

    threshold: int = 2
    judge_calls: float = 2
    asks_judge: bool = True
    known_by: str = ""

    async def judge(self, task: Task, answer: Reply | str, context: JudgeContext) -> Verdict:
        ask = context.ask
        if ask is None:
            return await super().judge(task, answer, context)
        text = answer.text if isinstance(answer, Reply) else answer
        question = [{"role": "user", "content": f"Is {text} right?{' Be strict.' * (self.threshold > 3)}"}]
        said = [(await ask(question, known_by=self.known_by)).text for _ in range(2)]
        yes = sum(word == "yes" for word in said)
        return Verdict("passed" if yes >= self.threshold else "failed", "judged", f"{yes} of 2 say yes")


def yes(messages: Sequence[Message], sampling: Sampling) -> Completion:
    return Completion("yes", tokens_in=4, tokens_out=1, cost=0.25)


def no(messages: Sequence[Message], sampling: Sampling) -> Completion:
    return Completion("no", tokens_in=4, tokens_out=1, cost=0.25)


async def judged_plan(folder: Path, *, threshold: int = 2, mode: str = "zero-shot") -> Plan:
    plan = await planned(folder, 1, mode=mode, max_iterations=2)
    arms = tuple(Arm(arm.name, arm.solver, {**arm.models, "judge": "grader"}) for arm in plan.arms)
    return replace(plan, suite=Asked(plan.tasks, threshold=threshold), arms=arms)


def models(judge: FakeModel) -> dict[str, FakeModel]:
    return {"scripted": a_model("GOOD"), "grader": judge}


def kinds(run: Run) -> list[tuple[str, str]]:
    return [(line.kind, getattr(line, "purpose", "")) for line in run.lines if line.kind in ("call", "attempt")]


@pytest.mark.parametrize(("mode", "calls"), [("zero-shot", (3, 3)), ("iterative", (3, 6))])
def test_estimate_counts_the_calls_of_the_judge(tmp_path: Path, mode: str, calls: tuple[int, int]) -> None:
    prices = {"scripted": Price(0, 0), "grader": Price(1.0, 1.0)}
    found = estimate(asyncio.run(judged_plan(tmp_path, mode=mode)), prices)

    assert found.calls == calls
    assert found.cost is not None
    assert 0 < found.cost[0] <= found.cost[1]


async def test_judge_asks_the_model_in_its_role_recorded_and_priced(tmp_path: Path) -> None:
    run = await begun(await judged_plan(tmp_path), models(a_model(yes)))

    assert kinds(run) == [("call", "attempt"), ("call", "judge"), ("call", "judge"), ("attempt", "")]
    assert {call.role for call in run.of("call")[1:]} == {"judge"}
    (result,) = run.summary.results
    assert (result.success, result.cost, result.cost_by_tier) == (True, 0.5, {"judge": 0.5, "local": 0.0})


async def test_judge_without_a_model_in_its_role_is_handed_none(tmp_path: Path) -> None:
    plan = await planned(tmp_path, 1)
    run = await begun(replace(plan, suite=Asked(plan.tasks)), a_model("GOOD"))
    assert [kind for kind, _ in kinds(run)] == ["call", "attempt"]


async def test_judge_cut_off_after_any_line_asks_nothing_twice(tmp_path: Path) -> None:
    plan = await judged_plan(tmp_path, mode="iterative")
    run = await begun(plan, models(a_model(no)))
    journal = run.folder / NAME
    lines = journal.read_bytes().splitlines(keepends=True)
    keys = sorted(call.key for call in run.of("call"))
    assert len(keys) == 6
    for kept in range(1, len(lines)):
        journal.write_bytes(b"".join(lines[:kept]))
        again = await resumed(run.folder, plan, models(a_model(no)))
        assert sorted(call.key for call in again.of("call")) == keys, f"cut off after {kept} lines"
        assert again.ended.status == "complete"


def test_rescore_uses_the_judges_replies_again_unless_told_otherwise(tmp_path: Path) -> None:
    async def rescored(run: Run, plan: Plan, *, judge_anew: bool = False) -> tuple[Run, FakeModel]:
        judge = a_model(no)
        how = Replaying(rescore=True, calls_allowed=False, judge_anew=judge_anew)
        return await resumed(run.folder, plan, models(judge), how, faults=True, judged=True), judge

    async def go() -> None:
        plan = await judged_plan(tmp_path)
        run = await begun(plan, models(a_model(yes)))
        stricter = replace(plan, suite=Asked(plan.tasks, threshold=3))

        again, judge = await rescored(run, stricter)
        assert (again.summary.results[0].success, judge.asked) == (False, [])

        anew, judge = await rescored(run, plan, judge_anew=True)
        assert (anew.summary.results[0].success, len(judge.asked)) == (False, 2)
        once_more, judge = await rescored(run, replace(plan, suite=Asked(plan.tasks, threshold=0)))
        assert (once_more.summary.results[0].success, judge.asked) == (True, []), "the latest replies count"

    asyncio.run(go())


async def test_judge_replies_are_reused_by_their_key(tmp_path: Path) -> None:
    async def rescored(folder: Path, known_by: str) -> Run:
        plan = await judged_plan(folder)
        run = await begun(replace(plan, suite=Asked(plan.tasks, known_by=known_by)), models(a_model(yes)))
        stricter = replace(plan, suite=Asked(plan.tasks, threshold=4, known_by=known_by))
        how = Replaying(rescore=True, calls_allowed=False)
        return await resumed(run.folder, stricter, models(a_model(no)), how, faults=True, judged=True)

    for name in ("known", "unknown"):
        (tmp_path / name).mkdir()

    assert (await rescored(tmp_path / "known", "answer")).summary.results[0].success is False
    assert "needs a call" in (await rescored(tmp_path / "unknown", "")).summary.faults[0]["reason"]


@pytest.mark.parametrize("judged_by_model", [True, False])
def test_role_of_the_judge_may_be_named_where_the_suite_asks_it(judged_by_model: bool) -> None:
    settings = Settings(local_model="scripted", mode="zero-shot", roles=("judge=grader",))
    if judged_by_model:
        (arm,) = make_arms(settings, {}, judged_by_model=True)
        assert arm.models == {"main": "scripted", "judge": "grader"}
    else:
        with pytest.raises(KoderzError, match="has no such role"):
            make_arms(settings, {})
