"""Conformance tests of suites: functions that raise AssertionError if a suite breaks the rules.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_backwards_is_a_suite(check, tmp_path):
        asyncio.run(check(tmp_path, "mine.py:Backwards", {"limit": 3}))

The second argument is the suite's name or FILE:NAME, the third holds settings of the run, such as the suite's own
options. Checks run on this machine and ask the simulated model only, so they need no key and cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from koderz.plans.plan import Plan
from koderz.runs.prepare import prepare
from koderz.suites import checked_measures
from koderz.testing.engines import performed
from koderz.types import Reply
from koderz_tracker.records import Attempt, Experiment

Check = Callable[[Path, str, Mapping[str, Any]], Coroutine[Any, Any, None]]

_WORDS = {"passed", "failed", "timeout", "error"}


async def tasks_can_be_told_apart(folder: Path, suite: str, settings: Mapping[str, Any]) -> None:
    """Each task has an id of its own and a digest, and there is one at least."""
    found = (await _planned(folder, suite, settings)).suite
    assert found.tasks, "it has no tasks"
    twice = [name for name, count in Counter(task.id for task in found.tasks).items() if count > 1]
    assert not twice, f"several tasks are called {twice[0]}"
    bare = [task.id for task in found.tasks if not task.digest]
    assert not bare, f"{bare[0]} has no digest, so a change of it goes unseen"


async def loading_again_gives_equal_tasks(folder: Path, suite: str, settings: Mapping[str, Any]) -> None:
    """Tasks, and their first messages, are the same whenever the suite is loaded with the same settings."""
    first, again = [await _planned(folder, suite, settings) for _ in range(2)]
    assert [task.id for task in first.suite.tasks] == [task.id for task in again.suite.tasks], "ids differ"
    assert [task.digest for task in first.suite.tasks] == [task.digest for task in again.suite.tasks], "digests differ"
    for one, other in zip(first.tasks, again.tasks, strict=True):
        assert one.messages == other.messages, f"the messages of {one.id} differ"


async def messages_have_roles_and_contents(folder: Path, suite: str, settings: Mapping[str, Any]) -> None:
    """The first messages of each planned task are dicts with a role and a content, if there are any."""
    for task in (await _planned(folder, suite, settings)).tasks:
        for message in task.messages:
            assert message["role"] in ("system", "user", "assistant"), f"{task.id}: the role {message['role']!r}"
            assert message["content"], f"{task.id}: a message without content"


async def verdicts_are_of_the_declared_kinds(folder: Path, suite: str, settings: Mapping[str, Any]) -> None:
    """The simulated model's answers come to verdicts in known words, whose metrics the suite declares or not."""
    plan = await _planned(folder, suite, settings)
    checked_measures(plan.suite)
    notes = await performed(plan, {})
    for outcome in notes.outcomes:
        assert isinstance(outcome.record, Experiment), f"an experiment ended as a fault: {outcome.fault}"
        assert outcome.record.verdict in _WORDS.union(plan.suite.words), f"an undeclared {outcome.record.verdict!r}"
    for line in notes.lines:
        if isinstance(line, Attempt) and line.verdict != "passed":
            assert line.cause or line.verdict not in ("failed", "error"), f"{line.problem_id} failed without a cause"


async def verdicts_are_the_same_again(folder: Path, suite: str, settings: Mapping[str, Any]) -> None:
    """Equal answers come to equal verdicts and scores, so that rescoring changes nothing."""
    ended = []
    for _ in range(2):
        plan = await _planned(folder, suite, settings)
        records = [outcome.record for outcome in (await performed(plan, {})).outcomes]
        found = {
            (each.problem_id, each.solver, each.sample): (each.verdict, each.score)
            for each in records
            if isinstance(each, Experiment)
        }
        ended.append(found)
    assert ended[0] == ended[1], "the second run of the same plan came to other verdicts"


async def an_empty_answer_is_no_fault(folder: Path, suite: str, settings: Mapping[str, Any]) -> None:
    """A model that says nothing gets a verdict other than `passed`, where answers are judged by `judge`."""
    from koderz.engines.resources import sandbox_of
    from koderz.suites.suite import JudgeContext

    plan = await _planned(folder, suite, settings)
    task = plan.tasks[0]
    if task.needs - {"judge"} or plan.suite.required:
        return  # whose verdicts are made by what the suite opens
    async with sandbox_of(plan) as sandbox:
        verdict = await plan.suite.judge(task, Reply(0, ""), JudgeContext(sandbox, plan.suite.limits))
    assert not verdict.passed, "it passes an empty answer"


CHECKS: tuple[Check, ...] = (
    tasks_can_be_told_apart,
    loading_again_gives_equal_tasks,
    messages_have_roles_and_contents,
    verdicts_are_of_the_declared_kinds,
    verdicts_are_the_same_again,
    an_empty_answer_is_no_fault,
)
"""All of them. None depends on another."""


async def _planned(folder: Path, suite: str, settings: Mapping[str, Any]) -> Plan:
    options = {"suite": suite, "local_model": "simulated", "results": folder / "results", "judges": 1, "limit": 2}
    return await prepare({**options, **settings}, None, environ={"XDG_STATE_HOME": str(folder)})
