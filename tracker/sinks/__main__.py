"""The process that feeds the sinks beside a run: `python -m tracker.sinks`, driven over its standard input.

It lives as long as whoever started it: the end of its input, also by the other's sudden death, ends it,
and what the sinks lack by then is made up for by the next one.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from pathlib import Path

from tracker.scrubber import Scrubber
from tracker.sinks.feeding import Feeding
from tracker.sinks.jobs import FINISH, Status, encoded, job_of

LOG = "sinks.log"
_LOWEST = 19  # niceness
_TO_LET_GO = 2.0  # seconds that a batch has to become durable once nobody waits for it


def main() -> None:
    """Feeds the sinks of one job after the other, until the input ends."""
    teller = _Teller()
    feedings: list[Feeding] = []
    log: Path | None = None
    for line in sys.stdin.buffer:
        if line == FINISH:
            _set_priority(0)
            for feeding in feedings:
                feeding.finishing.set()
        else:
            _drop_if_empty(log)
            job = job_of(line)
            _set_priority(_LOWEST if job.follow else 0)
            log = _log_into(Path(job.folder) / LOG)
            feedings = [Feeding(job, name, os.environ, teller) for name in job.sinks]
            for feeding in feedings:
                feeding.start()
    for feeding in feedings:
        feeding.stop()
    for feeding in feedings:
        feeding.join(_TO_LET_GO)
    _drop_if_empty(log)
    os._exit(0)  # a sink that hangs would hold up the exit


class _Teller:
    """The real standard output; whatever libraries print goes into the log."""

    def __init__(self) -> None:
        self._file = os.dup(1)
        self._turn = threading.Lock()
        os.dup2(2, 1)

    def __call__(self, status: Status) -> None:
        with self._turn, contextlib.suppress(BrokenPipeError):  # then the input ends as well
            os.write(self._file, encoded(status))


def _set_priority(niceness: int) -> None:
    """Lets a run that goes on have the processor, and asks for it back once that is over.

    Only a privileged process may become less nice again. A session of its own has, on many Linux systems, a
    share of its own too, within which alone niceness counts; but that share can be set, and set back by anybody.
    """
    tasks = Path("/proc/self/task")
    threads = [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [0]
    for thread in threads:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")


def _log_into(path: Path) -> Path | None:
    """Sends what is printed there; None where it can't be written."""
    found: Path | None = path
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        file, found = os.open(os.devnull, os.O_WRONLY), None
    for standard in (1, 2):
        os.dup2(file, standard)
    os.close(file)
    sys.stdout = sys.stderr = _Log()
    return found


class _Log(io.TextIOBase):
    """Standard output and error: what a library complains of may name a secret."""

    def __init__(self) -> None:
        self._scrubber = Scrubber()

    def write(self, text: str) -> int:
        os.write(2, self._scrubber.text(text).encode("utf-8", "backslashreplace"))
        return len(text)


def _drop_if_empty(log: Path | None) -> None:
    with contextlib.suppress(OSError):
        if log and not log.stat().st_size:
            log.unlink()


if __name__ == "__main__":
    main()
