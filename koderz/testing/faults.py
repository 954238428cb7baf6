"""Faults of the server: which requests fail, and in which way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b

from koderz.errors import KoderzError

WORDS = frozenset({"hang", "drop", "garbage", "hollow", "empty", "truncated"})
STATUSES = range(400, 600)


class Faults:
    """Draws a fault for each request, in the same way however requests are interleaved.

    `shares` says which part of the requests gets which fault: an HTTP status from 400 to 599, or
    `hang` (never answered), `drop` (closed half-way), `garbage` (no JSON), `hollow` (JSON with no reply in it),
    `empty` (a reply without text) or `truncated` (cut short, for length). The first `fail_first` requests of every
    conversation get 500.
    Raises KoderzError for an unknown fault, or shares that can't be.
    """

    def __init__(self, shares: Mapping[str, float], *, seed: int = 0, fail_first: int = 0) -> None:
        for name in shares:
            if name not in WORDS and not (name.isdecimal() and int(name) in STATUSES):
                raise KoderzError(
                    f"unknown fault {name!r}; one is an HTTP status or {', '.join(sorted(WORDS))}"
                )
        if min(shares.values(), default=0) < 0 or sum(shares.values()) > 1:
            raise KoderzError(
                "the shares of faults have to be at least 0 each, and at most 1 in all"
            )
        self._shares = dict(shares)
        self._seed = seed
        self._fail_first = fail_first
        self._asked: Counter[str] = Counter()

    def draw(self, conversation: str) -> str | None:
        """The fault of the next request of a conversation; None for none."""
        if not self._shares and not self._fail_first:
            return None
        nth = self._asked[conversation]
        self._asked[conversation] += 1
        if nth < self._fail_first:
            return "500"
        drawn = _fraction(f"{self._seed} {conversation} {nth}")
        for name, share in self._shares.items():
            if drawn < share:
                return name
            drawn -= share
        return None


def read_shares(text: str) -> dict[str, float]:
    """A mapping from text such as `429:0.1,500:0.05`. Raises KoderzError for any other text."""
    shares = {}
    for part in filter(None, text.split(",")):
        name, _, share = part.partition(":")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            raise KoderzError(
                f"not a fault and its share: {part!r}; write 429:0.1,drop:0.02"
            ) from None
    return shares


def _fraction(text: str) -> float:
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48
