"""The thread that copies one run into one sink. Threads of the same sink take turns, a batch each."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from koderz_tracker.errors import KoderzError
from koderz_tracker.runs import is_locked
from koderz_tracker.scrubber import Scrubber
from koderz_tracker.sinks import SinkDown, SinkSlow, sink_class
from koderz_tracker.sinks.jobs import Job, QueuedJob
from koderz_tracker.sinks.projection import (
    Projection,
    SinkBusy,
    SinkFailed,
    as_down,
    put_down,
    start_again,
)

# how the reason begins why a sink is given up that neither goes on nor fails
HUNG = "no progress for"
TO_OPEN = 3  # patiences that a sink has for its first batch: importing a library is no progress yet
# times as long it may take where its thread uses the processor: then it is slow, and doesn't hang
_AT_WORK = 10
_PULSE = 0.02  # seconds of the processor that are a sign of life
_LOOK_EVERY = 0.25  # seconds between two looks at a journal that may grow
_LONGEST_PAUSE = 2.0  # seconds before a sink that is down is tried again
_REASON = 300  # characters


class Pulse:
    """The time at which a thread last used the processor, which tells a slow thread from one that hangs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns the processor seconds that the thread has used."""
        self._clock, self._used, self._at = clock, 0.0, 0.0

    def last(self, now: float) -> float:
        """The time at which the thread was last seen to have used the processor."""
        used = self._clock()
        if used - self._used > _PULSE:
            self._used, self._at = used, now
        return self._at


def _clock_of_thread() -> Callable[[], float]:
    """The processor clock of the calling thread; constant if the system has none or the thread has ended."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: 0.0
    clock = time.pthread_getcpuclockid(threading.get_ident())

    def used() -> float:
        with suppress(OSError):
            return time.clock_gettime(clock)
        return 0.0

    return used


class Feeder(threading.Thread):
    """Copies a run into a sink, and keeps the sink up to date for as long as the run goes on."""

    def __init__(
        self,
        entry: QueuedJob,
        job: Job,
        results: Path,
        environ: Mapping[str, str],
        turn: threading.Lock,
    ) -> None:
        super().__init__(name=f"{job.sink} {job.run}", daemon=True)
        self.entry = entry
        self.stopping = threading.Event()
        self._job, self._results, self._folder, self._environ = (
            job,
            results,
            results / job.run,
            environ,
        )
        self._turn = turn
        self._busy_since: float | None = None
        self._moved = time.monotonic()  # when it last made progress
        self.has_moved = False  # whether it ever did
        self._pulse = Pulse(lambda: 0.0)
        # seconds of the processor at its last sign of life, and when that was
        self._used, self._alive = 0.0, self._moved
        self.patience = TO_OPEN * job.patience  # seconds that a batch may take
        self._pause = _LOOK_EVERY

    def run(self) -> None:
        self._pulse = Pulse(_clock_of_thread())
        renewed = not self._job.renew
        while not self.stopping.is_set():
            last_try = self._is_over()  # asked before trying: nothing is added afterwards
            try:
                renewed = renewed or self._renew()
                self._feed()
                break
            except (SinkDown, SinkBusy) as error:
                is_spent = (
                    time.monotonic() - self._moved > self._job.patience or not self._job.patient
                )
                if last_try and is_spent:
                    self.give_up(error)
                    return
                self._put_down("behind", error)
            except (KoderzError, OSError) as error:
                self.give_up(error)
                return
            self.stopping.wait(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if not self.stopping.is_set():
            self.entry.remove()

    @property
    def is_hung(self) -> bool:
        """Whether a batch takes too long although the run is over or the job was withdrawn.

        A thread that uses the processor, if only a little since others have it, has longer.
        """
        since, now = self._busy_since, time.monotonic()
        if since is None:
            return False
        if self.stopping.is_set():
            is_late = now - since > _LONGEST_PAUSE
        else:
            is_still = now - max(since, self._pulse.last(now)) > self.patience
            is_late = is_still or now - since > _AT_WORK * self.patience
        return is_late and self._is_over()

    def give_up(self, reason: Exception | str) -> None:
        """Leaves the remaining records to a later process, or to `koderz sync`."""
        is_slow = isinstance(reason, SinkSlow | SinkBusy | str)
        self._put_down("behind" if is_slow else "down", reason)
        self.entry.give_up()

    def _is_over(self) -> bool:
        with suppress(KoderzError):
            return not is_locked(self._folder)
        return True

    def _feed(self) -> None:
        """Copies records until none are left or the thread is stopped."""
        with Projection(
            self._folder, self._job.sink, self._job.options, self._environ
        ) as projection:
            while not self.stopping.is_set():
                last_look = self._is_over()
                with self._busy():
                    if projection.look():
                        projection.take()
                        self._moved, self.patience, self._pause = (
                            time.monotonic(),
                            self._job.patience,
                            _LOOK_EVERY,
                        )
                        self.has_moved = True
                        continue
                    projection.settle()
                if last_look:
                    return
                self.stopping.wait(_LOOK_EVERY)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._turn:
            self._busy_since = time.monotonic()
            try:
                yield
            finally:
                self._busy_since = None

    def _renew(self) -> bool:
        with as_down(), self._busy():
            sink_class(self._job.sink).rebuild(self._results, self._environ)
            start_again(self._folder, self._job.sink)
        return True

    def _put_down(self, state: Literal["behind", "down"], reason: Exception | str) -> None:
        if isinstance(reason, SinkFailed):
            traceback.print_exception(reason.__cause__)  # which goes into sinks.log
        lines = str(reason).strip().splitlines() or [type(reason).__name__]
        told = Scrubber(self._environ).text(lines[0]).removeprefix(f"{self._job.sink}: ")[:_REASON]
        with suppress(KoderzError):
            put_down(self._folder, self._job.sink, state, told)
