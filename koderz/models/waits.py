"""Waits that servers ask for before another request: in headers, in an error's fields and in its words."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LONGEST_WAIT = 300.0  # seconds; what a server asks for beyond is not waited for at once
_IN_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")  # OpenAI's and Azure's, finer than `Retry-After`
# Google's `RetryInfo`; the quotes are escaped where a gateway passes its provider's error on as a text.
_DELAY = re.compile(r'retry_?Delay\\*"\s*:\s*\\*"(\d+(?:\.\d+)?)s\\*"', re.IGNORECASE)
# A field in seconds, and what Google's clients make of `RetryInfo` in words.
_FIELD = re.compile(
    r'\bretry_?after(?:_?s(?:econds)?)?\\*"\s*:\s*(?:\\*")?(\d+(?:\.\d+)?)\b|retry_delay \{(?:\s|\\n)*seconds: (\d+)',
    re.IGNORECASE,
)
_AMOUNT = r"\d+(?:\.\d+)?\s*(?:ms|milli\w+|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
# "Please retry in 6.5s", "try again in 7m12.5s", "retry after 4 seconds", "wait 1 minute and 5 seconds"
_ASKED = re.compile(
    rf"(?:(?:retry|try again) (?:in|after)|\bwait(?: for)?) (?:about |another )?({_AMOUNT}(?:(?:,|\s|and)*{_AMOUNT})*)",
    re.IGNORECASE,
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


def wait_in_headers(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait by an answer's headers, whose names are in lower case; None if they name none."""
    for name in _IN_MILLISECONDS:
        try:
            return bounded(float(headers.get(name, "")) / 1000)
        except ValueError:
            continue
    return retry_after(headers.get("retry-after", ""), now)


def retry_after(header: str, now: datetime) -> float | None:
    """Seconds to wait by a `Retry-After` header in either of its forms (RFC 9110, 10.2.3); None if it has none."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            until = parsedate_to_datetime(header)
        except (ValueError, OverflowError):  # a year of eleven digits
            return None
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
    return bounded(seconds)


def wait_in_body(body: bytes) -> float | None:
    """Seconds to wait by an error's body, the longest of those that it names; None if it names none."""
    text = body[:65536].decode("utf-8", "replace")
    fields = [float(seconds or others) for seconds, others in _FIELD.findall(text)]
    return longest((*map(float, _DELAY.findall(text)), *fields, *map(_seconds, _ASKED.findall(text))))


def longest(waits: Iterable[float | None]) -> float | None:
    """The longest of some waits, since a request before its end is refused again; None if there is none."""
    known = [bounded(wait) for wait in waits if wait is not None]
    return max((wait for wait in known if wait is not None), default=None)


def bounded(seconds: float) -> float | None:
    """A wait that can be: neither below zero nor too long; None for what is no number."""
    return min(max(0.0, seconds), LONGEST_WAIT) if math.isfinite(seconds) else None


def _seconds(asked: str) -> float:
    """The seconds of an amount in words such as `7m12.5s`."""
    return sum(float(number) * _unit(name.lower()) for number, name in _PART.findall(asked))


def _unit(name: str) -> float:
    if name.startswith(("ms", "milli")):
        return 0.001
    return {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[name[0]]
