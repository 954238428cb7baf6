"""A run's sinks, beside the run and after it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.settings.schema import Settings
from tracker.sinks import JSON, KNOWN
from tracker.sinks.jobs import Job
from tracker.sinks.process import SinkProcess, Submission
from tracker.sinks.standing import choose_sinks

if TYPE_CHECKING:
    from koderz.plans.plan import Plan
    from koderz.runs.session import Session


def options_of(settings: Settings) -> dict[str, object]:
    """What the sinks are handed of the settings."""
    return {"mlflow_detail": settings.mlflow_detail}


def start_sinks(plan: Plan, folder: Path, environ: Mapping[str, str]) -> Submission | None:
    """Has the chosen sinks, and the plan's own, fed from the journal in `folder`; the summary file is not among them.

    None where there are none.
    """
    settings = plan.settings
    own = (name for name in plan.own_sinks if name not in settings.no_sinks)
    chosen = tuple(dict.fromkeys((*settings.chosen_sinks, *own)))
    choose_sinks(folder, chosen, KNOWN)
    options, patience = options_of(settings), settings.sink_patience
    others = [name for name in chosen if name != JSON]
    jobs = [Job(run=folder.name, sink=name, options=options, patience=patience) for name in others]
    if not jobs:
        return None
    secrets = [settings.api_key_env] if settings.api_key_env else []
    return Submission(SinkProcess(folder.parent, environ, secrets), folder, jobs)


async def settle_sinks(session: Session) -> Session:
    """Waits until the sinks are level with a session that is over, and logs a warning of those that are not."""
    if session.sinks is None:
        return session
    try:
        behind = await asyncio.to_thread(session.sinks.wait, lambda _: None)
    except asyncio.CancelledError:
        session.sinks.withdraw()  # which ends the thread
        raise
    for name, reason in behind.items():
        logging.getLogger("koderz").warning("%s", left_behind(name, reason, session.folder.name))
    return session


def left_behind(name: str, reason: str, *runs: str) -> str:
    """What there is to say of a sink that was given up."""
    what, command = ("this run", f"koderz sync {runs[0]}") if len(runs) == 1 else (f"{len(runs)} runs", "koderz sync")
    return f"the sink {name} lacks some of {what} ({reason}); bring it up to date with: {command}"
