"""This machine: experiments side by side on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from koderz.calls import Caller
from koderz.engines import Driver, Work
from koderz.engines.performing import Performer
from koderz.opening import baseline_price, model_facts, open_models, sandbox_of
from koderz.plan import Plan
from koderz.sandbox import FULL, Sandbox

if TYPE_CHECKING:
    from koderz.models import Model, Price
    from koderz.models.limiter import Throttle
    from koderz.models.pool import ModelPool


@asynccontextmanager
async def open_local(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[LocalEngine]:
    """With the sandbox and the models that the plan names. Raises Unreachable where one isn't there."""
    async with sandbox_of(plan) as sandbox, open_models(plan, environ) as (pool, models):
        if sandbox.rung != FULL:
            pool.notices.append(f"programs run at the sandbox rung {sandbox.rung}; the full one is {FULL}")
        yield LocalEngine(plan, models, sandbox, pool, baseline=baseline_price(plan))


class LocalEngine:
    """As many experiments at once as the plan's `concurrency`, drawn one by one, however many there are."""

    name = "local"

    def __init__(
        self,
        plan: Plan,
        models: Mapping[str, Model],
        sandbox: Sandbox,
        pool: ModelPool | None = None,
        *,
        baseline: Price | None = None,
    ) -> None:
        self.rung = sandbox.rung
        self.notices: Sequence[str] = pool.notices if pool else []
        self._plan, self._models, self._sandbox, self._pool = plan, models, sandbox, pool
        self._baseline = baseline

    @property
    def throttle(self) -> Sequence[Throttle]:
        return self._pool.throttle if self._pool else ()

    async def check(self) -> dict[str, Any]:
        return await model_facts(self._plan, self._models) | {"sandbox": self.rung}

    async def run(self, driver: Driver) -> None:
        """What `driver` or a disk that refuses raises ends all."""
        caller = Caller(self._plan.settings, self._models, spent=driver.spent, baseline=self._baseline)
        performer = Performer(self._plan, caller, self._sandbox, driver, driver.how)
        works = driver.work()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.settings.concurrency):
                group.create_task(_lane(works, performer, caller, driver))


async def _lane(works: Iterator[Work], performer: Performer, caller: Caller, driver: Driver) -> None:
    for work in works:
        outcome = await performer.perform(work)
        if outcome.record is None:
            caller.closed = caller.closed or outcome.fault
        await driver.settle(outcome)
