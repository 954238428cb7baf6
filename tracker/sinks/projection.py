"""Copies one run into one sink: from the sink's position to the end of the journal, a batch at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from koderz_tracker.errors import KoderzError
from koderz_tracker.records import now
from koderz_tracker.runs import acquired
from koderz_tracker.sinks import Sink, SinkDown, Source, open_sink
from koderz_tracker.sinks.standing import Standing, State, record_standings, standing_of
from koderz_tracker.stories import Stories

if TYPE_CHECKING:
    from filelock import BaseFileLock

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
