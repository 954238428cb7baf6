"""Detection of equal or nearly equal texts, so that none is in two splits."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

COMMON, OF = 4, 5  # shingles that two texts have in common, of those of both (Jaccard), where they are nearly the same
WORDS = 5  # of a shingle


class _Spaces(dict[int, str]):
    """A translation table for normalising: punctuation becomes a space."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        self[code] = " " if unicodedata.category(character).startswith("P") else character
        return self[code]


_SPACES = _Spaces()


def normalised(text: str) -> str:
    """The text in NFKC, without case and punctuation, its words apart by one space."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(plain.casefold().translate(_SPACES).split())


def shingles(text: str) -> frozenset[str]:
    """The runs of five words of a normalised text; the text itself if it has fewer."""
    words = text.split(" ")
    return frozenset(" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1)))


class Texts:
    """Texts to be compared with those added before.

    Two sets of which 0.8 is common share one of the few rarest shingles of each, in any order of rarity: only texts
    that do are compared whole. Source: Chaudhuri et al., "A primitive operator for similarity joins" (2006).
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts` determine which shingles are rare."""
        known = {*map(normalised, texts)}
        self._frequency = Counter(shingle for text in known for shingle in shingles(text))
        self._added: set[str] = set()
        self._by_rarest: dict[str, list[frozenset[str]]] = defaultdict(list)

    def add(self, text: str) -> None:
        """Adds a text for later comparisons."""
        known = normalised(text)
        if known not in self._added:
            self._added.add(known)
            own = shingles(known)
            for shingle in self._rarest(own):
                self._by_rarest[shingle].append(own)

    def like(self, text: str) -> Literal["exact", "near"] | None:
        """Whether an added text is equal after normalising, or nearly so."""
        known = normalised(text)
        if known in self._added:
            return "exact"
        own = shingles(known)
        others = (other for shingle in self._rarest(own) for other in self._by_rarest.get(shingle, ()))
        return "near" if any(_are_near(own, other) for other in others) else None

    def _rarest(self, own: frozenset[str]) -> list[str]:
        """The rarest shingles, as many as two near sets can't both lack."""
        count = len(own) - -(-COMMON * len(own) // OF) + 1
        return sorted(own, key=lambda shingle: (self._frequency[shingle], shingle))[:count]


def _are_near(a: frozenset[str], b: frozenset[str]) -> bool:
    if OF * min(len(a), len(b)) < COMMON * max(len(a), len(b)):
        return False
    common = len(a & b)
    return OF * common >= COMMON * (len(a) + len(b) - common)
