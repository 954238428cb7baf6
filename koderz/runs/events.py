"""A run while it goes on: its journal's lines for a program, and a line with a bar in a notebook."""

from __future__ import annotations

import asyncio
import html
import inspect
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import orjson

from koderz.runs.observer import NullObserver, Observer, SessionView, beside
from koderz_tracker.records import Record

MOST_WAITING = 10_000  # lines that a program may be behind, before the run waits for it

OnEvent = Callable[[dict[str, Any]], object]
"""What is called with each line of the journal; what it returns is awaited where that can be."""


class EventObserver(Observer):
    """Hands each durable line to a function, in order, beside whatever else observes the session.

    An error of the function ends the session as Ctrl-C does, and no further line is handed over.
    """

    def __init__(self, on_event: OnEvent, observer: Observer) -> None:
        self._on_event, self._observer = on_event, observer
        self._waiting: deque[bytes] = deque()
        self._came, self._went = asyncio.Event(), asyncio.Event()
        self._view: SessionView | None = None
        self.error: Exception | None = None

    @asynccontextmanager
    async def showing(self, view: SessionView) -> AsyncIterator[None]:
        """Shows the session as the other observer does."""
        self._view = view
        if self.error:  # which came with the first line
            view.orchestrator.interrupt()
        async with self._observer.showing(view):
            yield

    def recorded(self, record: Record) -> None:
        self._observer.recorded(record)

    def notice(self, text: str) -> None:
        self._observer.notice(text)

    def hear(self, lines: bytes) -> None:
        if self.error is None:
            self._waiting.extend(lines.splitlines())
            self._came.set()

    async def room(self) -> None:
        await self._until(MOST_WAITING)

    async def _until(self, most: int) -> None:
        """Returns once at most so many lines are to be handed over."""
        while len(self._waiting) > most:
            self._went.clear()
            await self._went.wait()

    async def deliver(self) -> None:
        """Hands over lines, as long as they come and no error does."""
        while self.error is None:
            while not self._waiting:
                self._came.clear()
                await self._came.wait()
            try:
                if inspect.isawaitable(returned := self._on_event(orjson.loads(self._waiting[0]))):
                    await returned
            except Exception as error:  # noqa: BLE001 whatever it is, it is raised once the run has ended
                self.end(error)
            else:
                self._waiting.popleft()
                self._went.set()
                await asyncio.sleep(0)  # so that a backlog doesn't keep the run from going on

    def end(self, error: Exception) -> None:
        """Ends the session as Ctrl-C does, for this error."""
        if self.error:
            return
        self.error = error
        self._waiting.clear()
        self._went.set()
        if self._view:
            self._view.orchestrator.interrupt()

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """Hands lines over while the block runs and until none is left, then raises the function's error, if any."""
        task = asyncio.create_task(self.deliver())
        try:
            yield
        except Exception:
            await self._until(0)
            raise
        else:
            await self._until(0)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self.error:
            raise self.error


_EVERY = 0.5  # seconds between two looks at the run


def observer_here() -> Observer:
    """The observer of a run that Python began: one that draws in a notebook, and elsewhere none that says anything."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return NotebookObserver() if hasattr(shell, "kernel") else NullObserver()


class NotebookObserver(Observer):
    """Draws the progress of a session in the output of the cell that began it."""

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:
        """Shows a bar while the block runs, and its last state afterwards."""
        return beside(self._drawn(view))

    def notice(self, text: str) -> None:
        """Prints a text that the user should see once."""
        sys.stderr.write(f"{text}\n")

    async def _drawn(self, view: SessionView) -> None:
        import IPython.display  # which is there, since a kernel runs this

        ipython: Any = IPython.display  # its functions have no types
        shown = ipython.display(ipython.HTML(_line(view)), display_id=True)
        try:
            while True:
                await asyncio.sleep(_EVERY)
                shown.update(ipython.HTML(_line(view)))
        finally:
            shown.update(ipython.HTML(_line(view)))


def _line(view: SessionView) -> str:
    """The bar, and beside it what has passed, what it cost and what is being asked."""
    tally, progress = view.tracker.tally, view.orchestrator.progress
    done, planned = len(tally.ended), progress.planned
    said = [f"{done}/{planned}", f"{tally.passed} passed", f"${tally.cost:.4f}"]
    said += [f"{tally.faults} fault{'s' * (tally.faults > 1)}"] if tally.faults else []
    said += [f"{progress.in_flight} in flight"] if done < planned else []
    said += [text for text in (view.engine.waits, progress.stopping) if text]
    return f'<progress value="{done}" max="{max(planned, 1)}"></progress> {html.escape(" · ".join(said))}'
