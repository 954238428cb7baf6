"""The background process that feeds the sinks of a results folder, as commands start and watch it."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from koderz_tracker.index import load_index
from koderz_tracker.journal import NAME
from koderz_tracker.runs import is_held
from koderz_tracker.sinks.feeder import (
    FOLDER,
    MOST_TRIES,
    TO_OPEN,
    Job,
    Queue,
    environment_of,
    is_level,
)
from koderz_tracker.sinks.standing import Standing, standing_of

LOG = "sinks.log"
LOCK = "lock"
BEAT = ".beat"  # its time is that of the last heartbeat
BEAT_EVERY = 1.0  # seconds
_BEAT_LOST = 60.0  # seconds without a heartbeat after which a process is taken for stopped
_ROOT = Path(__file__).resolve().parents[2]  # where `koderz_tracker` is found
_LOOK_EVERY = 0.05  # seconds
_LOOK_FOR_LIFE_EVERY = 0.5
_TO_BEGIN = 10.0  # seconds that a process has to take a job on


class Status(NamedTuple):
    """The state of a sink for a run that is over."""

    state: Literal["behind", "down", "done"]
    reason: str = ""
    records: int = 0  # that the target has
    total: int = 0  # that the journal holds


Watch = Callable[[Mapping[str, Status]], None]


class SinkProcess:
    """The process of a results folder that does the jobs of this environment.

    It belongs to nobody: it goes on when this process ends, and ends by itself when nothing is left to do. Any
    number of these stand for the same one.
    """

    def __init__(
        self, results: Path, environ: Mapping[str, str], secrets: Iterable[str] = ()
    ) -> None:
        self._environ = environ
        self.queue = Queue(results, environment_of(environ, secrets))
        self._pid = self._code = 0  # where it is this one's child, and how that ended

    def start(self) -> None:
        """Starts the process unless it runs, in a session of its own, so that Ctrl-C in a terminal doesn't reach it."""
        if self.is_alive():
            return
        path = os.pathsep.join(filter(None, [str(_ROOT), self._environ.get("PYTHONPATH")]))
        interpreter = [sys.executable, "-P", "-W", "ignore", "-m"]
        command = [
            *interpreter,
            "koderz_tracker.sinks",
            str(self.queue.results.absolute()),
            self.queue.folder.name,
        ]
        nowhere = [(os.POSIX_SPAWN_OPEN, file, os.devnull, os.O_RDWR, 0) for file in (0, 1, 2)]
        environ = {**self._environ, "PYTHONPATH": path}
        self._pid = os.posix_spawn(
            sys.executable, command, environ, file_actions=nowhere, setsid=True
        )
        self._code = 0

    def is_alive(self) -> bool:
        """Whether the process is at work or waits for its turn."""
        if self._pid:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if not pid:
                    return True
                self._code = os.waitstatus_to_exitcode(status)
            self._pid = 0
        return _is_held(self.queue.folder)

    def beats_since(self, begun: float) -> bool:
        """Whether it has had a recent heartbeat, or no time for one since `begun`."""
        return time.time() - max(begun, _last_beat(self.queue.folder)) < _BEAT_LOST

    @property
    def ending(self) -> str:
        """The signal or exit code with which the process failed, if that is known; else empty."""
        if self._code < 0:
            return f" (signal {-self._code})"
        return f" (exit code {self._code})" if self._code else ""


def wake(results: Path, environ: Mapping[str, str]) -> None:
    """Starts a process if an earlier one died and left jobs undone."""
    if (results / FOLDER).is_dir():
        process = SinkProcess(results, environ)
        if process.queue.entries():
            process.start()


