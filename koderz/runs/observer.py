"""Observers of a session, such as the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from koderz.engines import Engine
    from koderz.plans.plan import Plan
    from koderz.runs.orchestrator import Orchestrator
    from koderz_tracker.records import Record
    from koderz_tracker.tracker import Tracker


NOTHING_TO_DO = "nothing to do"  # the reason of a session that found the run finished


class SessionView(NamedTuple):
    """The parts of a session that an observer sees."""

    plan: Plan
    tracker: Tracker
    orchestrator: Orchestrator
    engine: Engine


class Observer(Protocol):
    """Watches a session: the terminal, a program interested in a part of it, or nobody."""

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        """Shows the session while the block runs."""
        return nullcontext()

    def recorded(self, record: Record) -> None:  # noqa: ARG002
        """Called when a record has become durable."""
        return

    def notice(self, text: str) -> None:  # noqa: ARG002
        """Called with a text that the user should see once."""
        return


class NullObserver(Observer):
    """An observer that does nothing."""


@asynccontextmanager
async def beside(showing: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs what shows a session beside the block, and calls it off at the end of the block."""
    task = asyncio.create_task(showing)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
