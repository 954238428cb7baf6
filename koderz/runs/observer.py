"""Whoever watches a session."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from koderz.engines import Engine
    from koderz.plans.plan import Plan
    from koderz.runs.orchestrator import Orchestrator
    from tracker.records import Record
    from tracker.tracker import Tracker


NOTHING_TO_DO = "nothing to do"  # the reason of a session that found the run finished


class SessionView(NamedTuple):
    """What an observer sees of a session."""

    plan: Plan
    tracker: Tracker
    orchestrator: Orchestrator
    engine: Engine


class Observer(Protocol):
    """Whoever watches a session: the terminal, or somebody who looks at some of it, or nobody."""

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        """Shows the session for as long as it is entered."""
        return nullcontext()

    def recorded(self, record: Record) -> None:  # noqa: ARG002
        """Something became durable."""
        return

    def notice(self, text: str) -> None:  # noqa: ARG002
        """Something that the user should hear once."""
        return


class NullObserver(Observer):
    """An observer that isn't there."""
