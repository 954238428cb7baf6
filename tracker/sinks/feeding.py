"""One thread a sink: each goes at its own pace, so that one that hangs holds up no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tracker.errors import KoderzError
from tracker.registry import find
from tracker.scrubber import Scrubber
from tracker.sinks import GROUP, SINKS, SinkDown
from tracker.sinks.jobs import Job, Status
from tracker.sinks.projection import Held, Projection, as_down, put_down
from tracker.sinks.standing import standing_of

_LOOK_EVERY = 0.25  # seconds between two looks at a journal that may grow
_LONGEST_PAUSE = 5.0  # seconds before a sink that is down is tried again
_REASON = 300  # characters

Tell = Callable[[Status], None]


class Feeding(threading.Thread):
    """Brings one sink up to date with one run, and keeps it so until `finishing` or `stopping` is set."""

    def __init__(self, job: Job, name: str, environ: Mapping[str, str], tell: Tell) -> None:
        super().__init__(name=f"sink-{name}", daemon=True)
        self.finishing, self.stopping = threading.Event(), threading.Event()
        self._job, self._name, self._environ, self._tell = job, name, environ, tell
        self._folder = Path(job.folder)
        self._records = self._total = 0
        if not job.follow:
            self.finishing.set()

    def run(self) -> None:
        pause = _LOOK_EVERY
        renewed = self._name not in self._job.renew
        while not self.stopping.is_set():
            try:
                renewed = renewed or self._renew()
                if self._attempt():
                    return
                pause = _LOOK_EVERY
            except SinkDown as error:
                over = self.finishing.is_set() and not self._job.patient
                self._say_down(error, over=over)
                if over:
                    return
            except (KoderzError, OSError) as error:
                self._say_down(error, over=True)
                return
            self.stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def stop(self) -> None:
        """Ends it after the batch that it is at."""
        self.stopping.set()
        self.finishing.set()

    def _renew(self) -> bool:
        with as_down():
            make_anew = getattr(find("sink", self._name, SINKS, GROUP), "rebuild", None)
            if make_anew is not None:
                make_anew(self._folder.parent, self._environ)
        return True

    def _attempt(self) -> bool:
        """Feeds the sink for as long as it holds; whether the job is over."""
        try:
            with Projection(self._folder, self._name, self._job.options, self._environ) as projection:
                self._feed(projection)
                if self.stopping.is_set():
                    return True
        except Held as error:
            return self._is_done_by_another(str(error))
        self._say("done", over=True)
        return True

    def _feed(self, projection: Projection) -> None:
        while not self.stopping.is_set():
            last_look = self.finishing.is_set()  # asked before looking: nothing is added afterwards
            left = projection.look()
            self._records, self._total = projection.records, projection.records + left
            if left:
                self._say("working")
                projection.take()
            elif last_look:
                projection.settle()
                return
            else:
                projection.settle()
                self.finishing.wait(_LOOK_EVERY)

    def _is_done_by_another(self, reason: str) -> bool:
        standing = standing_of(self._folder).get(self._name)
        self._records = standing.records if standing else 0
        if self.finishing.is_set() and standing and standing.state == "up to date":
            self._say("done", over=True)
            return True
        self._say("waiting", reason)
        return False

    def _say_down(self, error: Exception, *, over: bool) -> None:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = Scrubber(self._environ).text(lines[0]).removeprefix(f"{self._name}: ")[:_REASON]
        try:
            put_down(self._folder, self._name, reason)
        except KoderzError as unwritten:
            reason = f"{reason}; {unwritten}"
        self._say("down", reason, over=over)

    def _say(self, state: str, reason: str = "", *, over: bool = False) -> None:
        status = Status(
            sink=self._name,
            state=state,  # type: ignore[arg-type]
            reason=reason,
            records=self._records,
            total=self._total,
            over=over,
        )
        self._tell(status)
