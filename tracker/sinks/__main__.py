"""The process that feeds the sinks of a results folder: `python -m koderz_tracker.sinks RESULTS ENVIRONMENT`.

Only one is at work on a folder at a time: another one ends at once where that one does its jobs too, or waits for
its turn where that one was started with other variables. It belongs to no terminal, and ends when no job is left.
While it lives, it has a heartbeat: the time of a file beside its jobs.
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
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from koderz_tracker.errors import KoderzError
from koderz_tracker.runs import TO_LOOK
from koderz_tracker.scrubber import Scrubber
from koderz_tracker.sinks.feeder import HUNG, MOST_TRIES, Feeder, Queue, QueuedJob, put_down
from koderz_tracker.sinks.process import BEAT, BEAT_EVERY, LOCK, LOG

# of a busy core this leaves it a quarter: 19 would leave it one part in seventy, and nothing gets done
_NICENESS = 5
_LOOK_EVERY = 0.05  # seconds between two looks at the jobs
_LINGER = 1.5  # seconds after the last job, since the next one is often near
_TO_LET_GO = 2.0  # seconds that a batch has to become durable when the process is told to end
_AT_ONCE = 32  # jobs
_DIED = "the process that feeds it ended again and again"


def main() -> None:
    """Works through the queued jobs, and ends."""
    results, environment = Path(sys.argv[1]), sys.argv[2]
    environ = dict(os.environ)  # libraries write into the other
    queue = Queue(results, environment)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    # Runs have the processor first. A session of its own has, on many Linux systems, a share of its own too, within
    # which alone niceness counts; but that share can be set as well (autogroup, sched(7)).
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICENESS), encoding="ascii")
    threading.Thread(target=_beat, args=[queue.folder / BEAT], daemon=True).start()
    # an error: the folder is gone, or another process does the jobs
    with contextlib.suppress(OSError, Timeout):
        while queue.entries() and not stopping.is_set():
            alone = FileLock(queue.folder / LOCK, timeout=TO_LOOK)
            turn = FileLock(queue.folder.parent / LOCK, poll_interval=_LOOK_EVERY)
            with alone, turn, _logging(results / LOG):
                has_to_restart = _Worker(queue, environ, stopping).run()
            if has_to_restart:
                os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606
    os._exit(0)  # a sink that hangs would hold up the exit


class _Worker:
    """Runs each job of the queue on a thread of its own."""

    def __init__(self, queue: Queue, environ: Mapping[str, str], stopping: threading.Event) -> None:
        self._queue, self._environ, self._stopping = queue, environ, stopping
        self._feeders: list[Feeder] = []
        self._has_to_restart = False
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by sink
        self._fed: set[str] = set()  # sinks that have taken something from this process
        self._taken_up: set[str] = set()  # leftovers, by run and sink

    def run(self) -> bool:
        """Works until the queue has been empty for a while; returns whether the process has to be executed anew."""
        worked = time.monotonic()
        while time.monotonic() - worked < _LINGER and not self._stopping.wait(_LOOK_EVERY):
            entries = self._queue.entries()
            self._look_after(entries)
            self._begin(entries)
            if self._has_to_restart:
                break
            if self._feeders or self._take_up():
                worked = time.monotonic()
        self._end()
        return self._has_to_restart

    def _look_after(self, entries: list[QueuedJob]) -> None:
        """Stops jobs that were withdrawn, and gives up those that hang: their threads end with the process."""
        for feeder in self._feeders:
            if feeder.has_moved:
                self._fed.add(feeder.entry.sink)
            self._has_to_restart |= feeder.is_hung
            if feeder.entry not in entries:
                feeder.stopping.set()
            elif feeder.is_hung:
                feeder.give_up(f"{HUNG} {feeder.patience:g} s")
        self._feeders = [feeder for feeder in self._feeders if feeder.is_alive()]

    def _begin(self, entries: list[QueuedJob]) -> None:
        under_way = {feeder.entry.key for feeder in self._feeders}
        waiting = [entry for entry in entries if entry.key not in under_way][
            : _AT_ONCE - len(under_way)
        ]
        jobs = [(entry, entry.read()) for entry in waiting]
        renewals = [(entry, job) for entry, job in jobs if job and job.renew]
        if any(job.sink in self._turns for _, job in renewals):
            # what is open here is the target as it was
            self._has_to_restart = True
            return
        for entry, job in renewals or jobs:
            if job is None or not (self._queue.results / job.run).is_dir():
                entry.remove()
            elif entry.tries >= MOST_TRIES:
                with contextlib.suppress(KoderzError):
                    put_down(self._queue.results / job.run, job.sink, "behind", _DIED)
                entry.give_up()
            elif begun := entry.counted(+1):
                feeder = Feeder(
                    begun, job, self._queue.results, self._environ, self._turns[job.sink]
                )
                feeder.start()
                self._feeders.append(feeder)

    def _take_up(self) -> bool:
        """Queues the leftovers of sinks that are at work again, each once; returns whether there are any.

        They come last, so that one that the process dies of takes no other with it.
        """
        leftovers = self._queue.leftovers() if self._fed else ()
        found = [
            entry
            for entry in leftovers
            if entry.sink in self._fed and entry.key not in self._taken_up
        ]
        for entry in found:
            self._taken_up.add(entry.key)
            entry.take_up()
        return bool(found)

    def _end(self) -> None:
        for feeder in self._feeders:
            feeder.stopping.set()
        until = time.monotonic() + _TO_LET_GO
        for feeder in self._feeders:
            feeder.join(max(0.0, until - time.monotonic()))
            feeder.entry.counted(-1)  # it didn't die of it


def _beat(path: Path) -> None:
    """Touches a file as a heartbeat for as long as the process lives."""
    while True:
        with contextlib.suppress(OSError):  # the folder is gone
            path.touch()
        time.sleep(BEAT_EVERY)


@contextlib.contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Writes the output of sinks and their libraries to a log, which is removed if it stays empty."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        for standard in (1, 2):
            os.dup2(file, standard)
        os.close(file)
    sys.stdout = sys.stderr = _Log()
    yield
    with contextlib.suppress(OSError):
        if not path.stat().st_size:
            path.unlink()


class _Log(io.TextIOBase):
    """Standard output and error without secrets, which a library's complaints may name."""

    def __init__(self) -> None:
        self._scrubber = Scrubber()

    def write(self, text: str) -> int:
        os.write(2, self._scrubber.text(text).encode("utf-8", "backslashreplace"))
        return len(text)


if __name__ == "__main__":
    main()
