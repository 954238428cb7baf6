"""The engine `local`: experiments side by side on one event loop of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koderz.engines import Driver, Engine
from koderz.engines.batching import asked_in_batches, gatherer_of, require_batches
from koderz.engines.resources import model_facts, open_resources, places_of
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import PendingExperiment
from koderz.experiments.runner import ExperimentRunner, Resources
from koderz.plans.plan import Plan
from koderz.sandbox import NoSandbox
from koderz.settings.requests import ALL_AT_ONCE, BatchOptions
from koderz.settings.schema import Settings
from koderz.solvers.handles import NEEDED
from koderz.types import JUDGE, PRIVACY

if TYPE_CHECKING:
    from koderz.models.gathering import Gatherer
    from koderz.models.limiter import Throttle
    from koderz.models.pool import ModelPool

_WAITING = 512  # experiments at most, besides those at work, whose calls are over and whose program is being judged


class _Place:
    """The slot of one running experiment, from its start until it leaves the slot to another."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def leave(self) -> None:
        """Lets another experiment begin."""
        if self._places:
            self._places.release()
            self._places = None


class LocalEngine(Engine):
    """Runs experiments here, at most `concurrency` at once, drawn one by one."""

    name = "local"
    can = frozenset({JUDGE, PRIVACY, "memory", "reuse", *NEEDED})
    options = BatchOptions

    @classmethod
    def settle(cls, settings: Settings, given: Container[str]) -> Settings:
        """With calls in batches, all experiments are under way at once unless the user says how many."""
        is_batched = settings.of(BatchOptions).batch and "concurrency" not in given
        return replace(settings, concurrency=ALL_AT_ONCE) if is_batched else settings

    def __init__(
        self, resources: Resources, pool: ModelPool | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.isolation = resources.sandbox.isolation
        self._notices = pool.notices if pool else []
        self.notices: Sequence[str] = self._notices
        self._resources, self._plan, self._pool = resources, resources.plan, pool
        self._environ = environ
        self._places: Mapping[str, Mapping[str, Any]] = {}
        self._batches: Gatherer | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[LocalEngine]:
        """Opens the engine with the plan's sandbox and models. Raises Unreachable if one is missing."""
        async with open_resources(plan, environ) as (resources, pool):
            yield cls(resources, pool, environ)

    @property
    def throttle(self) -> Sequence[Throttle]:
        return self._pool.throttle if self._pool else ()

    @property
    def waits(self) -> str:
        """A text about what experiments wait for, shown beside the progress; empty for nothing."""
        exclusive = self._resources.exclusive
        if self._batches and self._batches.waits:
            return self._batches.waits
        return "waits for another koderz" if exclusive and exclusive.is_waiting else ""

    @property
    def rests(self) -> bool:
        return self._batches is not None and self._batches.rests

    async def check(self) -> dict[str, Any]:
        facts = await model_facts(self._plan, self._resources.models)
        if self._environ is not None:
            self._places = places_of(self._plan, self._environ, facts["models"])
        await require_batches(self._plan, self._resources.models)
        if isinstance(self._resources.sandbox, NoSandbox):
            return facts
        return facts | {"sandbox": self.isolation, "cpu_scale": self._resources.sandbox.speed}

    async def run(self, driver: Driver) -> None:
        """Runs all work of the driver. An error of the driver, or of a disk that refuses, ends the run."""
        async with gatherer_of(self._plan, self._resources.models, driver, self._notices.append) as self._batches:
            await self._run(driver, self._batches)

    async def _run(self, driver: Driver, batches: Gatherer | None) -> None:
        resources, settings = self._resources, self._plan.settings
        caller = Caller(
            settings,
            resources.models,
            spent=driver.spent,
            baseline=resources.baseline,
            places=self._places,
            recorded=driver.replies,
            batches=batches,
            in_batches=asked_in_batches(self._plan, resources.models) if batches else (),
        )
        runner = ExperimentRunner(resources, caller, driver, driver.how)
        # What batches had done is taken over from all experiments, before anything ends the session.
        at_once = settings.concurrency if driver.how.buys else ALL_AT_ONCE
        places, begun = asyncio.Semaphore(at_once), asyncio.Semaphore(at_once + _WAITING)

        async def perform(work: PendingExperiment) -> None:
            place = _Place(places)
            with batches.experiment() if batches else nullcontext():
                outcome = await runner.perform(work, place.leave)
                if outcome.record is None:
                    caller.closed = caller.closed or outcome.fault
                await driver.settle(outcome)
                place.leave()
                begun.release()

        references = resources.references
        tried = references.trying(self._plan.tasks, self._notices.append) if references else nullcontext()
        async with tried, asyncio.TaskGroup() as group:
            async for work in _drawn(driver, places, begun):
                group.create_task(perform(work))


async def _drawn(
    driver: Driver, places: asyncio.Semaphore, begun: asyncio.Semaphore
) -> AsyncIterator[PendingExperiment]:
    """Draws each experiment when a slot is free, so that none begins that can't be worked on at once."""
    works = driver.work()
    while True:
        await begun.acquire()
        await places.acquire()
        await driver.room()
        work = next(works, None)
        if work is None:
            places.release()
            return
        yield work
