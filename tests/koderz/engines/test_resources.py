"""What a plan needs to be carried out here: models where they are asked, and a sandbox where one is needed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.engines.resources import model_facts, open_models, sandbox_of
from koderz.errors import KoderzError
from koderz.models import ModelName
from koderz.sandbox import NoSandbox
from koderz.solvers.definition import AskHandle
from koderz.testing import FakeModel
from tests.koderz.world import good, planned


@pytest.mark.parametrize(("settings", "ceiling"), [({}, 8), ({"max_connections": 2}, 2), ({"max_connections": 30}, 30)])
def test_max_connections_limit_calls_apart_from_experiments(
    tmp_path: Path, settings: dict[str, Any], ceiling: int
) -> None:
    async def go() -> int:
        plan = await planned(tmp_path, 1, local_model="openai/m", concurrency=8, **settings)
        async with open_models(plan, {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}) as (
            pool,
            _,
        ):
            return pool.throttle[0].ceiling

    assert asyncio.run(go()) == ceiling


@pytest.mark.parametrize("name", ["max_cost", "max_experiment_cost"])
def test_cap_without_a_price_is_refused(tmp_path: Path, name: str) -> None:
    class Unpriced(FakeModel):
        def price(self) -> Any:
            return None

    async def go() -> None:
        plan = await planned(tmp_path, 1, **dict[str, Any]({name: 1.0}))
        await model_facts(plan, {"scripted": Unpriced(good, name=ModelName("openai", "scripted"))})

    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(KoderzError, match=f"{flag} can't hold without the price of scripted"):
        asyncio.run(go())


@pytest.mark.parametrize("without", ["task", "solver"])
def test_sandbox_is_opened_only_for_tasks_and_solvers_that_judge(tmp_path: Path, without: str) -> None:
    async def go() -> bool:
        plan = await planned(tmp_path, 1)
        assert not isinstance(sandbox_of(plan), NoSandbox)
        if without == "task":
            plan = replace(plan, tasks=tuple(replace(task, needs=frozenset()) for task in plan.tasks))
        else:

            async def asking(ask: AskHandle) -> None: ...

            arms = [replace(arm, solver=replace(arm.solver, function=asking)) for arm in plan.arms]
            plan = replace(plan, arms=tuple(arms))
        return isinstance(sandbox_of(plan), NoSandbox)

    assert asyncio.run(go())
