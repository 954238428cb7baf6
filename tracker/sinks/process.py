"""The process that feeds the sinks of a results folder, as commands see it."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from tracker.index import load_index
from tracker.journal import NAME
from tracker.runs import is_held
from tracker.sinks.feeder import TO_OPEN
from tracker.sinks.jobs import FOLDER, MOST_TRIES, Job, Queue, environment_of
from tracker.sinks.projection import is_level
from tracker.sinks.standing import Standing, standing_of

LOG = "sinks.log"
LOCK = "lock"
BEAT = ".beat"  # its time is that of the last heartbeat
BEAT_EVERY = 1.0  # seconds
_BEAT_LOST = 60.0  # seconds without a heartbeat after which a process is taken for stopped
_ROOT = Path(__file__).resolve().parents[2]  # where `tracker` is found
_LOOK_EVERY = 0.05  # seconds
_LOOK_FOR_LIFE_EVERY = 0.5
_TO_BEGIN = 10.0  # seconds that a process has to take a job on


class Status(NamedTuple):
    """Where a sink is with a run that is over."""

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

    def __init__(self, results: Path, environ: Mapping[str, str], secrets: Iterable[str] = ()) -> None:
        self._environ = environ
        self.queue = Queue(results, environment_of(environ, secrets))
        self._pid = self._code = 0  # where it is this one's child, and how that ended

    def start(self) -> None:
        """Starts it unless it is there, in a session of its own: no Ctrl-C and no closing of a terminal reaches it."""
        if self.is_alive():
            return
        path = os.pathsep.join(filter(None, [str(_ROOT), self._environ.get("PYTHONPATH")]))
        interpreter = [sys.executable, "-P", "-W", "ignore", "-m"]
        command = [*interpreter, "tracker.sinks", str(self.queue.results.absolute()), self.queue.folder.name]
        nowhere = [(os.POSIX_SPAWN_OPEN, file, os.devnull, os.O_RDWR, 0) for file in (0, 1, 2)]
        environ = {**self._environ, "PYTHONPATH": path}
        self._pid = os.posix_spawn(sys.executable, command, environ, file_actions=nowhere, setsid=True)
        self._code = 0

    def is_alive(self) -> bool:
        """Whether it is at work, or waits for its turn."""
        if self._pid:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if not pid:
                    return True
                self._code = os.waitstatus_to_exitcode(status)
            self._pid = 0
        return _is_held(self.queue.folder)

    def beats_since(self, begun: float) -> bool:
        """Whether it has had a heartbeat of late, or had no time for one since the time `begun`."""
        return time.time() - max(begun, _last_beat(self.queue.folder)) < _BEAT_LOST

    @property
    def ending(self) -> str:
        """How it ended, where that is known and was no ordinary end."""
        return f" (signal {-self._code})" if self._code < 0 else f" (exit code {self._code})" if self._code else ""


def wake(results: Path, environ: Mapping[str, str]) -> None:
    """Has a process take up what an earlier one left undone when it died."""
    if (results / FOLDER).is_dir():
        process = SinkProcess(results, environ)
        if process.queue.entries():
            process.start()


class Submission:
    """A run that the process of its results folder brings into sinks, also while the run goes on.

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
        """Starts the process again where it has died, now and then; says so the first time, else nothing."""
        if not self._is_time_to_look() or self._process.is_alive() or not self.left():
            return ""
        told = "" if self._is_death_told else f"the process that feeds the sinks ended{self._process.ending}"
        self._is_death_told = True
        self._process.start()
        return told and f"{told}; another one goes on"

    def left(self) -> set[str]:
        """The sinks that are not up to date and that the process isn't through with."""
        found = self._process.queue.of_run(self._folder.name).keys()  # first: once a job is gone, its standing is final
        standings = standing_of(self._folder)
        return {name for name in self.sinks if name in found and not self._is_level(standings, name)}

    def leave(self) -> bool:
        """Leaves the rest to the process: whether there is any."""
        if not self.left():
            return False
        self._process.start()
        return True

    def wait(self, watch: Watch) -> dict[str, str]:
        """Sees the run into its sinks; returns those that stay behind, each with the reason.

        `watch` is called again and again with how far they are. A process that dies is replaced, a few times.
        KeyboardInterrupt withdraws the rest.
        """
        try:
            return self._wait(watch, self.sinks, math.inf) or self._given_up(self.sinks)
        except KeyboardInterrupt:
            self.withdraw()
            raise

    def wait_for(self, sinks: Iterable[str], seconds: float) -> dict[str, str]:
        """Sees the run into these of its sinks, for so long at most; returns those that were given up, as `wait`."""
        wanted = [name for name in sinks if name in self._jobs]
        self._wait(lambda _: None, wanted, time.monotonic() + seconds)
        return self._given_up([name for name in wanted if name not in self.left()])

    def withdraw(self) -> None:
        """Leaves the rest to the next process that finds the sinks at work, or to `koderz sync`."""
        for name, entry in self._process.queue.of_run(self._folder.name).items():
            if name in self._jobs:
                entry.give_up()

    def _given_up(self, sinks: Iterable[str]) -> dict[str, str]:
        standings = standing_of(self._folder)
        behind = {name: standings.get(name) for name in sinks if not self._is_level(standings, name)}
        return {name: (found and found.reason) or "it didn't come to an end" for name, found in behind.items()}

    def _wait(self, watch: Watch, sinks: Collection[str], until: float) -> dict[str, str]:
        """What is given up while the process has yet to do it, each with the reason."""
        total = sum(1 for _ in load_index(self._folder / NAME).columns("offset"))
        to_begin = time.monotonic() + max(_TO_BEGIN, *(TO_OPEN * job.patience for job in self._jobs.values()))
        begun, starts = time.time(), 0
        while (left := self.left().intersection(sinks)) and time.monotonic() < until:
            watch(self._statuses(left, total))
            time.sleep(_LOOK_EVERY)
            if not self._is_time_to_look():
                continue
            if not self._process.is_alive():
                if starts == MOST_TRIES:
                    return dict.fromkeys(left, f"the process that feeds it ended{self._process.ending}")
                starts += 1
                self._process.start()
            elif not self._process.beats_since(begun):
                return dict.fromkeys(left, "the process that feeds it is stopped")
            elif time.monotonic() > to_begin and self._has_to_wait():
                return dict.fromkeys(left, "another koderz process feeds sinks of this folder, and this one waits")
        if not left:
            watch(self._statuses(left, total))
        return {}

    def _is_time_to_look(self) -> bool:
        if time.monotonic() - self._looked < _LOOK_FOR_LIFE_EVERY:
            return False
        self._looked = time.monotonic()
        return True

    def _has_to_wait(self) -> bool:
        """Whether there is another process, and this one hasn't had its turn yet."""
        own = self._process.queue
        others = (folder for folder in own.folder.parent.glob("*/") if folder != own.folder)
        return not any(entry.tries for entry in own.entries()) and any(map(_is_held, others))

    def _statuses(self, left: Collection[str], total: int) -> dict[str, Status]:
        standings = standing_of(self._folder)
        return {name: _status(standings.get(name), total, is_left=name in left) for name in self.sinks}

    def _is_level(self, standings: Mapping[str, Standing], name: str) -> bool:
        return is_level(standings.get(name), name, self._jobs[name].options)


