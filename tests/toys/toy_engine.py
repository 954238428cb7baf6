"""An engine that performs one experiment after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from koderz.engines import Driver, Engine
from koderz.engines.resources import model_facts, open_models, sandbox_of
from koderz.experiments.calls import Caller
from koderz.experiments.runner import ExperimentRunner, Resources
from koderz.models import Model
from koderz.plans.plan import Plan
from koderz.sandbox import Sandbox
from koderz.settings.options import option


@dataclass(frozen=True, slots=True)
class ToyOptions:
    """The options of the engine `toy`."""

    toy_motto: str = option("one experiment after the other", "What is said before it begins.", "TEXT")


class ToyEngine(Engine):
    """It says nothing of what it can, so it judges programs and no more."""

    name = "toy"
    options = ToyOptions

    @classmethod
    @asynccontextmanager
    async def open(cls, plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[ToyEngine]:
        async with open_models(plan, environ) as (_, models), sandbox_of(plan) as sandbox:
            yield cls(plan, models, sandbox)

    def __init__(self, plan: Plan, models: Mapping[str, Model], sandbox: Sandbox) -> None:
        self.isolation = sandbox.isolation
        self.notices: Sequence[str] = [plan.settings.of(ToyOptions).toy_motto]
        self._plan, self._models, self._sandbox = plan, models, sandbox

    async def check(self) -> dict[str, Any]:
        return {**await model_facts(self._plan, self._models), "toy": "here"}

    async def run(self, driver: Driver) -> None:
        caller = Caller(self._plan.settings, self._models, spent=driver.spent)
        runner = ExperimentRunner(Resources(self._plan, self._models, self._sandbox), caller, driver, driver.how)
        for work in driver.work():
            await driver.settle(await runner.perform(work))
