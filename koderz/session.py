"""One session of a run: models and sandbox opened, the plan carried out, the summary written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.audience import Audience, Nobody, Stage
from koderz.errors import KoderzError, Unreachable
from koderz.opening import asked_models, baseline_price, open_models
from koderz.orchestrator import Ended, Orchestrator
from koderz.plan import Plan
from koderz.projecting import start_sinks
from koderz.recalling import Lessons, open_lessons
from koderz.references import checked
from koderz.replay import Replaying
from koderz.sandbox import FULL, Sandbox
from koderz.trust import remember
from koderz.types import Judging
from koderz.yardstick import calibrated_sandbox, cpu_scale
from tracker.journal import NAME
from tracker.records import Record
from tracker.sinks import JSON
from tracker.sinks.json import write_summary
from tracker.sinks.process import SinkProcess
from tracker.sinks.standing import mark_up_to_date
from tracker.summary import Summary, summarize
from tracker.tracker import Tracker

if TYPE_CHECKING:
    from koderz.models import Model
    from koderz.models.pool import ModelPool


@dataclass(frozen=True, slots=True)
class Session:
    """What is left when a session is over."""

    ended: Ended
    folder: Path
    summary: Summary
    summary_path: Path | None  # None: a single experiment, or json is not among the sinks
    sinks: SinkProcess | None = None  # to be caught up, then stopped, by whoever has the session
    sink_patience: float = 0.0  # seconds


async def begin(plan: Plan, audience: Audience | None = None, environ: Mapping[str, str] = os.environ) -> Session:
    """A new run, from its first call to its summary. Nothing is created where a model can't be asked."""
    audience = audience or Nobody()
    async with (
        _sandbox_of(plan) as sandbox,
        open_models(plan, environ) as (pool, models),
        open_lessons(plan, environ) as lessons,
    ):
        facts = await _facts(plan, models) | {"sandbox": sandbox.rung, "cpu_scale": cpu_scale(sandbox)}
        plan = replace(plan, record=replace(plan.record, environment=plan.record.environment | facts))
        with Tracker.create(plan.settings.results, plan.name, plan.record) as tracker:
            if risky_settings(plan.record.config):
                remember(plan_line(tracker.folder), environ)
            with _sinks_of(plan, tracker, environ) as sinks:
                return await _carry_out(
                    plan, tracker, Means(pool, models, sandbox, lessons, sinks), Replaying(), audience
                )


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
    async with (
        _sandbox_of(plan) as sandbox,
        open_models(plan, environ) as (pool, models),
        open_lessons(plan, environ) as lessons,
    ):
        if replaying.calls_allowed:
            await _facts(plan, models)
        await tracker.begin_session(how, dict(changes))
        with _sinks_of(plan, tracker, environ) as sinks:
            return await _carry_out(plan, tracker, Means(pool, models, sandbox, lessons, sinks), replaying, audience)


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


def _sandbox_of(plan: Plan) -> AbstractAsyncContextManager[Sandbox]:
    settings = plan.settings
    return calibrated_sandbox(
        settings.sandbox,
        judges=settings.judge_count,
        own_programs=plan.record.simulated,
        image=settings.docker_image,
        memory_mb=settings.test_memory,
    )


@dataclass(frozen=True, slots=True)
class Means:
    """What it takes to carry out a plan."""

    pool: ModelPool
    models: Mapping[str, Model]
    sandbox: Sandbox
    lessons: Lessons | None
    sinks: SinkProcess | None


async def _carry_out(plan: Plan, tracker: Tracker, means: Means, replaying: Replaying, audience: Audience) -> Session:
    heard = 0

    def observe(record: Record) -> None:
        nonlocal heard
        for text in means.pool.notices[heard:]:
            heard += 1
            audience.notice(text)
        if means.sinks and (death := means.sinks.death()):
            audience.notice(death)
        audience.recorded(record)

    if means.sandbox.rung != FULL:
        audience.notice(f"programs run at the sandbox rung {means.sandbox.rung}; the full one is {FULL}")
    judging = Judging(plan.settings.test_timeout, plan.settings.test_memory)
    suite = checked(plan.suite, means.sandbox, judging)
    orchestrator = Orchestrator(
        replace(plan, suite=suite or plan.suite),
        tracker,
        means.models,
        means.sandbox,
        how=replaying,
        observe=observe,
        baseline=baseline_price(plan),
        lessons=means.lessons,
        broken=suite.broken if suite else None,
    )
    async with (
        suite.trying(plan.tasks, audience.notice) if suite else nullcontext(),
        audience.showing(Stage(plan, tracker, orchestrator, means.pool)),
    ):
        ended = await orchestrator.run()
    await tracker.finish(ended.status, ended.reason)
    return close(plan, tracker, ended, means.sinks)


@contextmanager
def _sinks_of(plan: Plan, tracker: Tracker, environ: Mapping[str, str]) -> Iterator[SinkProcess | None]:
    """Feeds the sinks; they are stopped here only where the session fails. A single experiment has none."""
    if plan.record.run_id is None:
        yield None
        return
    sinks = start_sinks(plan.settings, tracker.folder, environ)
    with ExitStack() as stack:
        stack.callback(sinks.stop)
        yield sinks
        stack.pop_all()


def risky_settings(config: Mapping[str, Any]) -> list[str]:
    """The settings by which a plan from elsewhere could run code here or have a key sent away."""
    risky = [name for name in ("solver", "base_url", "api_key_env") if config.get(name)]
    return risky + (["sandbox"] if config.get("sandbox") == "uncontained" else [])


def plan_line(folder: Path) -> bytes:
    """The plan of a run, as it lies in its journal."""
    with (folder / NAME).open("rb") as file:
        return file.readline()


def close(plan: Plan, tracker: Tracker, ended: Ended, sinks: SinkProcess | None) -> Session:
    """Writes the summary. The other sinks are left to be caught up; not after Ctrl-C, which asks for an end."""
    if sinks is not None and ended.status == "interrupted":
        sinks.stop()
        sinks = None
    patience = plan.settings.sink_patience
    if plan.record.run_id is None or JSON not in plan.settings.chosen_sinks:
        return Session(ended, tracker.folder, summarize(tracker.folder), None, sinks, patience)
    path, summary = write_summary(tracker.folder)
    mark_up_to_date(tracker.folder, JSON)
    return Session(ended, tracker.folder, summary, path, sinks, patience)


def reopened(plan: Plan, tracker: Tracker, ended: Ended, environ: Mapping[str, str]) -> Session:
    """A run that is over already: its summary and sinks are brought up to date all the same."""
    with _sinks_of(plan, tracker, environ) as sinks:
        return close(plan, tracker, ended, sinks)


def raise_if_failed(session: Session) -> Summary:
    """The summary. Raises Unreachable where the run ended because nothing could be asked."""
    if session.ended.status == "failed":
        raise Unreachable(f"{session.ended.reason} (run {session.summary.run_id}; resume it once that is mended)")
    return session.summary
