"""Measures of time that mean the same on every machine: calibrated CPU limits, and a core on which nothing else runs.

A limit of CPU seconds is meant for some machine. Programs that cost the same work everywhere, and
whose cost on that machine is known, say how far to stretch the limit on this one. Times that are compared are measured
while nothing else is measured on this machine, on a core that koderz leaves free.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import platform
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koderz.errors import Fault, KoderzError
from koderz.sandbox import SANDBOXES, Job, Sandbox, open_sandbox
from koderz.settings.options import as_words
from koderz.settings.paths import cache_folder, state_folder
from koderz.settings.schema import Settings
from koderz_tracker.files import write_whole

if TYPE_CHECKING:
    from filelock import BaseFileLock


LONGEST = 10.0
"""The largest factor; above it, something other than the machine was measured.

The least is 1: a fast machine shrinks no limit, since nobody expects less time than was stated.
"""

ROUNDS = 2  # the faster counts: whatever else a machine does only ever adds

YARDSTICK = (
    Job(
        """
import math
def poly(xs, x):
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])
def find_zero(xs):
    begin, end = -1., 1.
    while poly(xs, begin) * poly(xs, end) > 0:
        begin *= 2.0
        end *= 2.0
    while end - begin > 1e-10:
        center = (begin + end) / 2.0
        if poly(xs, center) * poly(xs, begin) > 0:
            begin = center
        else:
            end = center
    return begin
""",
        """
import copy, math, random
def poly(xs, x):
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])
def check(candidate):
    rng = random.Random(42)
    for _ in range(100):
        coeffs = [rng.randint(-10, 10) or 1 for _ in range(2 * rng.randint(1, 4))]
        assert math.fabs(poly(coeffs, candidate(copy.deepcopy(coeffs)))) < 1e-4
""",
        "find_zero",
    ),
    Job(
        """
def fizz_buzz(n):
    ns = []
    for i in range(n):
        if i % 11 == 0 or i % 13 == 0:
            ns.append(i)
    s = ''.join(list(map(str, ns)))
    ans = 0
    for c in s:
        ans += (c == '7')
    return ans
""",
        """
def check(candidate):
    for n, count in ((50, 0), (78, 2), (79, 3), (100, 3), (200, 6), (4000, 192), (10000, 639), (100000, 8026)):
        assert candidate(n) == count
""",
        "fizz_buzz",
    ),
    Job(
        """
def get_max_triples(n):
    A = [i*i - i + 1 for i in range(1,n+1)]
    ans = []
    for i in range(n):
        for j in range(i+1,n):
            for k in range(j+1,n):
                if (A[i]+A[j]+A[k])%3 == 0:
                    ans += [(A[i],A[j],A[k])]
    return len(ans)
""",
        """
def check(candidate):
    for n, triples in ((5, 1), (6, 4), (10, 36), (100, 53361)):
        assert candidate(n) == triples
""",
        "get_max_triples",
    ),
)
"""The reference solutions of HumanEval/32, 36 and 147, which compute for a short while."""

NOMINAL = 0.07
"""CPU seconds that they take together where limits are meant for: Python 3.11 on one core of a server of 2023,
with a quarter to spare, so that no ordinary machine's limits are touched."""

_EDITION = 1  # of the two above: what was measured by others doesn't count


@asynccontextmanager
async def calibrated_sandbox(
    name: str,
    *,
    judges: int,
    own_programs: bool = False,
    memory_mb: int = 1024,
    settings: Settings | None = None,
    yields: bool = False,
) -> AsyncIterator[Sandbox]:
    """Opens a sandbox by name, calibrated, see `open_sandbox`. The first on a machine takes half a second more."""
    async with open_sandbox(
        name,
        judges=judges,
        own_programs=own_programs,
        memory_mb=memory_mb,
        settings=settings,
        yields=yields,
    ) as sandbox:
        if sandbox.is_calibrated:
            # the speed may depend on the options of the sandbox
            options = SANDBOXES.options_in(name, settings)
            sandbox.speed = await _speed(sandbox, f"{name} {as_words(options) if options else ''}")
        yield sandbox


async def _speed(sandbox: Sandbox, kind: str) -> float:
    cache = MachineCache(cache_folder(), "speed", _EDITION, kind)
    known = cache.read()
    if isinstance(known, float):
        return known
    measured = await calibrate(sandbox, YARDSTICK, nominal=NOMINAL)
    if measured is None:
        return 1.0
    cache.write(measured)
    return measured


async def calibrate(sandbox: Sandbox, jobs: Collection[Job], *, nominal: float) -> float | None:
    """The factor by which limits are stretched, from 1 to `LONGEST`; None if `jobs` don't pass.

    `nominal` is the CPU, in seconds, that all of `jobs` takes on the machine that limits are meant for.
    """
    try:
        outcomes = await asyncio.gather(
            *(sandbox.judge_anew(job) for job in jobs for _ in range(ROUNDS))
        )
    except Fault:
        return None
    if any(outcome.verdict != "passed" for outcome in outcomes):
        return None
    spent = sum(
        min(each.cpu for each in outcomes[at : at + ROUNDS])
        for at in range(0, len(outcomes), ROUNDS)
    )
    return round(min(LONGEST, max(1.0, spent / nominal)), 2)


class MachineCache:
    """A fact about this machine, cached for as long as the machine, its Python and `about` stay the same.

    It is a cache: what can't be read or written is found out again.
    """

    def __init__(self, folder: Path, name: str, *about: object) -> None:
        digest = hashlib.blake2b(digest_size=8)
        for part in (
            platform.machine(),
            platform.python_version(),
            _processor(),
            os.cpu_count(),
            *about,
        ):
            digest.update(repr(part).encode(errors="backslashreplace"))
        self.file = folder / f"{name}-{digest.hexdigest()}.json"

    def read(self) -> Any:
        """The cached value, or None."""
        try:
            return json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, value: object) -> None:
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, [json.dumps(value).encode()], durable=False)


def _processor() -> str:
    """The processor's name, if the system tells it."""
    try:
        with Path("/proc/cpuinfo").open(errors="replace") as lines:
            return next((line for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


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
