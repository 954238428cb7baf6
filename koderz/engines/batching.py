"""Which of a plan's calls are sent in batches, and the batches of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from koderz.errors import Fault, KoderzError
from koderz.models.dispatch import Dispatcher
from koderz.models.faults import Retryable
from koderz.models.gathering import Gatherer
from koderz.models.names import parse_model_name
from koderz.models.providers import BatchModel, provider_of
from koderz.plans.arms import Arm, model_key
from koderz.settings.requests import BatchOptions
from koderz.types import MAIN, NOBODY
from koderz_tracker.batches import answered_in, batches_in

if TYPE_CHECKING:
    from koderz.engines import Driver
    from koderz.models import Model
    from koderz.models.batches import BatchApi
    from koderz.plans.plan import Plan

_WIRES = ("chat", "messages")  # of providers that may have a batch API


def require_batchable(plan: Plan) -> None:
    """Raises KoderzError where calls are to be sent in batches to a model that surely has none."""
    options = plan.settings.of(BatchOptions)
    if not options.batch:
        return
    for arm in plan.arms:
        if unknown := next((role for role in options.batch_roles if role not in arm.models), ""):
            raise KoderzError(f"--batch-role {unknown}: no model has this role here; roles are {', '.join(arm.models)}")
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
            is_there = name != NOBODY and parse_model_name(name).provider == parse_model_name(arm.model).provider
            if role in options.batch_roles or (is_there and role not in settings.roles_elsewhere):
                yield arm, role


def asked_in_batches(plan: Plan, models: Mapping[str, Model]) -> Mapping[tuple[str, str], BatchApi]:
    """The batch API of each arm and role whose calls are sent in batches: of those that are asked where the model is.

    Other roles are named by the user.
    """
    settings, found = plan.settings, {}
    for arm, role in batched_roles(plan):
        api, main = (
            _api_of(models, model_key(each, arm.models[each], settings.roles_elsewhere)) for each in (role, MAIN)
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
                raise KoderzError(f"--batch: {api.http.address} has no batch API; leave --batch away")
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
