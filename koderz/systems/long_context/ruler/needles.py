"""Generated needles of several types at several places in noise, which are not part of RULER."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from koderz.systems.long_context.ruler.drawing import Draws, Frame, Text, drawn, row_of, settled
from koderz.systems.long_context.ruler.niah import ANSWER_PREFIX, NEEDLE, NOISE, TOKENS_TO_GENERATE, prompt_of
from koderz.systems.long_context.words import word_pairs, words_of

PLACES: Mapping[str, tuple[tuple[float, float], ...]] = {
    "beginning": ((0, 0.05),),
    "middle": ((0.45, 0.55),),
    "end": ((0.95, 1),),
    "distributed": tuple((n / 5, n / 5) for n in range(1, 5)),
}
"""The range of each place, as shares of a text, in which needles lie."""

_STEP = 25
_DAYS = 50 * 365


def _noun(draw: random.Random) -> str:
    return draw.choice([word for word in words_of("nounlist") if word.isalpha() and word.islower()])


def _fact(draw: random.Random) -> str:
    return _noun(draw)


def _number(draw: random.Random) -> str:
    return str(draw.randint(10**6, 10**7 - 1))


def _name(draw: random.Random) -> str:
    return f"{_noun(draw).capitalize()} {_noun(draw).capitalize()}"


def _date(draw: random.Random) -> str:
    return (datetime.date(2000, 1, 1) + datetime.timedelta(draw.randrange(_DAYS))).isoformat()


def _quote(draw: random.Random) -> str:
    words = ["the", _noun(draw), draw.choice(words_of("verblist")), "every", _noun(draw), "near", "the", _noun(draw)]
    return " ".join([*words, "again", "today"][: draw.randint(6, 10)])


KINDS: Mapping[str, tuple[str, Callable[[random.Random], str]]] = {
    "factual": ("facts", _fact),
    "numerical": ("numbers", _number),
    "entities": ("names", _name),
    "dates": ("dates", _date),
    "quotes": ("quotes", _quote),
}
"""The name of each type in a text, and a function that draws one."""


class NeedleFamily:
    """Rows of one type, place and length."""

    def __init__(self, frame: Frame, kind: str, place: str) -> None:
        self._name, self._draw = KINDS[kind]
        self._places = PLACES[place]
        self._frame = replace(frame, step=_STEP, room=frame.max_length - TOKENS_TO_GENERATE)
        self._draws = Draws(frame.seed)
        self._size = _STEP
        self.state, self.restore = self._draws.state, self._draws.restore

    def settle(self) -> None:
        count = self._frame.tokenizer.count
        self._size = settled(lambda size: count(self._text(size).prompt), self._frame)

    def row(self, index: int) -> dict[str, Any]:
        frame = self._frame
        text, tokens = drawn(self._text, self._size, frame)
        return row_of(index, text, tokens + TOKENS_TO_GENERATE, ANSWER_PREFIX)

    def _text(self, size: int) -> Text:
        draw = self._draws.random
        key = draw.choice(word_pairs())
        values: list[str] = []
        while len(values) < len(self._places):
            if (value := self._draw(draw)) not in values:
                values.append(value)
        lines = [NOISE] * size
        for value, (low, high) in zip(reversed(values), reversed(self._places), strict=True):
            place = draw.randint(-int(-low * size), int(high * size))
            lines.insert(place, NEEDLE.format(type_needle_v=self._name, key=key, value=value))
        return Text(prompt_of("\n".join(lines), self._name, key, is_single=len(values) == 1), values)
