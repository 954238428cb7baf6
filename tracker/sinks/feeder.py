"""One thread for each job: a run into a sink. Threads of the same sink take turns, a batch each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tracker.errors import KoderzError
from tracker.registry import find
from tracker.runs import is_locked
from tracker.scrubber import Scrubber
from tracker.sinks import GROUP, SINKS, SinkDown
from tracker.sinks.jobs import Entry, Job
from tracker.sinks.projection import Held, Projection, as_down, put_down, start_again

HUNG = "no progress for"  # how the reason begins why a sink is given up that neither goes on nor fails
TO_OPEN = 3  # patiences that a sink has for its first batch: importing a library is no progress yet
_LOOK_EVERY = 0.25  # seconds between two looks at a journal that may grow
_LONGEST_PAUSE = 2.0  # seconds before a sink that is down is tried again
_REASON = 300  # characters


class Feeder(threading.Thread):
    """Brings a sink up to date with a run, and keeps it so for as long as the run goes on."""

    def __init__(self, entry: Entry, job: Job, results: Path, environ: Mapping[str, str], turn: threading.Lock) -> None:
        super().__init__(name=f"{job.sink} {job.run}", daemon=True)
        self.entry = entry
        self.stopping = threading.Event()
        self._job, self._results, self._folder, self._environ = job, results, results / job.run, environ
        self._turn = turn
        self._busy_since: float | None = None
        self._moved = time.monotonic()  # when it last made progress
        self.patience = TO_OPEN * job.patience  # seconds that a batch may take
        self._pause = _LOOK_EVERY

    def run(self) -> None:
        renewed = not self._job.renew
        while not self.stopping.is_set():
            last_try = self._is_over()  # asked before trying: nothing is added afterwards
            try:
                renewed = renewed or self._renew()
                self._feed()
                break
            except (SinkDown, Held) as error:
                is_spent = time.monotonic() - self._moved > self._job.patience or not self._job.patient
                if last_try and is_spent:
                    self.give_up(error)
                    return
                self._put_down(error)
            except (KoderzError, OSError) as error:
                self.give_up(error)
                return
            self.stopping.wait(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if not self.stopping.is_set():
            self.entry.remove()

    @property
    def is_hung(self) -> bool:
        """Whether a batch takes longer than it may once the run is over, or nobody wants it any more."""
        since = self._busy_since
        allowed = _LONGEST_PAUSE if self.stopping.is_set() else self.patience
        return since is not None and time.monotonic() - since > allowed and self._is_over()

    def give_up(self, reason: Exception | str) -> None:
        """Leaves the rest to `koderz sync`."""
        self._put_down(reason)
        self.entry.remove()

    def _is_over(self) -> bool:
        with suppress(KoderzError):
            return not is_locked(self._folder)
        return True

    def _feed(self) -> None:
        """Feeds the sink for as long as it holds, until nothing is left to do or it is stopped."""
        with Projection(self._folder, self._job.sink, self._job.options, self._environ) as projection:
            while not self.stopping.is_set():
                last_look = self._is_over()
                with self._busy():
                    if projection.look():
                        projection.take()
                        self._moved, self.patience, self._pause = time.monotonic(), self._job.patience, _LOOK_EVERY
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
            make_anew = getattr(find("sink", self._job.sink, SINKS, GROUP), "rebuild", None)
            if make_anew is not None:
                make_anew(self._results, self._environ)
                start_again(self._folder, self._job.sink)
        return True

    def _put_down(self, reason: Exception | str) -> None:
        lines = str(reason).strip().splitlines() or [type(reason).__name__]
        told = Scrubber(self._environ).text(lines[0]).removeprefix(f"{self._job.sink}: ")[:_REASON]
        with suppress(KoderzError):
            put_down(self._folder, self._job.sink, told)
