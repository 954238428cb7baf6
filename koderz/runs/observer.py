"""Observers of a session: the terminal, a function of a program, a cell of a notebook, a log of steps, or nobody."""

from __future__ import annotations

import asyncio
import html
import inspect
import logging
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from koderz.plans.ids import planned_ids
from koderz_tracker import records

if TYPE_CHECKING:
    from koderz.engines import Engine
    from koderz.plans.plan import Plan
    from koderz.runs.orchestrator import Orchestrator
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

    def recorded(self, record: records.Record) -> None:  # noqa: ARG002
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


# A program and a notebook

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

    def recorded(self, record: records.Record) -> None:
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
        shown = ipython.display(ipython.HTML(_bar(view)), display_id=True)
        try:
            while True:
                await asyncio.sleep(_EVERY)
                shown.update(ipython.HTML(_bar(view)))
        finally:
            shown.update(ipython.HTML(_bar(view)))


def _bar(view: SessionView) -> str:
    """The bar, and beside it what has passed, what it cost and what is being asked."""
    tally, progress = view.tracker.tally, view.orchestrator.progress
    done, planned = len(tally.ended), progress.planned
    said = [f"{done}/{planned}", f"{tally.passed} passed", f"${tally.cost:.4f}"]
    said += [f"{tally.faults} fault{'s' * (tally.faults > 1)}"] if tally.faults else []
    said += [f"{progress.in_flight} in flight"] if done < planned else []
    said += [text for text in (view.engine.waits, progress.stopping) if text]
    return f'<progress value="{done}" max="{max(planned, 1)}"></progress> {html.escape(" · ".join(said))}'


# A log


class Steps:
    """Turns the lines of one run's journal into text, without anything that a model wrote."""

    def __init__(self, plan: records.Plan) -> None:
        self._names = {
            experiment_id: (task, arm) for experiment_id, task, arm, _ in planned_ids(plan)
        }
        self._turns: Counter[str] = Counter()

    def tell(self, line: Mapping[str, Any]) -> str:
        """A line of the journal as text; empty for one without news."""
        experiment = str(line.get("experiment_id"))
        match line.get("kind"):
            case "call" if line.get("depth") or line.get("purpose") in ("root", "final"):
                said = self._call(experiment, line)
            case "once" if isinstance(line.get("value"), Mapping) and "code" in line["value"]:
                value = line["value"]
                calls = f", {value['calls']} sub-calls" if value.get("calls") else ""
                failed = f", {str(value['error']).partition(':')[0]}" if value.get("error") else ""
                said = f"{line['name']}: {value.get('seconds', 0.0):.2f} s in {value.get('container')}{calls}{failed}"
            case "attempt":
                said = f"attempt {line.get('number')} {line.get('verdict')}{_cause(line)}"
            case "experiment":
                attempts = int(line.get("iterations") or 0)
                after = f"{attempts} attempt{'s' * (attempts != 1)}"
                said = f"ended {line.get('verdict')}{_cause(line)} after {after}, ${line.get('cost', 0.0):.4f}"
            case "fault":
                said = f"fault: {line.get('reason')}"
            case _:
                return ""
        task, arm = self._names.get(
            experiment, (str(line.get("problem_id")), str(line.get("solver")))
        )
        return f"{task} {arm}: {said}"

    def tell_record(self, record: records.Record) -> str:
        """A new record as text."""
        return self.tell(records.as_dict(record))

    def _call(self, experiment: str, line: Mapping[str, Any]) -> str:
        depth, purpose = line.get("depth") or 0, line.get("purpose")
        if purpose == "root":
            self._turns[experiment] += 1
            purpose = f"turn {self._turns[experiment]}"
        tokens = f"{line.get('tokens_in', 0):,} tokens in, {line.get('tokens_out', 0):,} out"
        return f"{purpose}, depth {depth} (call {line.get('call')}): {tokens}, {line.get('latency', 0.0):.1f} s"


class StepLog(NullObserver):
    """Logs the steps to the logger `koderz`."""

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:
        self._steps = Steps(view.plan.record)
        return super().showing(view)

    def recorded(self, record: records.Record) -> None:
        if said := self._steps.tell_record(record):
            logging.getLogger("koderz").info("%s", said)


def _cause(line: Mapping[str, Any]) -> str:
    return f" ({line['cause']})" if line.get("cause") else ""
