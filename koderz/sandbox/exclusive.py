"""Measuring while nothing else is measured on this machine, on a core that koderz keeps off."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from koderz.errors import KoderzError
from koderz.paths import state_folder

_POLL = 0.05  # seconds between two looks whether another process has ended its measurement


class Exclusive:
    """The right to measure, which one coroutine of one koderz on the machine has at a time.

    It lies in the lock of a file, which the system takes back however a process ends.
    """

    def __init__(
        self, core: int | None, notice: Callable[[str], None], environ: Mapping[str, str] = os.environ
    ) -> None:
        """`core`: the one that is kept free, if any; `notice` is told once where another koderz is waited for."""
        self.core = core
        self._notice, self._folder = notice, state_folder(environ)
        self._turn = asyncio.Lock()
        self._has_waited = False

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[int | None]:
        """Waits for its turn, and yields the core to measure on; None where the machine has but one."""
        from filelock import AsyncFileLock, Timeout

        async with self._turn:
            lock = AsyncFileLock(_lock_file(self._folder), run_in_executor=False)
            try:
                await lock.acquire(timeout=0)
            except Timeout:
                if not self._has_waited:
                    self._has_waited = True
                    self._notice("another koderz is measuring on this machine; measurements wait for each other")
                await lock.acquire(poll_interval=_POLL)
            try:
                yield self.core
            finally:
                await lock.release()


@contextmanager
def open_exclusive(notice: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Iterator[Exclusive]:
    """Keeps this process, and all that it starts, off one core, for what is measured; off none where there is but one.

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


def _lock_file(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KoderzError(f"{folder} can't be made, where measurements exclude each other ({error.strerror})") from None
    return folder / "exclusive.lock"
