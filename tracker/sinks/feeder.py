"""The feeding of sinks: the queue of jobs, the thread that copies one run into one sink, and the copying itself.

A job is a file for each run and sink, in the results folder's `.sinks`. Commands submit jobs; a background process
takes them from there, and removes each that it is through with. What a process leaves undone, however it ends, is taken
up by the next one. A job that is given up stays as a leftover, for a process that finds the sink at work again. Files
appear and change by rename alone, so that no lock is needed.

A copy goes on from the sink's position to the end of the journal. Threads of the same sink take turns, a batch each.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import msgspec
import orjson

from koderz_tracker.errors import KoderzError, StorageError
from koderz_tracker.files import links_in, refuse_links, whole_file
from koderz_tracker.records import now
from koderz_tracker.runs import acquired, is_locked
from koderz_tracker.scrubber import Scrubber, is_secret_variable
from koderz_tracker.sinks import Sink, SinkDown, SinkSlow, Source, open_sink, sink_class
from koderz_tracker.sinks.standing import Standing, State, record_standings, standing_of
from koderz_tracker.stories import Stories

if TYPE_CHECKING:
    from filelock import BaseFileLock


FOLDER = ".sinks"
_LEFT_OVER = ".left"  # the suffix of a job that was given up
MOST_TRIES = 3  # processes that may die of a job
_ROUNDS = 10_000  # of the digest of variables, among which are secrets: guessing one takes time
_OF_TARGETS = (
    "MLFLOW_", "KODERZ_MEMORY", "PG", "AWS_", "AZURE_", "GOOGLE_", "HTTP_", "HTTPS_", "NO_PROXY", "SSL_CERT_",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be copied into a sink, also while the run goes on."""

    run: str  # the name of its folder
    sink: str
    options: Mapping[str, Any] = field(default_factory=dict)  # see Source.options
    # seconds without progress after which it is given up, once the run is over
    patience: float = 30.0
    patient: bool = True  # try again where the sink is down
    renew: bool = False  # make the sink's target anew first, where it can


def environment_of(environ: Mapping[str, str], secrets: Iterable[str] = ()) -> str:
    """A digest of the variables that sinks depend on; a job needs a process that has the same ones.

    These are the variables by which sinks find their targets, and those whose values they have to keep out of them;
    `secrets` names such variables beside those that are named so. What is in them may be relative to the folder.
    """
    names = {
        name for name in environ if name.upper().startswith(_OF_TARGETS) or is_secret_variable(name)
    }
    values = sorted((name, environ[name]) for name in names.union(secrets) if name in environ)
    folder = os.getcwd() if any(name.upper().startswith(_OF_TARGETS) for name, _ in values) else ""  # noqa: PTH109
    return hashlib.pbkdf2_hmac("sha256", orjson.dumps([folder, *values]), b"koderz", _ROUNDS).hex()[
        :16
    ]


