"""RULER's aggregation: a long list of words, whose most common ones are asked for.

Common words extraction asks for ten of a numbered list; frequent words extraction for three of coded words, which are
drawn by Zipf's law.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import gcd, isqrt, log10
from random import Random
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.systems.long_context.ruler.drawing import (
    AIM,
    Draws,
    Frame,
    NeedsMeasuring,
    Text,
    drawn,
    row_of,
    searched,
)
from koderz.systems.long_context.words import all_words

_CWE_TOKENS = 120
_CWE_TEMPLATE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
)
_CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"

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
        self._frame = replace(frame, step=_STEP, room=frame.max_length - _CWE_TOKENS)
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
        return row_of(index, text, tokens + _CWE_TOKENS, _CWE_PREFIX)

    def text(self, size: int) -> Text:
        """Draws a list of a number of different words, after the example."""
        example, answers = self._list(*self._example)
        listed, outputs = self._list(size, self._listing)
        template = _CWE_TEMPLATE + _CWE_PREFIX
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
        return (
            searched(
                lambda n: frame.tokenizer.count(self.text(n).prompt) <= frame.room, _STEP, high
            )
            or _STEP
        )

    def _measured(self) -> int:
        """The size by the characters of an entry, whose number grows in digits, and the tokens of a character."""
        frame, listing = self._frame, self._listing
        text = self.text(_FIRST).prompt
        room = frame.room * AIM / (frame.tokenizer.count(text) / len(text))
        known, of_made_up = (
            _mean_length(self._words),
            _mean_length(made_up(50_000, self._draws.random)),
        )

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
    words = [
        _SYLLABLES[n % base] + _SYLLABLES[n // base % base] + _SYLLABLES[n // base**2]
        for n in numbers
    ]
    return [word for word in words if word not in taken][:count]


_SYLLABLES = tuple(
    f"{onset}{vowel}{coda}"
    for onset in "bdfghklmnprstvz"
    for vowel in "aeiou"
    for coda in ("", "n", "r")
)


def _numbered(words: Sequence[str]) -> str:
    return " ".join([f"{number}. {word}" for number, word in enumerate(words, 1)])


def _digits(entries: int) -> int:
    """The total digits of all numbers from 1 to `entries`."""
    length = int(log10(entries)) + 1 if entries else 0
    return entries * length - sum(10**n - 1 for n in range(1, length)) if length else 0


_FWE_TOKENS = 50
_FWE_TEMPLATE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
_FWE_PREFIX = (
    " Answer: According to the coded text above, the three most frequently appeared words are:"
)

_LETTERS = 6
_ALPHA = 2.0
_ZETA = 1.6449340668482264  # of 2, as scipy.special.zeta has it
_WORDS_A_VOCABULARY = 50
_MEASURED = 100_000  # words


class FrequentWordsFamily:
    """Rows of one length."""

    def __init__(self, frame: Frame) -> None:
        room = frame.max_length - _FWE_TOKENS
        if room < 4 * _WORDS_A_VOCABULARY:
            raise KoderzError("no text of the task fwe is that short; raise --context-lengths")
        self._frame = replace(frame, room=room, step=room // 32)
        self._draws = Draws(frame.seed, quick=frame.measured)
        self._size = 0
        self.state, self.restore = self._draws.state, self._draws.restore

    def settle(self) -> None:
        vocabulary = self._vocabulary()
        self._size = (
            self._measured(vocabulary) if self._frame.measured else self._searched(vocabulary)
        )

    def row(self, index: int) -> dict[str, Any]:
        vocabulary, size = self._vocabulary(), self._size
        text = self._text(vocabulary, size)
        while (tokens := self._frame.tokenizer.count(text.prompt)) > self._frame.room:
            size -= self._frame.step
            text = self._text(vocabulary, size)
        return row_of(index, text, tokens + _FWE_TOKENS, _FWE_PREFIX)

    def _vocabulary(self) -> list[str]:
        """Words by rank; the most frequent is noise."""
        size, choices = self._frame.room // _WORDS_A_VOCABULARY, self._draws.random.choices
        if self._frame.measured:  # the words of a higher rank stand nowhere
            size = min(size, isqrt(self._frame.room))
        words = ["".join(choices(string.ascii_lowercase, k=_LETTERS)) for _ in range(size)]
        while len(set(words)) < size:
            words.append("".join(choices(string.ascii_lowercase, k=_LETTERS)))
        words = sorted(set(words))
        self._draws.shuffle(words)
        words[0] = "..."
        return words

    def _text(self, vocabulary: list[str], size: int) -> Text:
        counts = _counts(len(vocabulary), size)
        words = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
        self._draws.shuffle(words)
        return Text((_FWE_TEMPLATE + _FWE_PREFIX).format(context=" ".join(words)), vocabulary[1:4])

    def _searched(self, vocabulary: list[str]) -> int:
        """The size found by growing a text until it is too long, and one step back."""
        frame = self._frame
        size = frame.room // _LETTERS
        while frame.tokenizer.count(self._text(vocabulary, size).prompt) < frame.room:
            size += frame.step
        return size - frame.step

    def _measured(self, vocabulary: list[str]) -> int:
        """The size by the characters of all words and the tokens of a character."""
        frame = self._frame
        text = self._text(vocabulary, _MEASURED).prompt
        room = int(frame.room * AIM * len(text) / frame.tokenizer.count(text)) - len(
            _FWE_TEMPLATE + _FWE_PREFIX
        )

        def fits(size: int) -> bool:
            noise, *others = _counts(len(vocabulary), size)
            return noise * len("... ") + sum(others) * (_LETTERS + 1) <= room

        return searched(fits, frame.step, room) or frame.step


def _counts(vocabulary: int, size: int) -> list[int]:
    """The number of occurrences of the word of each rank in a text of about `size` words."""
    import numpy as np

    counts: list[int] = (
        (size * (np.arange(1, vocabulary + 1) ** -_ALPHA) / _ZETA).astype(int).tolist()
    )
    return counts
