"""Where a run stands, in one line."""

from __future__ import annotations

import time
from dataclasses import dataclass

from koderz.audience import Stage


@dataclass(frozen=True, slots=True)
class Pulse:
    """One look at a run."""

    planned: int
    done: int
    passed: int
    judged: int
    faults: int
    cost: float  # US dollars
    tokens_per_second: float
    seconds_left: float | None
    in_flight: int
    throttled: str = ""  # what holds calls back
    stopping: str = ""

    def figures(self) -> str:
        """What stands beside the bar."""
        rate = f" ({100 * self.passed / self.judged:.0f}%)" if self.judged else ""
        parts = [f"{self.passed} passed{rate}"]
        if self.faults:
            parts.append(f"{self.faults} faults")
        parts += [f"${self.cost:.4f}", f"{self.tokens_per_second:.0f} tokens/s", f"{self.in_flight} at once"]
        if self.seconds_left is not None:
            parts.append(f"{_clock(self.seconds_left)} left")
        parts += [text for text in (self.throttled, self.stopping and "stopping") if text]
        return " · ".join(parts)

    def line(self) -> str:
        """All of it, for where there is no terminal."""
        return f"{self.done}/{self.planned} · {self.figures()}"


def pulse_of(stage: Stage) -> Pulse:
    """A look at the session."""
    tally, progress = stage.tracker.tally, stage.orchestrator.progress
    done = tally.judged + tally.faults
    seconds = max(time.monotonic() - progress.started, 1e-9)
    pace = max(0, done - progress.done_before) / seconds
    return Pulse(
        planned=progress.planned,
        done=done,
        passed=tally.passed,
        judged=tally.judged,
        faults=tally.faults,
        cost=tally.cost,
        tokens_per_second=progress.tokens_out / seconds,
        seconds_left=(progress.planned - done) / pace if pace else None,
        in_flight=progress.in_flight,
        throttled=_throttled(stage),
        stopping=progress.stopping,
    )


def _throttled(stage: Stage) -> str:
    for throttle in stage.engine.throttle:
        if throttle.pause:
            return f"{throttle.provider} asks to wait {throttle.pause:.0f} s"
        if throttle.limit < throttle.ceiling:
            return f"{throttle.provider} bears {throttle.limit} at once"
    return ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
