"""One session of a run: opens models and sandbox, carries out the plan, writes the summary."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from koderz.engines import Engine, open_engine
from koderz.engines.reuse import on_record, recorded_replies
from koderz.errors import KoderzError, Unreachable
from koderz.experiments.replay import Replaying
from koderz.plans.plan import Plan
from koderz.runs.deciding import Decider, recorded_outcomes
from koderz.runs.observer import NullObserver, Observer, SessionView
from koderz.runs.orchestrator import Orchestrator, SessionEnd
from koderz.runs.sinks import (
    following,
    following_sinks,
    left_behind,
    start_sinks,
    write_documents,
    write_own,
    write_results,
)
from koderz.settings.trust import remember
from koderz_tracker.files import open_own
from koderz_tracker.journal import NAME
from koderz_tracker.records import Record, encode
from koderz_tracker.sinks import JSON
from koderz_tracker.sinks.process import Submission
from koderz_tracker.summary import Summary, summarize
from koderz_tracker.tracker import Listener, Tracker


class SessionResult(NamedTuple):
    """The result of a session."""

    ended: SessionEnd
    folder: Path
    summary: Summary
    summary_path: Path | None  # None: a single experiment, or json is not among the sinks
    # it goes on by itself; to be waited for by whoever has the session
    sinks: Submission | None = None
    # runs planned together with it that didn't get their turn, since it ended as it did
    unbegun: int = 0


async def begin(
    plan: Plan,
    observer: Observer | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    detach: bool = False,
    listener: Listener | None = None,
) -> SessionResult:
    """Runs a new plan, from its first call to its summary. Creates nothing if a model can't be asked.

    `detach`: what was submitted to an engine elsewhere is left to itself there, to be picked up by `resume`;
    `listener`: hears every line of the journal.
    """
    async with open_engine(plan, environ) as engine:
        _refuse_detaching(engine, detach=detach)
        plan = plan.having(environment=plan.record.environment | await engine.check())
        trust_own(plan, environ)
        with Tracker.create(plan.settings.results, plan.name, plan.record) as tracker:
            observer = observer or NullObserver()
            if listener:
                with open_own(tracker.folder / NAME) as lines:
                    listener.hear(lines.readline())
                tracker.tell(listener)
            return await _carry_out(
                plan, tracker, engine, Replaying(), observer, environ, detach=detach
            )


async def lay_down(plans: Sequence[Plan], environ: Mapping[str, str] = os.environ) -> None:
    """Creates several runs that are carried out in this order, so that all exist before the first call.

    They ask the same models in the same sessions. Nothing is created where these can't be reached. The plan of each
    names all of them, so that they are resumed together.
    """
    async with open_engine(plans[0], environ) as engine:
        facts = await engine.check()
    together = [plan.name for plan in plans] if len(plans) > 1 else ()
    for plan in plans:
        laid = plan.having(environment=plan.record.environment | facts, together=together)
        trust_own(laid, environ)
        with Tracker.create(plan.settings.results, plan.name, laid.record):
            pass


async def carry_on(
    plan: Plan,
    tracker: Tracker,
    replaying: Replaying,
    observer: Observer,
    environ: Mapping[str, str],
    *,
    how: str,
    changes: Mapping[str, Any],
    detach: bool = False,
    past_decision: bool = False,
) -> SessionResult:
    """Runs a later session of a run; with `past_decision`, all that is planned, whatever was decided."""
    async with open_engine(plan, environ) as engine:
        _refuse_detaching(engine, detach=detach)
        if replaying.calls_allowed:
            await engine.check()
        await tracker.begin_session(how, dict(changes))
        return await _carry_out(
            plan,
            tracker,
            engine,
            replaying,
            observer,
            environ,
            detach=detach,
            past_decision=past_decision,
        )


def _refuse_detaching(engine: Engine, *, detach: bool) -> None:
    if detach and not engine.outlives:
        raise KoderzError(
            f"--detach: experiments on the engine {engine.name} end with this command; add --engine modal"
        )


async def _carry_out(
    plan: Plan,
    tracker: Tracker,
    engine: Engine,
    replaying: Replaying,
    observer: Observer,
    environ: Mapping[str, str],
    *,
    detach: bool,
    past_decision: bool = False,
) -> SessionResult:
    sinks = start_sinks(plan, tracker.folder, environ)
    follow = following(tracker.folder, environ)
    heard = 0

    def listen() -> None:
        nonlocal heard
        for text in engine.notices[heard:]:
            heard += 1
            observer.notice(text)

    def observe(record: Record) -> None:
        listen()
        if sinks and (death := sinks.keep_alive()):
            observer.notice(death)
        follow(record)
        follow_own(record)
        observer.recorded(record)

    listen()
    decider = None
    if plan.record.until_decided:
        decider = Decider(plan, recorded_outcomes(tracker.folder), goes_past=past_decision)
    if decider and detach and not past_decision:
        observer.notice(
            "--detach: nobody looks at the results meanwhile, so all is asked; resume says what they decide"
        )
    replies = None
    if replaying.calls_allowed and not replaying.judge_anew:
        replies = recorded_replies(plan, observer.notice)
    if replies and tracker.tally.calls:
        replies.leave_those_of(tracker.folder)
    elif replies:
        # In a thread, since the beginnings of solvers that are tried there are to find no event loop.
        observer.notice((await asyncio.to_thread(on_record, plan, replies, environ)).line)
    orchestrator = Orchestrator(
        plan,
        tracker,
        engine,
        how=replaying,
        observe=observe,
        detach=detach,
        decider=decider,
        replies=replies,
    )
    with following_sinks(plan, tracker.folder, environ) as follow_own:
        async with observer.showing(SessionView(plan, tracker, orchestrator, engine)):
            ended = await orchestrator.run()
    listen()
    await tracker.finish(ended.status, ended.reason)
    return close(plan, tracker, ended, sinks, environ)


def trust_own(plan: Plan, environ: Mapping[str, str] = os.environ) -> None:
    """Trusts a plan made here, so that it can be resumed from anywhere whatever it may execute, read or send."""
    remember(encode(plan.record), environ)


def close(
    plan: Plan,
    tracker: Tracker,
    ended: SessionEnd,
    sinks: Submission | None,
    environ: Mapping[str, str] = os.environ,
) -> SessionResult:
    """Writes the files made from the journal.

    The other sinks are fed on; after Ctrl-C, which asks for an end, nobody waits for them.
    """
    folder, path = tracker.folder, None
    if plan.record.run_id is None or JSON not in plan.settings.chosen_sinks:
        summary = summarize(folder)
        write_documents(folder, summary, environ)
    else:
        path, summary = write_results(folder, environ)
    write_own(plan, folder, environ)
    return SessionResult(
        ended, folder, summary, path, None if ended.status == "interrupted" else sinks
    )


def raise_if_failed(session: SessionResult) -> Summary:
    """The summary. Raises Unreachable if the run ended because no model could be asked."""
    if session.ended.status == "failed":
        raise Unreachable(
            f"{session.ended.reason} (run {session.summary.run_id}; resume it once that is fixed)"
        )
    return session.summary


async def settle_sinks(session: SessionResult) -> SessionResult:
    """Waits until the sinks are up to date after a session, and logs a warning for those that are not."""
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
