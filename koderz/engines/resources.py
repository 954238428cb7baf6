"""The resources that a plan needs on this machine: its models with their addresses and prices, and its sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from koderz.errors import KoderzError, Unreachable
from koderz.models import LEAST_HIDDEN, Endpoint, Price, endpoint_for, parse_model_name
from koderz.models.limiter import accounts_folder
from koderz.models.names import Rates
from koderz.models.prices import price_of, tariff_of
from koderz.models.providers import Simulated, provider_of
from koderz.plans.arms import asked_models, opened_models
from koderz.plans.plan import Plan, needs_of
from koderz.sandbox import FULL, NoSandbox, Sandbox
from koderz.sandbox.calibration import calibrated_sandbox
from koderz.settings.options import fields_of, flag_of
from koderz.settings.requests import ALL_AT_ONCE, ModelOptions, headers_in, is_sendable
from koderz.settings.schema import Settings
from koderz.solvers.definition import SHARING
from koderz.suites.references import references_of
from koderz.suites.suite import Noticing, RunContext
from koderz.types import EXCLUSIVE, JUDGE, MAIN, SIMULATED, SUB

if TYPE_CHECKING:
    from koderz.experiments.runner import Resources
    from koderz.models import Model, ModelName, Service
    from koderz.models.pool import ModelPool
    from koderz.models.tariffs import Tariff
    from koderz.sandbox.calibration import Exclusive


@asynccontextmanager
async def open_resources(
    plan: Plan, environ: Mapping[str, str]
) -> AsyncIterator[tuple[Resources, ModelPool]]:
    """Opens the resources of the plan's experiments. Raises Unreachable if one is missing."""
    from koderz.experiments.recall import open_lessons
    from koderz.experiments.runner import Resources

    async with (
        open_models(plan, environ) as (pool, models),
        _exclusive_of(plan, environ, pool.notices.append) as exclusive,
        sandbox_of(plan) as sandbox,
        open_lessons(plan, environ) as lessons,
        shared_of(plan, environ) as shared,
    ):
        if sandbox.isolation not in (FULL, NoSandbox.isolation):
            pool.notices.append(f"reduced isolation: {sandbox.isolation} (full: {FULL})")
        pool.notices += notices_of(shared)
        references = None if isinstance(sandbox, NoSandbox) else references_of(plan.suite, sandbox)
        yield (
            Resources(
                plan, models, sandbox, baseline_price(plan), lessons, shared, exclusive, references
            ),
            pool,
        )


@asynccontextmanager
async def open_models(
    plan: Plan, environ: Mapping[str, str]
) -> AsyncIterator[tuple[ModelPool, dict[str, Model]]]:
    """Opens the models of a plan, by the names it uses. Raises Unreachable if a key is missing."""
    from koderz.models.pool import ModelPool

    async with ModelPool(
        _endpoints(plan, environ),
        prices=own_prices(plan),
        providers={"simulated": _SimulatedHere(plan)},
        settings=plan.settings,
        accounts=accounts_folder(environ),
    ) as pool:
        endpoint_of = _endpoints(plan, environ)
        models = {
            key: pool.open(name, endpoint_of(parse_model_name(name), role) if role else None)
            for key, (name, role) in _opened(plan).items()
        }
        pool.load()
        yield pool, models


async def model_facts(plan: Plan, models: Mapping[str, Model]) -> dict[str, Any]:
    """Facts that servers report about the models, such as a digest. Raises Unreachable, or KoderzError for a cap."""
    _require_prices(plan, lambda name: models[name].price())
    checked = {name: await models[name].check() for name in _opened(plan)}
    return {"models": {name: facts for name, facts in checked.items() if facts}}


def require_prices(plan: Plan, environ: Mapping[str, str]) -> None:
    """Raises KoderzError if a model that isn't opened here has no known price, so that no cap can hold."""
    _require_prices(plan, lambda name: listed_tariff(plan, name, environ))


def sandbox_of(plan: Plan) -> AbstractAsyncContextManager[Sandbox]:
    """The plan's sandbox, not yet entered. Its seconds are those of the yardstick and so the same on any machine.

    Where nothing is judged by running a program, none is opened.
    """
    if JUDGE not in needs_of(plan):
        return NoSandbox()
    settings = plan.settings
    return calibrated_sandbox(
        settings.sandbox,
        judges=settings.judge_count,
        own_programs=asked_models(plan.arms) == ["simulated"],
        memory_mb=plan.judging.memory_mb,
        settings=settings,
    )


