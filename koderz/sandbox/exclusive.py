"""Measuring while nothing else is measured on this machine, on a core that koderz leaves free."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz.settings.paths import state_folder

if TYPE_CHECKING:
    from filelock import BaseFileLock

_POLL = 0.05  # seconds between two looks whether it is its turn


class Exclusive:
    """The right to measure, held by one coroutine at a time on the whole machine, in the order of asking.

    It lies in the lock of a file, and the places in the queue of processes in the locks of others, which the system
    takes back however a process ends.
    """

    def __init__(
        self,
        core: int | None,
        notice: Callable[[str], None],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`core` is the free core, if any; `notice` is called once if another koderz has to be waited for."""
        self.core = core
        self.is_waiting = False  # for another koderz
        self._notice, self._folder = notice, state_folder(environ)
        self._turn = asyncio.Lock()
        self._has_waited = False

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[int | None]:
        """Waits for its turn, and yields the core to measure on; None if the machine has only one."""
        from filelock import FileLock

        async with self._turn:
            queue = self._folder / "exclusive.queue"
            try:
                queue.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                what = f"{queue} can't be made, where measurements exclude each other ({error.strerror})"
                raise KoderzError(what) from None
            lock = FileLock(self._folder / "exclusive.lock", timeout=0)
            with _place_in(queue) as place:
                try:
                    while not (_is_first(place) and _is_acquired(lock)):
                        self._wait()
                        await asyncio.sleep(_POLL)
                finally:
                    self.is_waiting = False
            try:
                yield self.core
            finally:
                lock.release()

    def _wait(self) -> None:
        self.is_waiting = True
        if not self._has_waited:
            self._has_waited = True
            self._notice("another koderz is measuring on this machine; they take turns")


@contextmanager
def open_exclusive(
    notice: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> Iterator[Exclusive]:
    """Keeps this process and its children off one core, which is left for measurements; off none if there is only one.

    To be opened before a sandbox, whose processes then keep off that core, too. A process is put onto it by
    `os.sched_setaffinity(pid, {core})`.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        yield Exclusive(None, notice, environ)
        return
    _keep_to(cores[:-1])
    try:
        yield Exclusive(cores[-1], notice, environ)
    finally:
        _keep_to(cores)


def _keep_to(cores: Collection[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


def _is_acquired(lock: BaseFileLock) -> bool:
    from filelock import Timeout

    try:
        lock.acquire()
    except Timeout:
        return False
    return True


@contextmanager
def _place_in(queue: Path) -> Iterator[Path]:
    """Takes the last place in the queue: a file with the next number, locked until it is removed."""
    descriptor = None
    while descriptor is None:
        last = max((int(place.name) for place in queue.glob("[0-9]*")), default=0)
        place = queue / f"{last + 1:09}"
        descriptor = _locked(place)
    try:
        yield place
    finally:
        place.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(place: Path) -> int | None:
    """The descriptor of a new locked file; None if another process was faster."""
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if place.exists():
        return descriptor
    os.close(descriptor)  # it was taken for abandoned before it was locked
    return None


def _is_first(place: Path) -> bool:
    """Whether nobody waits before this place."""
    before = sorted(other for other in place.parent.glob("[0-9]*") if other.name < place.name)
    return all(map(_is_abandoned, before))


def _is_abandoned(place: Path) -> bool:
    """Whether the place's process is gone; if so, the place is removed."""
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        place.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
