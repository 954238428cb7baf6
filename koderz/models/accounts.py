"""The account of rate limits of one provider and key, which all koderz processes of a user on a machine share.

It is a small file that each of them locks for the microseconds in which it books or settles a call. The system gives
the lock back however a process ends, and a change is a single write below a page, so that none is torn.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
import zlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from koderz.models.endpoints import NO_RATES, Rates
from koderz.models.rates import Booking, Levels, book, settle
from koderz.settings.paths import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    return hashlib.blake2b("\0".join((provider, address, api_key)).encode(), digest_size=16).hexdigest()


class RateAccount:
    """Books calls in the buckets of one provider and key, in a shared file or, without one, alone."""

    def __init__(
        self, rates: Rates = NO_RATES, path: Path | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._rates, self._path, self._say = rates, path, say
        self._levels = Levels()  # as last seen; the truth where nothing is shared
        self._known = {""}  # models of which an answer came; calls of no model are limited by nothing

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
                data = len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body
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
