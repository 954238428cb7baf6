"""The process that feeds the sinks of a results folder: `python -m tracker.sinks RESULTS ENVIRONMENT`.

Only one is at work on a folder at a time: another one ends at once where that one does its jobs too, or waits for
its turn where that one was started with other variables. It belongs to no terminal, and ends when no job is left.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from tracker.errors import KoderzError
from tracker.runs import TO_LOOK
from tracker.scrubber import Scrubber
from tracker.sinks.feeder import HUNG, Feeder
from tracker.sinks.jobs import MOST_TRIES, Entry, Queue
from tracker.sinks.process import LOCK, LOG
from tracker.sinks.projection import put_down

_NICENESS = 5  # of a busy core this leaves it a quarter: 19 would leave it one part in seventy, and nothing gets done
_LOOK_EVERY = 0.05  # seconds between two looks at the jobs
_LINGER = 1.5  # seconds after the last job, since the next one is often near
_TO_LET_GO = 2.0  # seconds that a batch has to become durable when the process is told to end
_AT_ONCE = 32  # jobs


def main() -> None:
    """Does the jobs that are there, and ends."""
    results, environment = Path(sys.argv[1]), sys.argv[2]
    queue = Queue(results, environment)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    _lower_priority()
    is_stuck = False
    with contextlib.suppress(OSError, Timeout):  # the folder is gone, or another process does the jobs
        while queue.entries() and not stopping.is_set():
            if is_stuck:  # a thread that hangs is got rid of with the whole process
                os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
            alone = FileLock(queue.folder / LOCK, timeout=TO_LOOK)
            turn = FileLock(queue.folder.parent / LOCK, poll_interval=_LOOK_EVERY)
            with alone, turn, _logging(results / LOG):
                is_stuck = _Worker(queue, stopping).run()
    os._exit(0)  # a sink that hangs would hold up the exit


class _Worker:
    """Has a thread do each job."""

    def __init__(self, queue: Queue, stopping: threading.Event) -> None:
        self._queue, self._stopping = queue, stopping
        self._feeders: list[Feeder] = []
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by sink

    def run(self) -> bool:
        """Returns when there has been nothing to do for a while: whether a thread hangs."""
        worked = time.monotonic()
        is_stuck = False
        while not is_stuck and time.monotonic() - worked < _LINGER and not self._stopping.wait(_LOOK_EVERY):
            entries = self._queue.entries()
            is_stuck = self._look_after(entries)
            self._begin(entries)
            if self._feeders:
                worked = time.monotonic()
        return self._end()

    def _look_after(self, entries: list[Entry]) -> bool:
        """Stops what nobody wants any more, and gives up what hangs: whether something does."""
        hung = [feeder for feeder in self._feeders if feeder.is_hung]
        for feeder in self._feeders:
            if feeder.entry not in entries:
                feeder.stopping.set()
            elif feeder in hung:
                feeder.give_up(f"{HUNG} {feeder.patience:g} s")
        self._feeders = [feeder for feeder in self._feeders if feeder.is_alive()]
        return bool(hung)

    def _begin(self, entries: list[Entry]) -> None:
        under_way = {feeder.entry.key for feeder in self._feeders}
        for entry in entries[: _AT_ONCE + len(under_way)]:
            if entry.key in under_way or len(self._feeders) >= _AT_ONCE:
                continue
            job = entry.read()
            if job is None or not (self._queue.results / job.run).is_dir():
                entry.remove()
            elif entry.tries >= MOST_TRIES:
                with contextlib.suppress(KoderzError):
                    put_down(self._queue.results / job.run, job.sink, "the process that feeds it ended again and again")
                entry.remove()
            elif begun := entry.begin():
                feeder = Feeder(begun, job, self._queue.results, os.environ, self._turns[job.sink])
                feeder.start()
                self._feeders.append(feeder)

    def _end(self) -> bool:
        for feeder in self._feeders:
            feeder.stopping.set()
        until = time.monotonic() + _TO_LET_GO
        for feeder in self._feeders:
            feeder.join(max(0.0, until - time.monotonic()))
        return any(feeder.is_alive() for feeder in self._feeders)


def _lower_priority() -> None:
    """Lets runs have the processor first.

    A session of its own has, on many Linux systems, a share of its own too, within which alone niceness counts; but
    that share can be set as well.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS), encoding="ascii")


@contextlib.contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Whatever sinks and their libraries print goes there; a log that stays empty is removed."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for standard in (1, 2):
            os.dup2(file, standard)
        os.close(file)
    sys.stdout = sys.stderr = _Log()
    yield
    with contextlib.suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


class _Log(io.TextIOBase):
    """Standard output and error: what a library complains of may name a secret."""

    def __init__(self) -> None:
        self._scrubber = Scrubber()

    def write(self, text: str) -> int:
        os.write(2, self._scrubber.text(text).encode("utf-8", "backslashreplace"))
        return len(text)


if __name__ == "__main__":
    main()
