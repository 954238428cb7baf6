"""A limit for the requests in flight to one provider, which adapts to the load that it bears.

Additive increase, multiplicative decrease, as TCP does it (Chiu and Jain 1989): a refusal for load cuts the
limit for every call, each success raises it a little, up to what the user allows. Calls of a model wait in line,
first come first served, until its rate limits have room, see `koderz.models.rates`; a wait that the server asks for
holds all lines. One that fails is asked again: by exponential back-off with jitter, or as long as the server says.

The rate limits of one provider and key are an account that all koderz processes of a user on a machine share: a small
file that each of them locks for the microseconds in which it books or settles a call. The system gives the lock back
however a process ends, and a change is a single write below a page, so that none is torn.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import time
import zlib
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import msgspec

from koderz.models.faults import Retryable
from koderz.models.names import NO_RATES, Rates
from koderz.models.rates import Amounts, Booking, Levels, book, settle
from koderz.settings.paths import cache_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from tenacity import RetryCallState

_STALE = 600.0  # seconds after which nothing of an account is worth more than a new one
_PATIENCE = 1.0  # seconds for a lock that is held for microseconds, unless its holder was stopped
_NAP = 0.0005  # seconds
_MOST_BYTES = 4096  # a page, so that a write is whole or not at all
_HEAD = 8  # bytes: length and checksum


def accounts_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the shared accounts: the user's runtime folder if there is one, else the cache."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) / "koderz" if runtime and Path(runtime).is_dir() else cache_folder()
    return base / "rates"


def account_name(provider: str, address: str, api_key: str) -> str:
    """The file name of an account: a digest, by which nobody finds the key."""
    return hashlib.blake2b(
        "\0".join((provider, address, api_key)).encode(), digest_size=16
    ).hexdigest()


class RateAccount:
    """Books calls in the buckets of one provider and key, in a shared file or, without one, alone."""

    def __init__(
        self,
        rates: Rates = NO_RATES,
        path: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._rates, self._path, self._say = rates, path, say
        self._levels = Levels()  # as last seen; the truth where nothing is shared
        # models of which an answer came; calls of no model are limited by nothing
        self._known = {""}

    def knows(self, model: str) -> bool:
        """Whether an answer of the model came, with limits or without."""
        return model in self._known

    def book(self, booking: Booking, now: float, *, held: bool = True) -> float:
        """Books a call, see `koderz.models.rates.book`; returns the seconds to wait, 0 where it is booked."""
        levels = self._enter(now)
        wait = book(levels, self._rates, booking, now, held=held)
        if levels.models[booking.model].is_known:
            self._known.add(booking.model)
        self._leave(levels if not wait else None)
        return wait

    def settle(self, booking: Booking, now: float) -> None:
        """Settles a call that ended, see `koderz.models.rates.settle`."""
        levels = self._enter(now)
        settle(levels, booking, now)
        if booking.is_answered:
            self._known.add(booking.model)
        self._leave(levels)

    def close(self) -> None:
        """Closes the file, which stays for others."""
        if "_file" in self.__dict__:
            os.close(self._file)
            del self._file
        self._path = None

    @cached_property
    def _file(self) -> int:
        assert self._path
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _enter(self, now: float) -> Levels:
        """The levels, which nobody else changes until `_leave`."""
        if self._path:
            try:
                _lock(self._file)
                self._levels = _decoded(os.pread(self._file, _MOST_BYTES, 0))
            except OSError as error:
                self._alone(error)
        if abs(now - self._levels.time) > _STALE:  # or of before the machine was started
            self._levels = Levels()
        return self._levels

    def _leave(self, changed: Levels | None) -> None:
        if not self._path:
            return
        try:
            if changed:
                # Of too many models those that fit are kept, the latest first.
                body = _ENCODER.encode(changed)
                while len(body) > _MOST_BYTES - _HEAD and changed.models:
                    del changed.models[next(iter(changed.models))]
                    body = _ENCODER.encode(changed)
                data = (
                    len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body
                )
                os.pwrite(self._file, data, 0)
            fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as error:
            self._alone(error)

    def _alone(self, error: OSError) -> None:
        self._say(
            f"{self._path} can't be used ({error.strerror or error}): other koderz processes that ask the same "
            "provider don't count towards its rate limits here; see whether the folder may be written"
        )
        with suppress(OSError):
            self.close()
        self._path = None


def _lock(file: int) -> None:
    """Locks a file. Raises OSError where that takes longer than any other koderz could need."""
    until = 0.0
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            moment = time.monotonic()
            until = until or moment + _PATIENCE
            if moment > until:
                raise OSError(errno.EAGAIN, "another process holds it") from None
            time.sleep(_NAP)
        else:
            return


_DECODER = msgspec.msgpack.Decoder(Levels)
_ENCODER = msgspec.msgpack.Encoder()


def _decoded(data: bytes) -> Levels:
    """The levels in a file; new ones if it holds none."""
    length, checksum = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:_HEAD], "little")
    body = data[_HEAD : _HEAD + length]
    if not length or zlib.crc32(body) != checksum:
        return Levels()
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError):
        return Levels()


T = TypeVar("T")

_LONGEST_BACKOFF = 60.0  # seconds
_CUT = 0.7  # of the requests in flight, at a refusal
_REGAINED = 1 / 16  # of the ceiling, for each limit's worth of successes
_FIRST = 8  # requests in flight until an answer says what the limits are
# seconds that limits of headers hold a call; then it goes, and the server tells anew
_LONGEST_WAIT = 60.0
_NOTHING: Amounts = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Throttle:
    """The state of a limiter, for the progress line."""

    provider: str
    limit: int  # requests in flight allowed now
    ceiling: int  # and at most
    in_flight: int
    pause: float  # seconds until the server wants to hear of us again; 0 where it does
    wait: float = 0.0  # seconds until the rate limits have room for the next call; 0 where they do


class Limiter:
    """A limit for calls to one provider."""

    def __init__(
        self,
        ceiling: int,
        *,
        account: RateAccount | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ceiling = max(1, ceiling)
        self._limit = float(self._ceiling)
        self.sleep, self._now = sleep, now
        self._account = account or RateAccount()
        # by model: only the head of a line watches for room and for the end of a pause
        self._doors: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._room = asyncio.Event()
        self._in_flight = 0
        self._of_model: Counter[str] = Counter()  # requests in flight by model
        self._paused_until = 0.0
        self._full_until = 0.0  # by the rate limits
        self._cuts = 0

    @asynccontextmanager
    async def turn(self, model: str = "", amounts: Amounts = _NOTHING) -> AsyncIterator[Booking]:
        """Waits for a turn, then adapts the limit by the success or failure of the call inside.

        `amounts` are booked in the model's rate limits; what the call used, and what its answer tells of the limits,
        is to be written into the booking.
        """
        booking = Booking(model, amounts)
        await self._enter(booking)
        cuts = self._cuts
        try:
            yield booking
        except Retryable as problem:
            self._slow_down(problem, cuts)
            if problem.throttled:  # without headers nobody knows whether it counted as a request
                booking.used = _NOTHING if booking.limits else (1.0, 0.0, 0.0, 0.0)
            raise
        else:
            self._limit = min(
                self._ceiling, self._limit + max(1.0, self._ceiling * _REGAINED) / self._limit
            )
        finally:
            self._in_flight -= 1
            self._of_model[model] -= 1
            if model:
                self._account.settle(booking, self._now())
            self._room.set()

    def throttle(self, provider: str) -> Throttle:
        """The state of the limiter."""
        pause, wait = (
            max(0.0, until - self._now()) for until in (self._paused_until, self._full_until)
        )
        return Throttle(provider, int(self._limit), self._ceiling, self._in_flight, pause, wait)

    def close(self) -> None:
        """Closes what it shares with other processes."""
        self._account.close()

    async def _enter(self, booking: Booking) -> None:
        waited = 0.0
        async with self._doors[booking.model]:
            while True:
                pause = self._paused_until - self._now()
                if pause > 0:
                    await self.sleep(pause)
                elif self._is_full(booking.model):
                    self._room.clear()
                    await self._room.wait()
                elif booking.model and (
                    wait := self._account.book(booking, self._now(), held=waited < _LONGEST_WAIT)
                ):
                    wait = min(
                        wait, _LONGEST_WAIT - waited if waited < _LONGEST_WAIT else _LONGEST_WAIT
                    )
                    self._full_until = self._now() + wait
                    await self.sleep(wait)
                    waited += wait
                else:
                    self._in_flight += 1
                    self._of_model[booking.model] += 1
                    return

    def _is_full(self, model: str) -> bool:
        """Whether as many requests are in flight as may be."""
        if self._in_flight >= int(self._limit):
            return True
        return self._of_model[model] >= _FIRST and not self._account.knows(model)

    def _slow_down(self, problem: Retryable, cuts: int) -> None:
        if problem.retry_after:
            self._paused_until = max(self._paused_until, self._now() + problem.retry_after)
        # The calls that were under way at a cut were sent at the old limit: they don't cut again.
        if problem.throttled and cuts == self._cuts:
            self._limit = max(1.0, min(self._limit, self._in_flight) * _CUT)
            self._cuts += 1


class Sleeper(Protocol):
    """Whoever waits between two tries."""

    @property
    def sleep(self) -> Callable[[float], Awaitable[None]]: ...


async def retrying(
    attempt: Callable[[], Awaitable[T]], limiter: Sleeper, backoff: float, max_retries: int
) -> tuple[T, int]:
    """The result of `attempt`, and the number of retries; raises the last Retryable when they are used up.

    The first attempt is made outside of the machinery, which costs
    it a tenth of its CPU and is needed for few; its failure is then the machinery's first.
    """
    try:
        return await attempt(), 0
    except Retryable as problem:
        first = problem
    from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

    def is_over(state: RetryCallState) -> bool:
        most = _problem(state).most_retries
        return state.attempt_number > (max_retries if most is None else min(most, max_retries))

    retries = -1

    async def again() -> tuple[T, int]:
        nonlocal retries
        retries += 1
        if not retries:
            raise first
        return await attempt(), retries

    exponential = wait_exponential_jitter(multiplier=backoff, max=_LONGEST_BACKOFF, jitter=backoff)
    machinery = AsyncRetrying(
        retry=retry_if_exception_type(Retryable),
        stop=is_over,
        wait=lambda state: _problem(state).retry_after or exponential(state),
        sleep=limiter.sleep,
        reraise=True,
    )
    return await machinery(again)


def _problem(state: RetryCallState) -> Retryable:
    assert state.outcome is not None
    return cast("Retryable", state.outcome.exception())
