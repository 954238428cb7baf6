"""The process that feeds the sinks, as whoever started it sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tracker.sinks.jobs import FINISH, Job, Status, encoded, status_of

_TO_END = 5.0  # seconds that it has to end by itself
_TO_OPEN = 3  # patiences: importing a library and creating its store say nothing meanwhile
_ROOT = Path(__file__).resolve().parents[2]  # where `tracker` is found


@dataclass(frozen=True, slots=True)
class Seen:
    """The last that was heard of a sink."""

    status: Status
    moved: float  # monotonic time of the last progress
    troubled: bool  # whether it has been down since


class SinkProcess:
    """Feeds the sinks of one run at a time, at low priority, in a session of its own: no Ctrl-C reaches it.

    It ends when `stop` is called, or when this process ends, however that comes. If it dies, `catch_up`
    begins another.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._death_told = False
        self.job: Job | None = None
        self.seen: Mapping[str, Seen] = {}

    def begin(self, job: Job) -> None:
        """Sets it to work; what was seen of an earlier job is forgotten."""
        self.job = job
        self.seen = {}
        if self._process is None or not self.is_alive:
            self._start()
        self._send(encoded(job))

    def finish(self) -> None:
        """Tells it that the journal grows no more. A process that has died is replaced."""
        if self.job is None:
            return
        if self.is_alive:
            self._send(FINISH)
        else:
            left = [name for name in self.job.sinks if name not in self.seen or not self.seen[name].status.over]
            over = {name: seen for name, seen in self.seen.items() if seen.status.over}
            self.begin(replace(self.job, sinks=left, follow=False))
            self.seen = {**over, **self.seen}

    def stop(self) -> None:
        """Ends it: a batch under way has a moment to become durable."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader:
            self._reader.join()
        self._process = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def death(self) -> str:
        """That it has died, the first time that this is asked; else nothing."""
        if self._process is None or self.is_alive or self._death_told:
            return ""
        self._death_told = True
        return f"the process that feeds the sinks ended ({self.ending()}); the run goes on, they catch up at its end"

    def ending(self) -> str:
        """How it ended."""
        code = self._process.returncode if self._process else 0
        return f"signal {-code}" if code and code < 0 else f"exit code {code}"

    def _start(self) -> None:
        self.stop()
        path = os.pathsep.join(filter(None, [str(_ROOT), self._environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "tracker.sinks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # until a run's folder is known: see sinks.log
            env={**self._environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), name="koderz-sinks", daemon=True)
        self._reader.start()

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # it has died, which is seen elsewhere
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with suppress(msgspec.DecodeError):  # a line cut short by its death
                    self._see(status_of(line))

    def _see(self, status: Status) -> None:
        before = self.seen.get(status.sink)
        is_down = status.state == "down"
        if before is None or before.status.records != status.records:
            seen = Seen(status, time.monotonic(), is_down)
        else:
            seen = Seen(status, before.moved, before.troubled or is_down)
        self.seen = {**self.seen, status.sink: seen}


Watch = Callable[[Mapping[str, Status]], None]
_LOOK_EVERY = 0.05  # seconds


def catch_up(process: SinkProcess, patience: float, watch: Watch) -> dict[str, str]:
    """Sees the sinks of the process' job through; returns those that stay behind, each with the reason.

    A sink is given up after `patience` seconds without progress, or three times as many before its first batch,
    which opens it; one that was down already by then has spent them. `watch` is called again and again with how
    far they are. Ends the process in no case.
    """
    job = process.job
    if job is None:
        return {}
    since = time.monotonic()
    process.finish()
    revived = False
    while True:
        seen = process.seen
        watch({name: seen[name].status if name in seen else Status(sink=name, state="working") for name in job.sinks})
        waited_for = [name for name in job.sinks if not _is_settled(seen.get(name), since, patience)]
        if not waited_for:
            return {name: reason for name in job.sinks if (reason := _why_behind(seen.get(name), patience))}
        if not process.is_alive and process.seen == seen:
            if revived:
                ending = f"the process that feeds it ended ({process.ending()})"
                return {name: ending for name in job.sinks if name in waited_for or _why_behind(seen[name], patience)}
            revived = True
            process.finish()
        time.sleep(_LOOK_EVERY)


def _is_settled(seen: Seen | None, since: float, patience: float) -> bool:
    if seen and seen.status.over:
        return True
    moved = seen.moved if seen and (seen.troubled or seen.moved > since) else since
    return time.monotonic() - moved > _patience_with(seen, patience)


def _patience_with(seen: Seen | None, patience: float) -> float:
    is_opening = seen is not None and seen.status.state == "working" and not (seen.status.records or seen.troubled)
    return _TO_OPEN * patience if is_opening else patience


def _why_behind(seen: Seen | None, patience: float) -> str:
    if seen is None:
        return f"nothing was heard of it for {patience:g} s"
    if seen.status.state == "done":
        return ""
    return seen.status.reason or f"no progress for {_patience_with(seen, patience):g} s"