class QueuedJob(NamedTuple):
    """A job in a queue: the file `RUN.SINK.TRIES`, or `RUN.SINK.left` once it was given up."""

    path: Path

    @property
    def key(self) -> str:
        """The run and the sink, for which there is one job at a time."""
        return self.path.stem

    @property
    def sink(self) -> str:
        """The name of the job's sink."""
        return self.key.partition(".")[2]

    @property
    def tries(self) -> int:
        """The number of processes that have begun the job."""
        return int(self.path.suffix[1:])

    def read(self) -> Job | None:
        """The job; None if it is gone or damaged."""
        try:
            return _decoder.decode(self.path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return None

    def counted(self, tries: int) -> QueuedJob | None:
        """Counts a process that begins the job (+1) or leaves it to the next one (-1); None if the job is gone."""
        path = self.path.with_suffix(f".{self.tries + tries}")
        try:
            self.path.rename(path)
        except OSError:
            return None
        return QueuedJob(path)

    def give_up(self) -> None:
        """Marks the job as a leftover."""
        with suppress(OSError):
            self.path.rename(self.path.with_suffix(_LEFT_OVER))

    def take_up(self) -> None:
        """Turns a leftover into a job that no process has begun yet."""
        with suppress(OSError):
            self.path.rename(self.path.with_suffix(".0"))

    def remove(self) -> None:
        """Removes the job, which is done or withdrawn."""
        with suppress(OSError):
            self.path.unlink()


class Queue:
    """The jobs of a results folder that processes with the same variables can do."""

    def __init__(self, results: Path, environment: str) -> None:
        refuse_links(
            [results / FOLDER, *(results / FOLDER / link for link in links_in(results / FOLDER))]
        )
        self.results = results
        self.folder = results / FOLDER / environment

    def submit(self, job: Job) -> None:
        """Adds a job, replacing an earlier one of its run and sink. Raises StorageError if the disk refuses."""
        key = f"{job.run}.{job.sink}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self.folder / f"{key}.0", durable=False) as file:
                file.write(orjson.dumps(job))
                self.drop(job.run, job.sink)
        except OSError as error:
            raise StorageError(f"{self.folder} can't be written ({error.strerror})") from None

    def drop(self, run: str, sink: str) -> None:
        """Removes the jobs of a run and sink, whatever environment variables they were submitted with."""
        for path in self.results.glob(f"{FOLDER}/*/{run}.{sink}.*"):
            path.unlink(missing_ok=True)

    def entries(self) -> list[QueuedJob]:
        """All jobs, without leftovers."""
        return [entry for entry in self._all() if entry.path.suffix[1:].isdecimal()]

    def leftovers(self) -> list[QueuedJob]:
        """The jobs that were given up."""
        return [entry for entry in self._all() if entry.path.suffix == _LEFT_OVER]

    def _all(self) -> list[QueuedJob]:
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 it is looked at again and again
        except OSError:
            return []
        return [QueuedJob(self.folder / name) for name in names if not name.startswith(".")]

    def of_run(self, run: str) -> dict[str, QueuedJob]:
        """The jobs of a run, by sink."""
        return {
            entry.key.removeprefix(f"{run}."): entry
            for entry in self.entries()
            if entry.key.startswith(f"{run}.")
        }


_decoder = msgspec.json.Decoder(Job)


_SMALLEST, _LARGEST = 16, 1024  # records in a batch
_QUICK, _SLOW = 0.2, 1.0  # seconds for a batch, by which the next one is larger or smaller
_BATCH_BYTES = 8 << 20  # of journal


class SinkBusy(KoderzError):
    """Another process is feeding this run into this sink."""


class SinkFailed(SinkDown):
    """The sink's own code raised an error that it doesn't declare."""


class Projection:
    """Locks a run for a sink and feeds it the missing records. A context manager; raises Held if the lock is taken."""

    def __init__(
        self, folder: Path, name: str, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> None:
        self.folder, self.name = folder, name
        self._given, self._environ = options, environ
        self._size = _SMALLEST
        self._sink: Sink | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, patience: float = 0.0) -> None:
        """Locks the run for the sink. Raises Held if the lock is taken for so many seconds."""
        self._lock = hold(self.folder, self.name, patience)
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Closes the target and releases the run."""
        try:
            if self._sink is not None:
                with as_down(), suppress(SinkDown):
                    self._sink.close()
        finally:
            self._lock.release()

    def look(self) -> int:
        """The number of records that the sink lacks at present. Raises JournalError if the journal is gone."""
        for entry in self._stories.refresh():
            self._left.append(entry.span)
        return len(self._left)

    def take(self) -> None:
        """Feeds the next batch, and records the sink's new position. Raises SinkDown."""
        spans = self._next_spans()
        with as_down():
            records = list(self._stories.records(spans))
            self._sink = self._sink or open_sink(self.name, self._source())
            started = time.monotonic()
            self._sink.take(records)
            # The next batch is to be large enough to be cheap, and small enough to show progress.
            seconds = time.monotonic() - started
            if seconds < _QUICK:
                self._size = min(2 * self._size, _LARGEST)
            elif seconds > _SLOW:
                self._size = max(self._size // 2, 1)
        for _ in spans:
            self._left.popleft()
        state: State = "behind" if self._left else "up to date"
        self._put_down(state, bytes=sum(spans[-1]), records=self._standing.records + len(spans))

    def catch_up(self) -> None:
        """Feeds all records that there are at present. Raises SinkDown."""
        while self.look():
            self.take()
        self.settle()

    def settle(self) -> None:
        """Records that nothing is left to do."""
        if self._standing.state != "up to date":
            self._put_down("up to date")

    def _begin(self) -> None:
        before = standing_of(self.folder).get(self.name) or Standing(state="behind")
        options = {**before.options, **_own(self.name, self._given)}
        self._stories = Stories(self.folder, self._environ)
        spans = [entry.span for entry in self._stories.refresh()]
        at = 0
        if before.bytes and not is_outdated(before, self.name, self._given):
            # It goes on after the lines that end by its byte, and anew unless a line ends exactly there.
            ends = (number for number, span in enumerate(spans, 1) if sum(span) == before.bytes)
            at = next(ends, 0)
        self._left = deque(spans[at:])
        self._standing = replace(
            before, bytes=before.bytes if at else 0, records=at, options=options
        )

    def _source(self) -> Source:
        options = {**self._given, **self._standing.options}
        return Source(self.folder, self._stories.plan, self._stories, self._environ, options)

    def _next_spans(self) -> list[tuple[int, int]]:
        spans = list(islice(self._left, self._size))
        sizes = accumulate(length for _, length in spans)
        return spans[: max(1, sum(size <= _BATCH_BYTES for size in sizes))]

    def _put_down(self, state: State, **changes: Any) -> None:
        note = self._sink.note if self._sink else ""
        self._standing = replace(self._standing, state=state, reason=note, time=now(), **changes)
        record_standings(self.folder, lambda _: {self.name: self._standing})


def hold(folder: Path, name: str, patience: float = 0.0) -> BaseFileLock:
    """The lock of a run for a sink, held by one process at a time. Raises Held if it is taken for so long."""
    return acquired(folder / f".{name}.lock", patience, SinkBusy("another koderz process is at it"))


def put_down(folder: Path, name: str, state: Literal["behind", "down"], reason: str) -> None:
    """Records that a sink is behind or down, and why, at its old position."""

    def change(before: Mapping[str, Standing]) -> dict[str, Standing]:
        standing = before.get(name) or Standing(state=state)
        return {name: replace(standing, state=state, reason=reason, time=now())}

    record_standings(folder, change)


def start_again(folder: Path, name: str, patience: float = 0.0) -> None:
    """Resets a sink's position, so that it is fed every record again. Raises Held, see `hold`."""
    with hold(folder, name, patience):
        before = standing_of(folder).get(name) or Standing(state="behind")
        after = Standing(state="behind", options=before.options)
        record_standings(folder, lambda _: {name: after})


def is_level(standing: Standing | None, name: str, options: Mapping[str, Any]) -> bool:
    """Whether the target has the whole run, made with these options."""
    return (
        standing is not None
        and standing.state == "up to date"
        and not is_outdated(standing, name, options)
    )


def is_outdated(standing: Standing, name: str, options: Mapping[str, Any]) -> bool:
    """Whether the target was made with options other than these."""
    own = _own(name, options)
    return standing.bytes > 0 and any(
        standing.options.get(key) != value for key, value in own.items()
    )


def _own(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options that belong to a sink."""
    return {
        key: value
        for key, value in options.items()
        if key.startswith(f"{name}_") and value is not None
    }


@contextmanager
def as_down() -> Iterator[None]:
    """Turns any error of a sink into a SinkDown; into a KoderzError if the sink can't even be loaded."""
    try:
        yield
    except KoderzError:
        raise
    except ImportError as error:
        raise KoderzError(f"it can't be loaded: {error}") from error
    except Exception as error:  # a sink may be anybody's code
        raise SinkFailed(f"{type(error).__name__}: {error}") from error


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
