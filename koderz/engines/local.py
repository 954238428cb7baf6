"""This machine: experiments side by side on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koderz.engines import Driver, Traits
from koderz.engines.resources import (
    baseline_price,
    checked_suite,
    exclusive_of,
    model_facts,
    open_models,
    sandbox_of,
    shared_of,
)
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import PendingExperiment
from koderz.experiments.recall import Lessons, open_lessons
from koderz.experiments.runner import ExperimentRunner
from koderz.experiments.slots import PrioritySemaphore, Slot
from koderz.plans.plan import Plan
from koderz.sandbox import FULL, NoSandbox, Sandbox
from koderz.solvers import NEEDED
from koderz.suites.code.calibration import cpu_scale
from koderz.suites.references import CheckedSuite
from koderz.types import JUDGE, PRIVACY

if TYPE_CHECKING:
    from koderz.models import Model, Price
    from koderz.models.limiter import Throttle
    from koderz.models.pool import ModelPool
    from koderz.sandbox.exclusive import Exclusive

_WAITING = 512  # experiments at most, besides those at work, that are being judged or written down


@asynccontextmanager
async def open_local(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[LocalEngine]:
    """With the sandbox and the models that the plan names. Raises Unreachable where one isn't there."""
    async with (
        open_models(plan, environ) as (pool, models),
        exclusive_of(plan, environ, pool.notices.append) as exclusive,
        sandbox_of(plan) as sandbox,
        open_lessons(plan, environ) as lessons,
        shared_of(plan, environ) as shared,
    ):
        if sandbox.isolation not in (FULL, NoSandbox.isolation):
            pool.notices.append(f"reduced isolation: {sandbox.isolation} (full: {FULL})")
        pool.notices += getattr(shared, "notices", ())
        suite = checked_suite(plan, sandbox)
        yield LocalEngine(
            plan,
            models,
            sandbox,
            pool,
            baseline=baseline_price(plan),
            lessons=lessons,
            suite=suite,
            shared=shared,
            exclusive=exclusive,
        )


open_local.traits = Traits(frozenset({JUDGE, PRIVACY, "memory", *NEEDED}))  # type: ignore[attr-defined]


class LocalEngine:
    """As many experiments at work at once as the plan's `concurrency`, drawn one by one, however many there are."""

    name = "local"
    outlives = False

    def __init__(
        self,
        plan: Plan,
        models: Mapping[str, Model],
        sandbox: Sandbox,
        pool: ModelPool | None = None,
        *,
        baseline: Price | None = None,
        lessons: Lessons | None = None,
        suite: CheckedSuite | None = None,
        shared: Any = None,
        exclusive: Exclusive | None = None,
    ) -> None:
        """`suite`: the plan's, where its references are to be tried before it judges; the others: see `resources`."""
        self.isolation = sandbox.isolation
        self._notices = pool.notices if pool else []
        self.notices: Sequence[str] = self._notices
        self._plan = replace(plan, suite=suite) if suite else plan
        self._models, self._sandbox, self._pool = models, sandbox, pool
        self._baseline, self._suite = baseline, suite
        self._lessons, self._shared, self._exclusive = lessons, shared, exclusive

    @property
    def throttle(self) -> Sequence[Throttle]:
        return self._pool.throttle if self._pool else ()

    async def check(self) -> dict[str, Any]:
        facts = await model_facts(self._plan, self._models)
        if isinstance(self._sandbox, NoSandbox):
            return facts
        return facts | {"sandbox": self.isolation, "cpu_scale": cpu_scale(self._sandbox)}

    async def run(self, driver: Driver) -> None:
        """What `driver` or a disk that refuses raises ends all."""
        caller = Caller(self._plan.settings, self._models, spent=driver.spent, baseline=self._baseline)
        broken = self._suite.broken if self._suite else None
        runner = ExperimentRunner(
            self._plan,
            caller,
            self._sandbox,
            driver,
            driver.how,
            lessons=self._lessons,
            broken=broken,
            shared=self._shared,
            exclusive=self._exclusive,
        )
        slots = PrioritySemaphore(self._plan.settings.concurrency)
        begun = asyncio.Semaphore(self._plan.settings.concurrency + _WAITING)

        async def perform(work: PendingExperiment) -> None:
            slot = Slot(slots)
            outcome = await runner.perform(work, slot)
            if outcome.record is None:
                caller.closed = caller.closed or outcome.fault
            await driver.settle(outcome)
            slot.give_up()
            begun.release()

        async with self._references_tried(), asyncio.TaskGroup() as group:
            async for work in _drawn(driver.work(), slots, begun):
                group.create_task(perform(work))

    def _references_tried(self) -> AbstractAsyncContextManager[None]:
        return self._suite.trying(self._plan.tasks, self._notices.append) if self._suite else nullcontext()


async def _drawn(
    works: Iterator[PendingExperiment], slots: PrioritySemaphore, begun: asyncio.Semaphore
) -> AsyncIterator[PendingExperiment]:
    """Each experiment once there is a slot for it, so that none is begun that can't be worked on at once."""
    while True:
        await begun.acquire()
        await slots.enter(new=True)
        work = next(works, None)
        if work is None:
            slots.leave()
            return
        yield work
