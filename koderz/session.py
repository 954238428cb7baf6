"""One session of a run: models and sandbox opened, the plan carried out, the summary written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from koderz.audience import Audience, Nobody, Stage
from koderz.engines import Engine, open_engine
from koderz.errors import Unreachable
from koderz.orchestrator import Ended, Orchestrator
from koderz.plan import Plan
from koderz.replay import Replaying
from koderz.trust import remember
from tracker.journal import NAME
from tracker.records import Record
from tracker.sinks.json import write_summary
from tracker.summary import Summary, summarize
from tracker.tracker import Tracker


@dataclass(frozen=True, slots=True)
class Session:
    """What is left when a session is over."""

    ended: Ended
    folder: Path
    summary: Summary
    summary_path: Path | None  # None: a single experiment


async def begin(
    plan: Plan,
    audience: Audience | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    detach: bool = False,
) -> Session:
    """A new run, from its first call to its summary. Nothing is created where a model can't be asked.

    `detach`: what was submitted to an engine elsewhere is left to itself there, to be picked up by `resume`.
    """
    async with open_engine(plan, environ) as engine:
        facts = await engine.check()
        plan = replace(plan, record=replace(plan.record, environment=plan.record.environment | facts))
        with Tracker.create(plan.settings.results, plan.name, plan.record) as tracker:
            if risky_settings(plan.record.config):
                remember(plan_line(tracker.folder), environ)
            return await _carry_out(plan, tracker, engine, Replaying(), audience or Nobody(), detach=detach)


async def carry_on(
    plan: Plan,
    tracker: Tracker,
    replaying: Replaying,
    audience: Audience,
    environ: Mapping[str, str],
    *,
    how: str,
    changes: Mapping[str, Any],
    detach: bool = False,
) -> Session:
    """A later session of a run."""
    async with open_engine(plan, environ) as engine:
        if replaying.calls_allowed:
            await engine.check()
        await tracker.begin_session(how, dict(changes))
        return await _carry_out(plan, tracker, engine, replaying, audience, detach=detach)


async def _carry_out(
    plan: Plan, tracker: Tracker, engine: Engine, replaying: Replaying, audience: Audience, *, detach: bool
) -> Session:
    heard = 0

    def listen() -> None:
        nonlocal heard
        for text in engine.notices[heard:]:
            heard += 1
            audience.notice(text)

    def observe(record: Record) -> None:
        listen()
        audience.recorded(record)

    listen()
    orchestrator = Orchestrator(plan, tracker, engine, how=replaying, observe=observe, detach=detach)
    async with audience.showing(Stage(plan, tracker, orchestrator, engine)):
        ended = await orchestrator.run()
    listen()
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
