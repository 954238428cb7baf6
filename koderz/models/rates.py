"""Rate limits of a provider: how headers tell them, and the buckets by which calls keep to them.

A limit is a token bucket that holds a minute's worth and is refilled continuously. What is left in it is known within
bounds: the server's own figure, less what may have been on its way when it was written. The account of koderz
runs on between answers, and each answer moves it back between these bounds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koderz.models.names import Rates

KINDS = ("requests", "tokens", "input-tokens", "output-tokens")
"""What is limited, in the words of Anthropic's headers; tokens are those of both directions."""

Amounts = tuple[float, float, float, float]
"""An amount of each of KINDS."""

_MINUTE = 60.0
# seconds: limits of an hour or a day tell themselves by their reset
_LONG_PERIODS = (3600.0, 86_400.0)
_NEAR = 0.2  # how far a period that a reset tells may be off
_MOST = 1e12  # of a limit that is believed
_NOTHING = 1e-6  # what a rounding error may be
_BURST = 1.0  # seconds' worth that may go at once unless a server says that more is left
_ROUNDED = 1000.0  # tokens to which Anthropic rounds what is left
_FIRST_REPLY = 1024.0  # tokens of a reply, where nothing is known
_BYTES_A_TOKEN = 4.0
# that a call is booked above the mean, since what is too much is given back at its end
_DEVIATIONS = 2.0
_WEIGHT = 1 / 16  # of the latest call in the mean
_DURATION = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?(?:\d+(?:\.\d+)?[uµn]s)?"
)
_SECONDS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)


class RateLimit(NamedTuple):
    """A limit as an answer's headers tell it."""

    most: float  # in a period
    left: float | None  # None: they don't say
    period: float = _MINUTE  # seconds


def limits_in(headers: Mapping[str, str]) -> dict[int, RateLimit]:
    """The limits in an answer's headers (names in lower case), by their place in KINDS; nonsense is left out."""
    found = {}
    for place, kind in enumerate(KINDS):
        openai = [
            headers.get(f"x-ratelimit-{what}-{kind}") for what in ("limit", "remaining", "reset")
        ]
        anthropic = [
            headers.get(f"anthropic-ratelimit-{kind}-{what}") for what in ("limit", "remaining")
        ]
        most, left, reset = openai if openai[0] else (*anthropic, None)
        if most is None or not 1 <= (limit := _number(most)) <= _MOST:
            continue
        remaining = None if left is None else _number(left)
        if remaining is None or remaining >= 0:
            known = None if remaining is None else min(remaining, limit)
            found[place] = RateLimit(limit, known, _period(limit, known, reset))
    return found


class Bucket(msgspec.Struct, array_like=True):
    """A token bucket, of which `level` is what was left at a moment."""

    most: float  # that it holds
    rate: float  # a second
    level: float
    time: float
    # what a server said was left: more than that and a burst is not taken for granted
    confirmed: float = 0.0

    def flow(self, now: float, wanted: float) -> float:
        """Lets the bucket fill until now, and returns the seconds until it holds what is wanted, or is full."""
        top = max(self.level, min(self.most, max(self.confirmed, _BURST * self.rate, wanted)))
        self.level = min(top, self.level + max(0.0, now - self.time) * self.rate)
        # another process may have looked at the clock later, and been here first
        self.time = max(self.time, now)
        missing = min(wanted, self.most) - self.level
        return missing / self.rate if missing > _NOTHING else 0.0

    def take(self, amount: float) -> None:
        """Takes an amount out, or puts back a negative one."""
        self.level = max(-self.most, min(self.most, self.level - amount))
        self.confirmed = min(self.confirmed, max(0.0, self.level))

    def hear(self, limit: RateLimit, underway: float, since: float, now: float) -> None:
        """Corrects the level by what a server said was left.

        `underway`: what it may not have counted yet; `since`: when it was asked.
        """
        self.most, self.rate = limit.most, limit.most / limit.period
        self.flow(now, 0.0)
        if limit.left is None:
            return
        slack = (
            _ROUNDED / 2
            if limit.left and limit.left % _ROUNDED == 0 and limit.left < limit.most
            else 0.0
        )
        least, most = (
            limit.left - slack - underway,
            limit.left + slack + 1 + self.rate * max(0.0, now - since),
        )
        self.level = min(max(self.level, least), most, self.most)
        self.confirmed = max(0.0, self.level)


class ModelLimits(msgspec.Struct, array_like=True):
    """Limits of one model as far as they are known, and the amounts that were booked of it and have ended."""

    sent: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(KINDS))
    ended: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(KINDS))
    buckets: dict[int, Bucket] = {}  # by the place in KINDS
    is_known: bool = False  # whether an answer came, with limits or without


class Levels(msgspec.Struct, array_like=True):
    """All buckets of one provider and key."""

    time: float = 0.0  # of the latest change
    own: dict[int, Bucket] = {}  # of the limits that users gave, by the place in KINDS
    models: dict[str, ModelLimits] = {}


@dataclass(slots=True)
class Booking:
    """Amounts booked for one call, and those that it used."""

    model: str
    amounts: Amounts
    time: float = 0.0
    ended: Sequence[float] = ()  # of the model, when it was booked
    used: Amounts | None = None  # None: nobody knows, so as much as was booked
    limits: Mapping[int, RateLimit] = field(default_factory=dict)
    is_answered: bool = False