class Submission:
    """A run handed to the process of its results folder, which copies it into sinks, also while it goes on.

    Raises StorageError where the disk refuses.
    """

    def __init__(self, process: SinkProcess, folder: Path, jobs: Iterable[Job]) -> None:
        self._process, self._folder, self.run = process, folder, folder.name
        self._jobs = {job.sink: job for job in jobs}
        self.sinks = tuple(self._jobs)
        self._is_death_told = False
        self._looked = time.monotonic()
        for job in self._jobs.values():
            process.queue.submit(job)
        process.start()

    def keep_alive(self) -> str:
        """Restarts the process if it has died, checked now and then; returns a notice the first time."""
        if not self._is_time_to_look() or self._process.is_alive() or not self.left():
            return ""
        reason = (
            ""
            if self._is_death_told
            else f"the process that feeds the sinks ended{self._process.ending}"
        )
        self._is_death_told = True
        self._process.start()
        return reason and f"{reason}; another one goes on"

    def left(self) -> set[str]:
        """The sinks that are not up to date and whose jobs are not done."""
        # first: once a job is gone, its standing is final
        found = self._process.queue.of_run(self._folder.name).keys()
        standings = standing_of(self._folder)
        return {
            name for name in self.sinks if name in found and not self._is_level(standings, name)
        }

    def leave(self) -> bool:
        """Leaves the remaining jobs to the process; returns whether there are any."""
        if not self.left():
            return False
        self._process.start()
        return True

    def wait(self, watch: Watch) -> dict[str, str]:
        """Waits until the run is in its sinks; returns the sinks that stay behind, each with the reason.

        `watch` is called again and again with how far they are. A process that dies is replaced, a few times.
        KeyboardInterrupt withdraws the rest.
        """
        try:
            return self._wait(watch, self.sinks, math.inf) or self._given_up(self.sinks)
        except KeyboardInterrupt:
            self.withdraw()
            raise

    def notes(self) -> dict[str, str]:
        """The notes of sinks that are up to date on what they refuse for good, by sink."""
        found = standing_of(self._folder)
        return {
            name: found[name].reason
            for name in self.sinks
            if self._is_level(found, name) and found[name].reason
        }

    def wait_for(self, sinks: Iterable[str], seconds: float) -> dict[str, str]:
        """Waits at most so many seconds for these sinks; returns those that were given up, as `wait` does."""
        wanted = [name for name in sinks if name in self._jobs]
        self._wait(lambda _: None, wanted, time.monotonic() + seconds)
        return self._given_up([name for name in wanted if name not in self.left()])

    def withdraw(self) -> None:
        """Leaves the remaining records to a later process, or to `koderz sync`."""
        for name, entry in self._process.queue.of_run(self._folder.name).items():
            if name in self._jobs:
                entry.give_up()

    def _given_up(self, sinks: Iterable[str]) -> dict[str, str]:
        standings = standing_of(self._folder)
        behind = {
            name: standings.get(name) for name in sinks if not self._is_level(standings, name)
        }
        return {
            name: (found and found.reason) or "it didn't come to an end"
            for name, found in behind.items()
        }

    def _wait(self, watch: Watch, sinks: Collection[str], until: float) -> dict[str, str]:
        """Waits for these sinks; returns those that are given up before the process has fed them, with the reason."""
        total = sum(1 for _ in load_index(self._folder / NAME).columns("offset"))
        to_begin = time.monotonic() + max(
            _TO_BEGIN, *(TO_OPEN * job.patience for job in self._jobs.values())
        )
        begun, starts = time.time(), 0
        while (left := self.left().intersection(sinks)) and time.monotonic() < until:
            watch(self._statuses(left, total))
            time.sleep(_LOOK_EVERY)
            if not self._is_time_to_look():
                continue
            if not self._process.is_alive():
                if starts == MOST_TRIES:
                    return dict.fromkeys(
                        left, f"the process that feeds it ended{self._process.ending}"
                    )
                starts += 1
                self._process.start()
            elif not self._process.beats_since(begun):
                return dict.fromkeys(left, "the process that feeds it is stopped")
            elif time.monotonic() > to_begin and self._has_to_wait():
                return dict.fromkeys(
                    left, "another koderz process feeds sinks of this folder, and this one waits"
                )
        if not left:
            watch(self._statuses(left, total))
        return {}

    def _is_time_to_look(self) -> bool:
        if time.monotonic() - self._looked < _LOOK_FOR_LIFE_EVERY:
            return False
        self._looked = time.monotonic()
        return True

    def _has_to_wait(self) -> bool:
        """Whether another process is at work, and this one waits for its turn."""
        own = self._process.queue
        others = (folder for folder in own.folder.parent.glob("*/") if folder != own.folder)
        return not any(entry.tries for entry in own.entries()) and any(map(_is_held, others))

    def _statuses(self, left: Collection[str], total: int) -> dict[str, Status]:
        standings = standing_of(self._folder)
        return {
            name: _status(
                standings.get(name),
                total,
                is_done=name not in left and self._is_level(standings, name),
            )
            for name in self.sinks
        }

    def _is_level(self, standings: Mapping[str, Standing], name: str) -> bool:
        return is_level(standings.get(name), name, self._jobs[name].options)


def at_work(results: Path) -> dict[str, list[str]]:
    """The sinks that are being fed now, by run, in any environment."""
    found: dict[str, list[str]] = {}
    for folder in (results / FOLDER).glob("*/"):
        if _is_held(folder) and time.time() - _last_beat(folder) < _BEAT_LOST:
            for entry in Queue(results, folder.name).entries():
                found.setdefault(entry.key.partition(".")[0], []).append(entry.sink)
    return found


def describe_sinks(folder: Path) -> dict[str, str]:
    """The state of each sink of a run in words: its progress if records are missing, and whether it is being fed."""
    now = at_work(folder.parent).get(folder.name, ())
    words = {}
    for name, standing in standing_of(folder).items():
        words[name] = str(standing)
        if standing.state in ("behind", "down"):
            words[name] = (
                f"{standing}, {standing.progress(folder)}% there{', in progress' if name in now else ''}"
            )
    return words


def _is_held(folder: Path) -> bool:
    try:
        return is_held(folder / LOCK)
    except OSError:
        return False


def _last_beat(folder: Path) -> float:
    """The time of the last heartbeat of a queue's process; 0 if it has had none."""
    try:
        return (folder / BEAT).stat().st_mtime
    except OSError:
        return 0.0


def _status(standing: Standing | None, total: int, *, is_done: bool) -> Status:
    standing = standing or Standing(state="behind")
    under_way: Literal["behind", "down"] = "down" if standing.state == "down" else "behind"
    return Status("done" if is_done else under_way, standing.reason, standing.records, total)
