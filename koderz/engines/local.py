"""The engine `local`: experiments side by side on one event loop of this machine, whose calls may go in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koderz.engines import Driver, Engine
from koderz.engines.resources import model_facts, open_resources, places_of
from koderz.errors import Fault, KoderzError
from koderz.experiments.calls import Caller
from koderz.experiments.experiment import PendingExperiment
from koderz.experiments.runner import ExperimentRunner, Resources
from koderz.models.dispatch import Dispatcher
from koderz.models.faults import Retryable
from koderz.models.gathering import Gatherer
from koderz.models.names import parse_model_name
from koderz.models.providers import BatchModel, provider_of
from koderz.plans.arms import Arm, model_key
from koderz.plans.plan import Plan
from koderz.sandbox import NoSandbox
from koderz.settings.requests import ALL_AT_ONCE, BatchOptions
from koderz.settings.schema import Settings
from koderz.solvers.definition import NEEDED
from koderz.types import JUDGE, MAIN, NOBODY, PRIVACY
from koderz_tracker.outline import answered_in, batches_in

if TYPE_CHECKING:
    from koderz.models import Model
    from koderz.models.batches import BatchApi
    from koderz.models.limiter import Throttle
    from koderz.models.pool import ModelPool

# experiments at most, besides those at work, whose calls are over and whose program is being judged
_WAITING = 512


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
        self,
        resources: Resources,
        pool: ModelPool | None = None,
        environ: Mapping[str, str] | None = None,
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
        async with gatherer_of(
            self._plan, self._resources.models, driver, self._notices.append
        ) as self._batches:
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
        tried = (
            references.trying(self._plan.tasks, self._notices.append)
            if references
            else nullcontext()
        )
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


# Calls in batches

_WIRES = ("chat", "messages")  # of providers that may have a batch API


def require_batchable(plan: Plan) -> None:
    """Raises KoderzError where calls are to be sent in batches to a model that surely has none."""
    options = plan.settings.of(BatchOptions)
    if not options.batch:
        return
    for arm in plan.arms:
        if unknown := next((role for role in options.batch_roles if role not in arm.models), ""):
            raise KoderzError(
                f"--batch-role {unknown}: no model has this role here; roles are {', '.join(arm.models)}"
            )
        for role in (MAIN, *options.batch_roles):
            if (name := arm.models.get(role, NOBODY)) == NOBODY:
                continue
            provider = provider_of(parse_model_name(name).provider)
            if provider.name == "simulated" or provider.wire not in _WIRES:
                raise KoderzError(f"--batch: {name} has no batch API; leave --batch away")


def batched_roles(plan: Plan) -> Iterator[tuple[Arm, str]]:
    """The arms and roles of a plan that are asked in batches, as far as names and options say it."""
    settings = plan.settings
    options = settings.of(BatchOptions)
    for arm in plan.arms if options.batch else ():
        for role, name in arm.models.items():
            is_there = (
                name != NOBODY
                and parse_model_name(name).provider == parse_model_name(arm.model).provider
            )
            if role in options.batch_roles or (is_there and role not in settings.roles_elsewhere):
                yield arm, role


def asked_in_batches(plan: Plan, models: Mapping[str, Model]) -> Mapping[tuple[str, str], BatchApi]:
    """The batch API of each arm and role whose calls are sent in batches: of those that are asked where the model is.

    Other roles are named by the user.
    """
    settings, found = plan.settings, {}
    for arm, role in batched_roles(plan):
        api, main = (
            _api_of(models, model_key(each, arm.models[each], settings.roles_elsewhere))
            for each in (role, MAIN)
        )
        is_there = api and main and api.http.base_url == main.http.base_url
        if api and (is_there or role in settings.of(BatchOptions).batch_roles):
            found[arm.name, role] = api
    return found


async def require_batches(plan: Plan, models: Mapping[str, Model]) -> None:
    """Raises KoderzError where a server has no batch API, which is found out for free."""
    for api in {id(api): api for api in asked_in_batches(plan, models).values()}.values():
        try:
            if not await api.is_there():
                raise KoderzError(
                    f"--batch: {api.http.address} has no batch API; leave --batch away"
                )
        except Retryable as error:
            raise Fault(f"{api.http.address}: {error}", cause="unreachable") from None


@asynccontextmanager
async def gatherer_of(
    plan: Plan, models: Mapping[str, Model], driver: Driver, say: Callable[[str], None]
) -> AsyncIterator[Gatherer | None]:
    """The batches of a session of a plan; None where calls are made one by one."""
    options = plan.settings.of(BatchOptions)
    if not options.batch:
        yield None
        return
    folder = plan.settings.results / plan.name
    past = batches_in(folder)
    asked = asked_in_batches(plan, models)
    names = {(arm.name, role): name for arm in plan.arms for role, name in arm.models.items()}
    async with Gatherer(
        Dispatcher(options, plan.name, driver.record, say, buys=driver.how.buys),
        past=past,
        answered=answered_in(folder) if past else (),
        apis={names[key]: api for key, api in asked.items()},
        asks_again=not driver.how.begins_new,
    ) as gatherer:
        yield gatherer


def _api_of(models: Mapping[str, Model], key: str) -> BatchApi | None:
    model = models.get(key)
    return model.batches if isinstance(model, BatchModel) else None
