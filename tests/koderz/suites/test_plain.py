"""Suites that don't subclass `Suite`, by their file and by an entry point."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.engines.resources import shared_of
from koderz.errors import KoderzError
from koderz.plans.arms import Arm
from koderz.suites import SUITES, load_suite, modes_of
from koderz.suites.suite import ProgramSuite
from koderz.testing import a_model
from tests.koderz.world import Run, begun, planned

SOURCE = '''
import contextlib
from dataclasses import dataclass, field

from koderz.types import Headline, Measure, Task, Verdict


@dataclass
class Old:
    """A suite by its members alone."""

    tasks: tuple
    name: str = "old"
    source: str = "a list"
    words: tuple = ("odd",)
    measures: tuple = (Measure("score", "higher"),)
    headline: Headline = Headline("score")
    judge_calls: int = 3
    events: list = field(default_factory=list)

    def messages(self, task, prompts):
        return ({"role": "user", "content": task.prompt},)

    async def judge(self, task, answer, sandbox, how, ask=None):
        said = (await ask([{"role": "user", "content": "Is it right?"}])).text if ask else "nobody"
        self.events.append(f"judge {sandbox.name} {how.timeout} {how.core} {said}")
        return Verdict("passed", score=1.0)

    @contextlib.asynccontextmanager
    async def open_run(self, settings, environ):
        yield [settings.concurrency]

    @contextlib.asynccontextmanager
    async def open_session(self, task, handles, *, shared):
        yield ("session", task.id, shared, await handles.once("drawn", lambda: 5))

    @contextlib.asynccontextmanager
    async def open_workspace(self, task, folder, handles):
        yield ("workspace", folder.is_dir())

    @contextlib.asynccontextmanager
    async def open_evaluator(self, task, handles, settings):
        yield ("evaluator", settings.concurrency)

    @contextlib.asynccontextmanager
    async def open_long_context(self, task, handles):
        yield ("long_context", handles.experiment_id[:4])


def old(dataset):
    needs = frozenset({"session", "workspace", "evaluator", "long_context"})
    return Old((Task("Old/0", "Do it.", needs=needs, digest="1"),))


async def solve(task, ask, judge, once, session, workspace, evaluator, long_context):
    opened = [session, workspace, evaluator, long_context]
    await once("opened", lambda: [repr(each) for each in opened])
    return await judge(task, await ask(task.messages))
'''


def carried_out(folder: Path) -> Run:
    """A run of the plain suite, whose solver names everything that it opens."""
    file = folder / "own.py"
    file.write_text(SOURCE)

    async def go() -> Run:
        given: Mapping[str, Any] = {"suite": f"{file}:old", "solver": f"{file}:solve", "dataset": None}
        suite = load_suite(str(given["suite"]))
        plan = await planned(folder, 1, concurrency=7, **given)
        arms = tuple(Arm(arm.name, arm.solver, {**arm.models, "judge": "grader"}) for arm in plan.arms)
        plan = replace(plan, suite=suite, arms=arms)
        async with shared_of(plan, {}) as shared:
            assert shared == [7]
        return await begun(plan, {"scripted": a_model("GOOD"), "grader": a_model("GOOD")})

    return asyncio.run(go())


def test_plain_suite_opens_and_judges_as_it_did(tmp_path: Path) -> None:
    run = carried_out(tmp_path)

    opened = next(line.value for line in run.of("once") if line.name == "opened")
    assert opened == [
        "('session', 'Old/0', None, 5)",
        "('workspace', True)",
        "('evaluator', 7)",
        "('long_context', 'exp_')",
    ]
    assert [call.role for call in run.of("call")] == ["main", "judge"]
    assert run.summary.results[0].success


def test_plain_suite_keeps_the_members_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SOURCE)
    suite = load_suite(f"{tmp_path}/own.py:old")

    assert (suite.name, suite.judge_calls, suite.words) == ("old", 3, ("odd",))
    assert suite.asks_judge
    assert suite.overrides("open_session")
    assert not suite.overrides("simulate")
    assert not isinstance(suite, ProgramSuite)
    assert suite.packed() is None


def test_plain_suite_of_an_entry_point_has_what_its_function_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "plain_suite_of_an_entry_point"
    (tmp_path / f"{name}.py").write_text(
        f"{SOURCE}\nold.modes = {{'': ('solve',)}}\nold.parts = ('one',)\nold.unlisted = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(SUITES.known, "old", f"{name}:old")

    found = SUITES.load("old")

    assert (modes_of("old"), found.named_datasets, found.listed) == ({"": ("solve",)}, ("one",), False)
    assert load_suite("old").tasks[0].id == "Old/0"


def test_plain_suite_without_a_judge_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "class Own:\n    name, source, tasks, messages = 'own', '', (), None\n\nown = Own()\n"
    )

    with pytest.raises(KoderzError, match="own is no suite, nor a function that returns one: it has no judge"):
        load_suite(f"{tmp_path}/own.py:own")
