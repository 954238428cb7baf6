"""This machine: experiments side by side on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from koderz.engines import Driver, Traits
from koderz.engines.resources import model_facts, open_resources
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import PendingExperiment
from koderz.experiments.runner import ExperimentRunner, Resources
from koderz.plans.plan import Plan
from koderz.sandbox import NoSandbox
from koderz.sandbox.calibration import cpu_scale
from koderz.solvers import NEEDED
from koderz.types import JUDGE, PRIVACY

if TYPE_CHECKING:
    from koderz.models.limiter import Throttle
    from koderz.models.pool import ModelPool

_WAITING = 512  # experiments at most, besides those at work, whose calls are over and whose program is being judged


@asynccontextmanager
async def open_local(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[LocalEngine]:
    """With the sandbox and the models that the plan names. Raises Unreachable where one isn't there."""
    async with open_resources(plan, environ) as (resources, pool):
        yield LocalEngine(resources, pool)


open_local.traits = Traits(frozenset({JUDGE, PRIVACY, "memory", *NEEDED}))  # type: ignore[attr-defined]


class _Place:
    """The place of one experiment among those at work: its own from its start until it leaves."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def leave(self) -> None:
        """Lets another experiment begin."""
        if self._places:
            self._places.release()
            self._places = None


class LocalEngine:
    """As many experiments at work at once as the plan's `concurrency`, drawn one by one, however many there are."""

    name = "local"
    outlives = False

    def __init__(self, resources: Resources, pool: ModelPool | None = None) -> None:
        self.isolation = resources.sandbox.isolation
        self._notices = pool.notices if pool else []
        self.notices: Sequence[str] = self._notices
        self._resources, self._plan, self._pool = resources, resources.plan, pool

    @property
    def throttle(self) -> Sequence[Throttle]:
        return self._pool.throttle if self._pool else ()

    @property
    def waits(self) -> str:
        """What its experiments wait for, to be said beside the figures of the progress; empty for nothing."""
        exclusive = self._resources.exclusive
        return "waits for another koderz" if exclusive and exclusive.is_waiting else ""

    async def check(self) -> dict[str, Any]:
        facts = await model_facts(self._plan, self._resources.models)
        if isinstance(self._resources.sandbox, NoSandbox):
            return facts
        return facts | {"sandbox": self.isolation, "cpu_scale": cpu_scale(self._resources.sandbox)}

    async def run(self, driver: Driver) -> None:
        """What `driver` or a disk that refuses raises ends all."""
        resources = self._resources
        caller = Caller(self._plan.settings, resources.models, spent=driver.spent, baseline=resources.baseline)
        runner = ExperimentRunner(resources, caller, driver, driver.how)
        places = asyncio.Semaphore(self._plan.settings.concurrency)
        begun = asyncio.Semaphore(self._plan.settings.concurrency + _WAITING)

        async def perform(work: PendingExperiment) -> None:
            place = _Place(places)
            outcome = await runner.perform(work, place.leave)
            if outcome.record is None:
                caller.closed = caller.closed or outcome.fault
            await driver.settle(outcome)
            place.leave()
            begun.release()

        suite = resources.references
        tried = suite.trying(self._plan.tasks, self._notices.append) if suite else nullcontext()
        async with tried, asyncio.TaskGroup() as group:
            async for work in _drawn(driver.work(), places, begun):
                group.create_task(perform(work))


async def _drawn(
    works: Iterator[PendingExperiment], places: asyncio.Semaphore, begun: asyncio.Semaphore
) -> AsyncIterator[PendingExperiment]:
    """Each experiment once there is a place for it, so that none is begun that can't be worked on at once."""
    while True:
        await begun.acquire()
        await places.acquire()
        work = next(works, None)
        if work is None:
            places.release()
            return
        yield work
