"""One session of a run: models and sandbox opened, the plan carried out, the summary written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from koderz.errors import KoderzError, Unreachable
from koderz.orchestrator import Ended, Orchestrator
from koderz.plan import Plan
from koderz.replay import Replaying
from koderz.sandbox import Sandbox, open_sandbox
from koderz.settings import Settings
from koderz.trust import remember
from tracker.journal import NAME
from tracker.records import Record
from tracker.sinks.json import write_summary
from tracker.summary import Summary, summarize
from tracker.tracker import Tracker

if TYPE_CHECKING:
    from koderz.models import Endpoint, Model, ModelName, Opener, Price
    from koderz.models.pool import ModelPool, Service


NOTHING_TO_DO = "nothing to do"  # the reason of a session that found the run finished


@dataclass(frozen=True, slots=True)
class Stage:
    """What an audience sees of a session."""

    plan: Plan
    tracker: Tracker
    orchestrator: Orchestrator
    pool: ModelPool


class Audience(Protocol):
    """Whoever watches a session: the terminal, or nobody."""

    def showing(self, stage: Stage) -> AbstractAsyncContextManager[None]:
        """Shows the session for as long as it is entered."""
        ...

    def recorded(self, record: Record) -> None:
        """Something became durable."""
        ...

    def notice(self, text: str) -> None:
        """Something that the user should hear once."""
        ...


class Nobody:
    """An audience that isn't there."""

    def showing(self, stage: Stage) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def recorded(self, record: Record) -> None:  # noqa: ARG002
        return

    def notice(self, text: str) -> None:  # noqa: ARG002
        return


@dataclass(frozen=True, slots=True)
class Session:
    """What is left when a session is over."""

    ended: Ended
    folder: Path
    summary: Summary
    summary_path: Path | None  # None: a single experiment


@asynccontextmanager
async def open_models(plan: Plan, environ: Mapping[str, str]) -> AsyncIterator[tuple[ModelPool, dict[str, Model]]]:
    """The models that a plan names, by the names it uses. Raises Unreachable where a key is missing."""
    from koderz.models.pool import ModelPool

    async with ModelPool(_endpoints(plan, environ), prices=own_prices(plan), openers=_simulated(plan)) as pool:
        yield pool, {name: pool.open(name) for name in asked_models(plan.settings)}


def own_prices(plan: Plan) -> dict[str, Price]:
    """The prices that the plan took from koderz.toml, by model."""
    from koderz.models import Price

    return {name: Price(*pair) for name, pair in plan.record.details.get("prices", {}).items()}


def baseline_price(plan: Plan) -> Price | None:
    """What the baseline model's tokens cost; None where there is none, or nobody knows."""
    from koderz.models import parse_model_name
    from koderz.models.prices import price_of

    name = plan.settings.baseline_model
    return price_of(parse_model_name(name), own_prices(plan)) if name else None


def _endpoints(plan: Plan, environ: Mapping[str, str]) -> Callable[[ModelName], Endpoint]:
    """Where each model is asked: `base_url` is the local model's, the frontier models have their own."""
    from koderz.models import Endpoint, endpoint_for, parse_model_name

    settings = plan.settings
    common = Endpoint(
        timeout=settings.request_timeout,
        max_retries=settings.max_retries,
        concurrency=settings.concurrency,
        num_ctx=settings.context,
        keep_alive=settings.keep_alive,
    )
    local = parse_model_name(settings.local_model or "simulated")

    def endpoint_of(name: ModelName) -> Endpoint:
        return endpoint_for(
            name,
            environ=environ,
            base_url=settings.base_url if name == local else None,
            base_url_trusted=bool(plan.record.details.get("base_url_trusted", True)),
            api_key_env=settings.api_key_env if name == local else None,
            settings=common,
        )

    return endpoint_of


def _simulated(plan: Plan) -> dict[str, Opener]:
    """The simulated model needs to know the tasks that it is going to be asked."""

    def opener(_name: ModelName, _service: Service) -> Model:
        from koderz.models.simulated import Simulated

        settings = plan.settings
        return Simulated(
            plan.tasks,
            seed=settings.seed,
            skill=settings.simulated_skill,
            latency=settings.simulated_latency,
            fault_rate=settings.simulated_fault_rate,
        )

    return {"simulated": opener}


