"""Common words extraction: a numbered list of words, in which the ten most common ones are asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import gcd, log10
from random import Random
from typing import Any, NamedTuple

from koderz.systems.long_context.ruler.drawing import AIM, Draws, Frame, NeedsMeasuring, Text, drawn, row_of, searched
from koderz.systems.long_context.words import all_words

TOKENS_TO_GENERATE = 120
TEMPLATE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
)
ANSWER_PREFIX = " Answer: The top 10 words that appear most often in the list are:"

_COMMON = 10
_FIRST = 4096  # words of the text that is measured first
_STEP = 10


class _Listing(NamedTuple):
    """The number of occurrences of common words in a list, and of the others."""

    common: int
    others: int


class CommonWordsFamily:
    """Rows of one length, each after a short list with its answer."""

    def __init__(self, frame: Frame, more_words: Sequence[str] = ()) -> None:
        """`more_words`: for lists of more words than wonderwords has; the default is made-up words."""
        self._frame = replace(frame, step=_STEP, room=frame.max_length - TOKENS_TO_GENERATE)
        self._draws = Draws(frame.seed, quick=frame.measured)
        self._words = list(all_words())
        self._draws.shuffle(self._words)
        self._more = more_words
        self._size = _STEP
        is_short = frame.max_length < 4096
        self._example = (20, _Listing(3, 1)) if is_short else (40, _Listing(10, 3))
        self._listing = _Listing(6, 1) if is_short else _Listing(30, 3)
        self.state, self.restore = self._draws.state, self._draws.restore

    def settle(self) -> None:
        self._size = self._measured() if self._frame.measured else self._searched()

    def row(self, index: int) -> dict[str, Any]:
        frame = self._frame
        text, tokens = drawn(self.text, self._size, frame)
        return row_of(index, text, tokens + TOKENS_TO_GENERATE, ANSWER_PREFIX)

    def text(self, size: int) -> Text:
        """Draws a list of a number of different words, after the example."""
        example, answers = self._list(*self._example)
        listed, outputs = self._list(size, self._listing)
        template = TEMPLATE + ANSWER_PREFIX
        before = f"{template.format(context=example)} {_numbered(answers)}"
        return Text(f"{before}\n{template.format(context=listed)}", outputs)

    def _list(self, size: int, listing: _Listing) -> tuple[str, list[str]]:
        words = self._sample(size)
        common, others = words[:_COMMON], words[_COMMON:]
        repeated = common * listing.common + others * listing.others
        self._draws.shuffle(repeated)
        return _numbered(repeated), common

    def _sample(self, size: int) -> list[str]:
        draw = self._draws.random
        if size <= len(self._words):
            return draw.sample(self._words, size)
        if not self._frame.measured:
            if size > len(self._more):
                raise NeedsMeasuring
            return draw.sample(self._more, size)
        return [*self._words, *made_up(size - len(self._words), draw, frozenset(self._words))]

    def _searched(self) -> int:
        frame = self._frame
        each = frame.tokenizer.count(self.text(_FIRST).prompt) / _FIRST
        high = max(int(frame.max_length // each) * 2, 2 * _STEP)
        return searched(lambda n: frame.tokenizer.count(self.text(n).prompt) <= frame.room, _STEP, high) or _STEP

    def _measured(self) -> int:
        """The size by the characters of an entry, whose number grows in digits, and the tokens of a character."""
        frame, listing = self._frame, self._listing
        text = self.text(_FIRST).prompt
        room = frame.room * AIM / (frame.tokenizer.count(text) / len(text))
        known, of_made_up = _mean_length(self._words), _mean_length(made_up(50_000, self._draws.random))

        def fits(size: int) -> bool:
            new = max(0, size - len(self._words))
            entries = listing.common * _COMMON + listing.others * (size - _COMMON)
            letters = (entries - listing.others * new) * known + listing.others * new * of_made_up
            return _digits(entries) + 3 * entries + letters <= room  # a full stop and two blanks

        return searched(fits, _STEP, int(room)) or _STEP


def _mean_length(words: Sequence[str]) -> float:
    return sum(map(len, words)) / len(words)


def made_up(count: int, draw: Random, taken: Collection[str] = ()) -> list[str]:
    """Words of three syllables, all different, none of them in `taken`."""
    base = len(_SYLLABLES)
    every = base**3
    first, stride = draw.randrange(every), draw.randrange(every)
    while gcd(stride, every) > 1:
        stride = draw.randrange(every)
    numbers = [(first + n * stride) % every for n in range(count + len(taken))]  # all different
    words = [_SYLLABLES[n % base] + _SYLLABLES[n // base % base] + _SYLLABLES[n // base**2] for n in numbers]
    return [word for word in words if word not in taken][:count]


_SYLLABLES = tuple(
    f"{onset}{vowel}{coda}" for onset in "bdfghklmnprstvz" for vowel in "aeiou" for coda in ("", "n", "r")
)


def _numbered(words: Sequence[str]) -> str:
    return " ".join([f"{number}. {word}" for number, word in enumerate(words, 1)])


def _digits(entries: int) -> int:
    """The total digits of all numbers from 1 to `entries`."""
    length = int(log10(entries)) + 1 if entries else 0
    return entries * length - sum(10**n - 1 for n in range(1, length)) if length else 0
