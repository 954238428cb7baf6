"""The progress of a run: a line at a change, or a bar in a terminal, and lines on its batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.cli.console import LINE_EVERY, counted, elapsed, is_live, shortened, warn
from koderz.runs.observer import SessionView, beside
from koderz_tracker.basis import PASSING
from koderz_tracker.journal import Tally
from koderz_tracker.outline import ENDED, batches_in
from koderz_tracker.parts import completes
from koderz_tracker.records import Plan

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


_FRAME = 0.2  # seconds between two looks at the run
_WIDE, _BAR = 110, 24  # columns of a terminal that has room for a bar, and of the bar


@dataclass(frozen=True, slots=True)
class Pulse:
    """The state of a run at one moment."""

    planned: int
    tally: Tally[Any]
    tokens_per_second: float
    seconds_left: float | None
    in_flight: int
    throttled: str = ""  # what holds calls back
    stopping: str = ""
    # what is said of experiments that pass; empty where their ends don't say so
    passed: str = "passed"
    doing: str = ""  # what is being worked on

    @property
    def done(self) -> int:
        """The number of experiments that have ended."""
        return len(self.tally.ended)

    def figures(self) -> str:
        """The figures beside the bar."""
        tally = self.tally
        rate = f" ({100 * tally.passed / tally.judged:.0f}%)" if tally.judged else ""
        stopping = (
            f"stopping: {self.in_flight} in flight; again stops at once" if self.stopping else ""
        )
        # first, since a narrow terminal cuts the end
        parts = [news for news in (stopping, self.throttled) if news]
        parts += [f"{tally.passed} {self.passed}{rate}"] if self.passed else []
        if tally.faults:
            parts.append(counted(tally.faults, "fault"))
        spent = [
            f"${tally.cost:.4f}",
            f"{self.tokens_per_second:.0f} tokens/s",
            f"{self.in_flight} in flight",
        ]
        left = [f"{elapsed(self.seconds_left)} left"] if self.seconds_left is not None else []
        parts += [*left, self.doing, *spent] if self.doing else [*spent, *left]
        return " · ".join(parts)

    @property
    def change(self) -> tuple[object, ...]:
        """The state but for what time alone changes: where lines stay, one is printed only for another state."""
        tally = self.tally
        return self.done, tally.passed, tally.faults, self.doing, self.throttled, self.stopping

    def line(self) -> str:
        """All figures as a line, for output that is no terminal."""
        return f"{self.done}/{self.planned} · {self.figures()}"


def shown(view: SessionView, doing: Callable[[], str]) -> AbstractAsyncContextManager[None]:
    """Shows the session's progress, and what it is `doing`, while the block runs."""
    return beside(_live(view, doing) if is_live() else _lines(view, doing))


def pulse_of(view: SessionView, doing: str = "") -> Pulse:
    """The present state of the session."""
    tally, progress = view.tracker.tally, view.orchestrator.progress
    done = len(tally.ended)
    seconds = max(time.monotonic() - progress.started, 1e-9)
    # of what goes on, half is done
    ended, half = max(0, done - progress.done_before), progress.in_flight / 2
    return Pulse(
        planned=progress.planned,
        tally=tally,
        tokens_per_second=progress.tokens_out / seconds,
        seconds_left=max(0.0, progress.planned - done - half) * seconds / (ended + half)
        if ended
        else None,
        in_flight=progress.in_flight,
        throttled=_throttled(view),
        stopping=progress.stopping,
        passed=word_for_passed(view.plan.record),
        doing=view.engine.waits or " · ".join(filter(None, (progress.evidence(), doing))),
    )


def word_for_passed(plan: Plan) -> str:
    """The word for experiments of a plan that pass; empty if their ends don't tell."""
    return "" if completes(plan) else (plan.headline or PASSING).passed


def _throttled(view: SessionView) -> str:
    for throttle in view.engine.throttle:
        if throttle.pause:
            return f"{throttle.provider} asks to wait {throttle.pause:.0f} s"
        if throttle.limit < throttle.ceiling:
            return f"{throttle.provider} rate-limited to {throttle.limit} concurrent requests"
        if throttle.wait:
            return f"{throttle.provider} at its rate limit"
    return ""


async def _lines(view: SessionView, doing: Callable[[], str]) -> None:
    """Prints a line when something has changed, every few seconds at most."""
    shown = pulse_of(view, doing()).change
    while True:
        await asyncio.sleep(LINE_EVERY)
        pulse = pulse_of(view, doing())
        if pulse.change != shown:
            shown = pulse.change
            warn(pulse.line())


async def _live(view: SessionView, doing: Callable[[], str]) -> None:
    """Shows a bar that is redrawn in place."""
    with _bar() as bar:
        task = bar.add_task("", total=view.plan.record.planned, pulse="")
        try:
            while True:
                _draw(bar, task, pulse_of(view, doing()))
                await asyncio.sleep(_FRAME)
        finally:
            _draw(bar, task, pulse_of(view, doing()))


def _bar() -> Bar:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    console = RichConsole(stderr=True)
    # the bar says less than the figures
    bar = [BarColumn(bar_width=_BAR)] if console.width >= _WIDE else []
    return Progress(
        SpinnerColumn(),
        MofNCompleteColumn(),
        *bar,
        TextColumn("{task.fields[pulse]}", markup=False),
        console=console,
        transient=False,
    )


def _draw(bar: Bar, task: object, pulse: Pulse) -> None:
    width = bar.console.width
    room = (
        width
        - len("  ")
        - len(f"{pulse.planned}/{pulse.planned} ")
        - (_BAR + 1 if width >= _WIDE else 0)
    )
    bar.update(task, completed=pulse.done, pulse=shortened(pulse.figures(), max(1, room)))  # type: ignore[arg-type]


def batch_lines(folder: Path) -> Iterator[str]:
    """A line for each batch that isn't over, and one for all others."""
    found = batches_in(folder)
    over = [batch for batch in found if batch.state in ENDED]
    if over:
        calls, done = sum(batch.count for batch in over), sum(batch.done for batch in over)
        states = ", ".join(dict.fromkeys(batch.state for batch in over))
        yield f"{counted(len(over), 'batch')} over ({states}): {done:,} of {calls:,} calls answered"
    for batch in found:
        if batch.state not in ENDED:
            age = elapsed(
                max(0.0, (datetime.now() - datetime.fromisoformat(batch.time)).total_seconds())
            )
            failed = f", {batch.failed:,} failed" if batch.failed else ""
            answered = f"{batch.done:,} of {batch.count:,} calls answered{failed}"
            yield f"batch {batch.id or batch.name[:12]} at {batch.provider}: {batch.state}, {answered}, sent {age} ago"


def batches_waited_for(folder: Path) -> str:
    """The batches that aren't over, for a status; empty without any."""
    found = [batch for batch in batches_in(folder) if batch.state not in ENDED]
    calls = sum(batch.count for batch in found)
    return f"{counted(len(found), 'batch')} of {counted(calls, 'call')} under way" if found else ""