def asked_models(settings: Settings) -> list[str]:
    """The models that a run may ask, the local one first, each once. The baseline model is only a price."""
    names = (settings.local_model, settings.effective_spec_model, settings.effective_checkpoint_model)
    return list(dict.fromkeys(name for name in names if name))


async def begin(plan: Plan, audience: Audience, environ: Mapping[str, str]) -> Session:
    """A new run, from its first call to its summary. Nothing is created where a model can't be asked."""
    async with _sandbox(plan) as sandbox, open_models(plan, environ) as (pool, models):
        facts = await _facts(plan, models)
        plan = replace(plan, record=replace(plan.record, environment=plan.record.environment | facts))
        with Tracker.create(plan.settings.results, plan.name, plan.record) as tracker:
            if risky_settings(plan.record.config):
                remember(plan_line(tracker.folder), environ)
            return await _carry_out(plan, tracker, Means(pool, models, sandbox), Replaying(), audience)


async def carry_on(
    plan: Plan,
    tracker: Tracker,
    replaying: Replaying,
    audience: Audience,
    environ: Mapping[str, str],
    *,
    how: str,
    changes: Mapping[str, Any],
) -> Session:
    """A later session of a run."""
    async with _sandbox(plan) as sandbox, open_models(plan, environ) as (pool, models):
        if replaying.calls_allowed:
            await _facts(plan, models)
        await tracker.begin_session(how, dict(changes))
        return await _carry_out(plan, tracker, Means(pool, models, sandbox), replaying, audience)


async def _facts(plan: Plan, models: Mapping[str, Model]) -> dict[str, Any]:
    """What the servers say of the models, such as a digest. Raises Unreachable, or KoderzError for a cap."""
    checked = {name: await models[name].check() for name in asked_models(plan.settings)}
    unpriced = [name for name in checked if models[name].price() is None]
    if unpriced and plan.settings.max_cost is not None:
        raise KoderzError(
            f"--max-cost can't hold without the price of {unpriced[0]}; put it into koderz.toml: "
            f'[prices."{unpriced[0]}"] with input and output, US dollars a million tokens'
        )
    return {"models": {name: facts for name, facts in checked.items() if facts}}


def _sandbox(plan: Plan) -> Sandbox:
    return open_sandbox(plan.settings.sandbox, judges=plan.settings.judge_count)


@dataclass(frozen=True, slots=True)
class Means:
    """What it takes to carry out a plan."""

    pool: ModelPool
    models: Mapping[str, Model]
    sandbox: Sandbox


async def _carry_out(plan: Plan, tracker: Tracker, means: Means, replaying: Replaying, audience: Audience) -> Session:
    heard = 0

    def observe(record: Record) -> None:
        nonlocal heard
        for text in means.pool.notices[heard:]:
            heard += 1
            audience.notice(text)
        audience.recorded(record)

    orchestrator = Orchestrator(
        plan, tracker, means.models, means.sandbox, how=replaying, observe=observe, baseline=baseline_price(plan)
    )
    async with audience.showing(Stage(plan, tracker, orchestrator, means.pool)):
        ended = await orchestrator.run()
    await tracker.finish(ended.status, ended.reason)
    return close(tracker, ended)


def risky_settings(config: Mapping[str, Any]) -> list[str]:
    """The settings by which a plan from elsewhere could run code here or have a key sent away."""
    return [name for name in ("solver", "base_url", "api_key_env") if config.get(name)]


def plan_line(folder: Path) -> bytes:
    """The plan of a run, as it lies in its journal."""
    with (folder / NAME).open("rb") as file:
        return file.readline()


def close(tracker: Tracker, ended: Ended) -> Session:
    """Brings the sinks up to date with the journal."""
    if tracker.plan.run_id is None:
        return Session(ended, tracker.folder, summarize(tracker.folder), None)
    path, summary = write_summary(tracker.folder)
    return Session(ended, tracker.folder, summary, path)


def raise_if_failed(session: Session) -> Summary:
    """The summary. Raises Unreachable where the run ended because nothing could be asked."""
    if session.ended.status == "failed":
        raise Unreachable(f"{session.ended.reason} (run {session.summary.run_id}; resume it once that is mended)")
    return session.summary
