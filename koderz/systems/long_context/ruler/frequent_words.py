"""Frequent words extraction: coded words, drawn by Zipf's law; the three most frequent are asked for."""

from __future__ import annotations

import string
from dataclasses import replace
from math import isqrt
from typing import Any

from koderz.errors import KoderzError
from koderz.systems.long_context.ruler.drawing import AIM, Draws, Frame, Text, row_of, searched

TOKENS_TO_GENERATE = 50
TEMPLATE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
ANSWER_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"

_LETTERS = 6
_ALPHA = 2.0
_ZETA = 1.6449340668482264  # of 2, as scipy.special.zeta has it
_WORDS_A_VOCABULARY = 50
_MEASURED = 100_000  # words


class FrequentWordsFamily:
    """Rows of one length."""

    def __init__(self, frame: Frame) -> None:
        room = frame.max_length - TOKENS_TO_GENERATE
        if room < 4 * _WORDS_A_VOCABULARY:
            raise KoderzError("no text of the task fwe is that short; raise --context-lengths")
        self._frame = replace(frame, room=room, step=room // 32)
        self._draws = Draws(frame.seed, quick=frame.measured)
        self._size = 0
        self.state, self.restore = self._draws.state, self._draws.restore

    def settle(self) -> None:
        vocabulary = self._vocabulary()
        self._size = self._measured(vocabulary) if self._frame.measured else self._searched(vocabulary)

    def row(self, index: int) -> dict[str, Any]:
        vocabulary, size = self._vocabulary(), self._size
        text = self._text(vocabulary, size)
        while (tokens := self._frame.tokenizer.count(text.prompt)) > self._frame.room:
            size -= self._frame.step
            text = self._text(vocabulary, size)
        return row_of(index, text, tokens + TOKENS_TO_GENERATE, ANSWER_PREFIX)

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
        return Text((TEMPLATE + ANSWER_PREFIX).format(context=" ".join(words)), vocabulary[1:4])

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
        room = int(frame.room * AIM * len(text) / frame.tokenizer.count(text)) - len(TEMPLATE + ANSWER_PREFIX)

        def fits(size: int) -> bool:
            noise, *others = _counts(len(vocabulary), size)
            return noise * len("... ") + sum(others) * (_LETTERS + 1) <= room

        return searched(fits, frame.step, room) or frame.step


def _counts(vocabulary: int, size: int) -> list[int]:
    """The number of occurrences of the word of each rank in a text of about `size` words."""
    import numpy as np

    counts: list[int] = (size * (np.arange(1, vocabulary + 1) ** -_ALPHA) / _ZETA).astype(int).tolist()
    return counts