def book(levels: Levels, rates: Rates, booking: Booking, now: float, *, held: bool = True) -> float:
    """Books a call and returns 0, or returns the seconds until that may succeed and books nothing.

    Unless `held`, the limits that headers tell don't hold it, but only those of the user.
    """
    model = levels.models.get(booking.model) or levels.models.setdefault(
        booking.model, ModelLimits()
    )
    mine = dict(_own_buckets(levels, rates, booking, now))
    wait = 0.0
    for holds, buckets in ((True, mine), (held, model.buckets)):
        for place, bucket in buckets.items():
            seconds = bucket.flow(now, booking.amounts[place])
            wait = max(wait, seconds) if holds else wait
    if wait:
        return wait
    booking.time, booking.ended = now, tuple(model.ended)
    for place, amount in enumerate(booking.amounts):
        model.sent[place] += amount
        _take(levels, model, place, amount)
    levels.time = now
    return 0.0


def settle(levels: Levels, booking: Booking, now: float) -> None:
    """Corrects what was booked for a call by what it used, and all levels by what its answer said is left."""
    model = levels.models.get(booking.model) or levels.models.setdefault(
        booking.model, ModelLimits()
    )
    used = booking.amounts if booking.used is None else booking.used
    for place, (booked, real) in enumerate(zip(booking.amounts, used, strict=True)):
        model.sent[place] += real - booked
        model.ended[place] += real
        if real != booked:
            _take(levels, model, place, real - booked)
    for place, limit in booking.limits.items():
        before = booking.ended[place] if booking.ended else 0.0
        underway = max(0.0, model.sent[place] - before - used[place])
        bucket = model.buckets.get(place)
        if bucket is None:
            rate = limit.most / limit.period
            level = _BURST * rate if limit.left is None else limit.left - underway
            bucket = model.buckets[place] = Bucket(limit.most, rate, min(level, limit.most), now)
        bucket.hear(limit, underway, booking.time, now)
    model.is_known = model.is_known or booking.is_answered
    levels.time = now


class Forecast:
    """The tokens that a model's next call is booked with, by what its calls took so far."""

    def __init__(self) -> None:
        # tokens a byte of the request: mean, mean deviation
        self._input: tuple[float, float] | None = None
        self._output: tuple[float, float] | None = None  # tokens

    def amounts(self, size: int, most: int | None) -> Amounts:
        """The amounts to book for a request of `size` bytes whose reply has `most` tokens at most."""
        tokens_in = size * _above(self._input) if self._input else size / _BYTES_A_TOKEN
        tokens_out = min(_above(self._output) if self._output else _FIRST_REPLY, most or math.inf)
        return 1.0, tokens_in + tokens_out, tokens_in, tokens_out

    def learn(
        self, size: int, tokens_in: int | None, tokens_out: int | None, cache_read: int
    ) -> Amounts | None:
        """Learns from a call and returns the amounts that it used; None where its server doesn't count tokens.

        Anthropic's limit of input tokens, which alone is told apart, doesn't count what is read from a cache.
        """
        if tokens_in is None or tokens_out is None:
            return None
        self._input = _learnt(self._input, tokens_in / max(1, size))
        self._output = _learnt(self._output, float(tokens_out))
        fresh = max(0, tokens_in - cache_read)
        return 1.0, float(tokens_in + tokens_out), float(fresh), float(tokens_out)


def _own_buckets(
    levels: Levels, rates: Rates, booking: Booking, now: float
) -> Iterator[tuple[int, Bucket]]:
    """The buckets of the user's own limits, made where there are none."""
    for place, most in enumerate(rates):
        if most is None:
            continue
        rate = most / _MINUTE
        bucket = levels.own.get(place)
        if bucket is None:
            level = min(most, max(_BURST * rate, booking.amounts[place]))
            bucket = levels.own[place] = Bucket(most, rate, level, now)
        bucket.most, bucket.rate = most, rate
        yield place, bucket


def _take(levels: Levels, model: ModelLimits, place: int, amount: float) -> None:
    for buckets in (levels.own, model.buckets):
        if place in buckets:
            buckets[place].take(amount)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return -1.0
    return found if math.isfinite(found) else -1.0


def _period(most: float, left: float | None, reset: str | None) -> float:
    """The seconds in which a bucket fills, by what is missing in it and when it will be full: a minute but for few."""
    if not reset or left is None or left >= most:
        return _MINUTE
    match = _DURATION.fullmatch(reset.strip())
    full = (
        sum(float(part) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True) if part)
        if match
        else 0.0
    )
    told = full * most / (most - left)
    return next((period for period in _LONG_PERIODS if abs(told / period - 1) < _NEAR), _MINUTE)


def _above(known: tuple[float, float] | None) -> float:
    mean, deviation = known or (0.0, 0.0)
    return mean + _DEVIATIONS * deviation


def _learnt(known: tuple[float, float] | None, value: float) -> tuple[float, float]:
    if known is None:
        return value, value / 4
    mean, deviation = known
    return mean + _WEIGHT * (value - mean), deviation + _WEIGHT * (abs(value - mean) - deviation)
