"""The English words of the package wonderwords 3.0.1, from which RULER's tasks are made."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from koderz.errors import KoderzError
from koderz.settings.installation import package_command

VERSION = "3.0.1"

_DIGESTS = {
    "nounlist": "8d88b3ebc2e2969e",
    "adjectivelist": "66814d46b7e292c8",
    "verblist": "9fbf5e4e69b8869a",
}
"""The first 16 hex digits of the SHA-256 of each list in that version; other lists would make other rows."""


def _command() -> str:
    return package_command(f"wonderwords=={VERSION}")


@cache
def words_of(name: str) -> tuple[str, ...]:
    """The words of one list, in its order. Raises KoderzError if the list is of another version."""
    spec = find_spec("wonderwords")
    if spec is None or not spec.submodule_search_locations:
        raise KoderzError(f"the package wonderwords isn't installed; run: {_command()}")
    data = (Path(spec.submodule_search_locations[0]) / "assets" / f"{name}.txt").read_bytes()
    if hashlib.sha256(data).hexdigest()[:16] != _DIGESTS[name]:
        raise KoderzError(
            f"the word lists of wonderwords aren't those of {VERSION}, so RULER's rows would be others: {_command()}"
        )
    return tuple(line.strip() for line in data.decode().splitlines() if line.strip())


@cache
def all_words() -> tuple[str, ...]:
    """Nouns, adjectives and verbs, sorted, each once."""
    return tuple(sorted({*words_of("nounlist"), *words_of("adjectivelist"), *words_of("verblist")}))


class WordPairs(Sequence[str]):
    """Every `adjective-noun`, sorted, each once: six million words, made only on demand."""

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        self._nouns = sorted(set(nouns))
        self._groups = [*self._grouped(sorted({f"{adjective}-" for adjective in adjectives}))]
        self._ends = [
            *accumulate(
                len(self._nouns) if isinstance(group, str) else len(group) for group in self._groups
            )
        ]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        number = bisect_right(self._ends, index)
        group = self._groups[number]
        place = index - (self._ends[number - 1] if number else 0)
        return f"{group}{self._nouns[place]}" if isinstance(group, str) else group[place]

    def _grouped(self, beginnings: Sequence[str]) -> Iterator[str | list[str]]:
        """Beginnings by themselves, or if one begins with another (`good-`, `good-natured-`) their words, mixed."""
        together: list[str] = []
        for beginning in [*beginnings, ""]:
            if together and not (beginning and beginning.startswith(together[0])):
                mixed = len(together) > 1
                yield (
                    sorted({f"{each}{noun}" for each in together for noun in self._nouns})
                    if mixed
                    else together[0]
                )
                together = []
            together.append(beginning)


@cache
def word_pairs() -> WordPairs:
    """The words that needles are made of."""
    return WordPairs(words_of("adjectivelist"), words_of("nounlist"))