def at_work(results: Path) -> dict[str, list[str]]:
    """The sinks that are being brought up to date now, by run, in whichever environment."""
    found: dict[str, list[str]] = {}
    for folder in (results / FOLDER).glob("*/"):
        if _is_held(folder) and time.time() - _last_beat(folder) < _BEAT_LOST:
            for entry in Queue(results, folder.name).entries():
                found.setdefault(entry.key.partition(".")[0], []).append(entry.sink)
    return found


def describe_sinks(folder: Path) -> dict[str, str]:
    """Where each sink of a run stands, in words: how far those are that lack something, and whether they go on."""
    now = at_work(folder.parent).get(folder.name, ())
    words = {}
    for name, standing in standing_of(folder).items():
        words[name] = str(standing)
        if standing.state in ("behind", "down"):
            words[name] = f"{standing}, {standing.progress(folder)}% there{', in progress' if name in now else ''}"
    return words


def _is_held(folder: Path) -> bool:
    try:
        return is_held(folder / LOCK)
    except OSError:
        return False


def _last_beat(folder: Path) -> float:
    """When the process of a queue had its last heartbeat; 0 where it has had none."""
    try:
        return (folder / BEAT).stat().st_mtime
    except OSError:
        return 0.0


def _status(standing: Standing | None, total: int, *, is_left: bool) -> Status:
    standing = standing or Standing(state="behind")
    under_way: Literal["behind", "down"] = "down" if standing.state == "down" else "behind"
    return Status(under_way if is_left else "done", standing.reason, standing.records, total)