@asynccontextmanager
async def shared_of(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[Any]:
    """Opens the resource that a run's sessions and workspaces share, if its suite has one; else None.

    Raises Unreachable where it can't be opened.
    """
    async with AsyncExitStack() as stack:
        shared = None
        if SHARING & needs_of(plan):
            try:
                shared = await stack.enter_async_context(
                    plan.suite.open_run(RunContext(plan.settings, environ))
                )
            except KoderzError:
                raise
            except Exception as error:  # a suite may be anybody's code
                what = f"what sessions of the suite {plan.suite.name} share can't be opened"
                raise Unreachable(f"{what}: {type(error).__name__}: {error}") from error
        yield shared


def notices_of(shared: object) -> Sequence[str]:
    """The sentences to be shown about what the sessions and workspaces of a run share."""
    return shared.notices if isinstance(shared, Noticing) else ()


@asynccontextmanager
async def _exclusive_of(
    plan: Plan, environ: Mapping[str, str], notice: Callable[[str], None]
) -> AsyncIterator[Exclusive | None]:
    """Opens the lock for tasks that are measured alone, see `open_exclusive`; None if no task needs it."""
    if EXCLUSIVE not in needs_of(plan):
        yield None
        return
    from koderz.sandbox.calibration import open_exclusive

    with open_exclusive(notice, environ) as exclusive:
        yield exclusive


def _require_prices(plan: Plan, known: Callable[[str], object]) -> None:
    """Raises KoderzError if there is a cost cap and the price of a model is unknown."""
    caps = [
        name
        for name in ("max_cost", "max_experiment_cost")
        if getattr(plan.settings, name) is not None
    ]
    for key, (name, _) in _opened(plan).items() if caps else ():
        if known(key) is None:
            raise KoderzError(
                f"{flag_of(caps[0])} can't hold without the price of {name}; put it into koderz.toml: "
                f'[prices."{name}"] with input and output, US dollars a million tokens'
            )


def own_prices(plan: Plan) -> dict[str, Price]:
    """The prices that the plan has from koderz.toml, by model."""
    return {name: Price(*pair) for name, pair in plan.record.basis.prices.items()}


def baseline_price(plan: Plan) -> Price | None:
    """The price of the baseline model's tokens; None if there is no such model or its price is unknown."""
    name = plan.settings.baseline_model
    return price_of(parse_model_name(name), own_prices(plan)) if name else None


def listed_tariff(plan: Plan, name: str, environ: Mapping[str, str]) -> Tariff | None:
    """The tariff of a model at the address where it would be asked; None if unknown.

    `name`: as it is or, where a role has an address of its own, with that before it; see `model_key`.
    """
    name, role = _opened(plan).get(name, (name, ""))
    model = parse_model_name(name)
    try:
        address = _endpoints(plan, _with_keys(plan, environ))(model, role).base_url
    except Unreachable:  # the value of a header is missing
        address = None
    return tariff_of(model, address, own_prices(plan))


def _with_keys(plan: Plan, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The variables, with a stand-in for each key that is missing, which matters to nobody before a run begins."""
    keys = {own.api_key_env for own in plan.settings.options_of_models.values()} | {
        plan.settings.api_key_env
    }
    keys |= {
        provider_of(parse_model_name(name).provider).key_variable
        for name, _ in _opened(plan).values()
    }
    return {**environ, **{key: environ.get(key, "").strip() or "missing" for key in keys if key}}


def places_of(
    plan: Plan, environ: Mapping[str, str], facts: Mapping[str, Mapping[str, str]] | None
) -> dict[str, dict[str, Any]]:
    """The circumstances that decide a model's replies besides the request, by `model_key`: where and how it is asked.

    `facts` are those that servers told; without them models of Ollama, known by a digest, are left out. An address that
    is the provider's own is left out, and so are keys and headers. Raises Unreachable if a header's value is missing.
    """
    from koderz.suites.options import SimulatedOptions

    found: dict[str, dict[str, Any]] = {}
    endpoint_of = _endpoints(plan, _with_keys(plan, environ))
    for key, (name, role) in _opened(plan).items():
        model = parse_model_name(name)
        provider, endpoint = provider_of(model.provider), endpoint_of(model, role)
        if provider.wire == "ollama" and facts is None:
            continue
        place: dict[str, Any] = {"model": str(model)}
        if endpoint.base_url != (provider.address or None):
            place["address"] = endpoint.base_url
        if provider.wire == "ollama":
            place |= {
                "context": endpoint.num_ctx,
                "digest": (facts or {}).get(key, {}).get("digest"),
            }
        elif provider.wire == "chat":
            place |= {
                "wire": endpoint.wire,
                "api_version": endpoint.api_version if endpoint.is_deployment else "",
            }
        options = SimulatedOptions if model.provider == SIMULATED else provider.options
        if options:
            place["options"] = [
                str(getattr(plan.settings.of(options), each)) for each in fields_of(options)
            ]
        found[key] = place
    return found


def _opened(plan: Plan) -> Mapping[str, tuple[str, str]]:
    """See `opened_models`."""
    return opened_models(plan.arms, plan.settings.roles_elsewhere)


def _endpoints(plan: Plan, environ: Mapping[str, str]) -> Callable[..., Endpoint]:
    """The endpoint of each model, or of a model in a role that has an address of its own.

    `base_url` is for the local model and its sub-model; others have their own. The user's headers go to the addresses
    of the models that answer, and to no other server.
    """
    settings = plan.settings
    # Where all experiments wait for batches, what is asked live besides is asked as in any other run.
    at_once = settings.concurrency if settings.concurrency < ALL_AT_ONCE else Settings().concurrency
    common = Endpoint(
        timeout=settings.request_timeout,
        max_retries=settings.max_retries,
        concurrency=settings.max_connections or at_once,
        num_ctx=settings.context,
        keep_alive=settings.keep_alive,
        wire=settings.wire,
        api_version=settings.api_version or "",
    )
    trusted = plan.record.basis.base_url_trusted
    answering = {
        parse_model_name(arm.models[role])
        for arm in plan.arms
        for role in (MAIN, SUB)
        if role in arm.models
    }

    def plain(name: ModelName, role: str = "") -> Endpoint:
        mine = settings.options_of_models.get(str(name), ModelOptions())
        limits = {
            limit.replace("-", "_"): most
            for limit, most in settings.rates_of(name.provider).items()
        }
        own = replace(
            common,
            rates=Rates(**limits),
            wire=mine.wire or common.wire,
            num_ctx=mine.context or common.num_ctx,
        )
        asked = partial(endpoint_for, name, environ=environ, settings=own)
        if role:
            own_trusted = role not in plan.record.basis.untrusted_roles
            return asked(base_url=settings.roles_elsewhere[role], base_url_trusted=own_trusted)
        if name in answering:
            asked = partial(asked, settings=replace(own, timeout_is=settings.timeout_is))
        if mine.base_url:
            # A file that was trusted names this key for this address; a provider's own key goes to no such address.
            own_trusted = (
                bool(mine.api_key_env) or str(name) not in plan.record.basis.untrusted_models
            )
            return asked(
                base_url=mine.base_url, base_url_trusted=own_trusted, api_key_env=mine.api_key_env
            )
        if name not in answering:
            return asked(api_key_env=mine.api_key_env)
        return asked(
            base_url=settings.base_url,
            base_url_trusted=trusted,
            api_key_env=mine.api_key_env or settings.api_key_env,
        )

    def endpoint_of(name: ModelName, role: str = "") -> Endpoint:
        endpoint = plain(name, role)
        if not settings.extra_headers or not endpoint.base_url:
            return endpoint
        servers = {_server_of(plain(each)) for each in answering}
        return (
            with_headers(endpoint, settings, environ)
            if _server_of(endpoint) in servers
            else endpoint
        )

    return endpoint_of


def _server_of(endpoint: Endpoint) -> tuple[str, str]:
    parts = urlsplit(endpoint.base_url or "")
    return parts.scheme, parts.netloc


def with_headers(endpoint: Endpoint, settings: Settings, environ: Mapping[str, str]) -> Endpoint:
    """The endpoint with the user's headers. Raises Unreachable where the value of one isn't to be had."""
    values: dict[str, str] = {}
    for header in headers_in(settings.extra_headers):
        value = environ.get(header.variable, "").strip() if header.variable else header.value
        if not value or not is_sendable(value):
            where = f"{header.variable} to a line of printable ASCII" if header.variable else ""
            again = f"its value is on no record; give it again: --extra-header {header.name}=…"
            raise Unreachable(f"--extra-header {header.name}: {f'set {where}' if where else again}")
        values[header.name] = value
    short = [name for name, value in values.items() if len(value) < LEAST_HIDDEN]
    said = (
        (f"the value of the header {', '.join(short)} is so short that replies may show it",)
        if short
        else ()
    )
    return replace(endpoint, headers=values, notices=(*endpoint.notices, *said))


class _SimulatedHere(Simulated):
    """The simulated model of a plan: it needs to know the tasks that it is going to be asked."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def open(self, name: ModelName, service: Service) -> Model:  # noqa: ARG002
        from koderz.suites.options import SimulatedOptions

        plan = self._plan
        return plan.suite.simulated_model(
            plan.tasks, plan.settings.seed, plan.settings.of(SimulatedOptions)
        )
