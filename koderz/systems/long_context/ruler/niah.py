"""Needles in a haystack: sentences that state a value for a key, among noise, essays or other needles.

Variable tracking hides a chain of assignments in the same noise; all names with one value are asked for.
"""

from __future__ import annotations

import datetime
import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from koderz.systems.long_context.ruler.drawing import Draws, Frame, Text, drawn, row_of, settled
from koderz.systems.long_context.words import word_pairs, words_of

TOKENS_TO_GENERATE = 128
TEMPLATE = (
    "Some special magic {type_needle_v} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {type_needle_v} afterwards.\n{context}\n"
    "What are all the special magic {type_needle_v} for {query} mentioned in the provided text?"
)
ANSWER_PREFIX = " The special magic {type_needle_v} for {query} mentioned in the provided text are"
NEEDLE = "One of the special magic {type_needle_v} for {key} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

# in this order
_SINGULAR = (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer"))
_DEPTHS = tuple(round(100 * n / 39) for n in range(40))  # per cent of an essay's sentences
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

Kind = Literal["words", "numbers", "uuids"]


@dataclass(frozen=True, slots=True)
class Needles:
    """One of RULER's needle tasks."""

    haystack: Literal["noise", "essay", "needle"]
    key: Kind
    value: Kind
    keys: int = 1
    values: int = 1
    queries: int = 1

    @property
    def is_single(self) -> bool:
        return self.queries * self.values == 1


def prompt_of(context: str, kind: str, query: str, *, is_single: bool) -> str:
    """The whole prompt, in the singular if there is one answer."""
    template = TEMPLATE + ANSWER_PREFIX
    if is_single:
        for plural, singular in _SINGULAR:
            template = template.replace(plural, singular)
        kind = kind[:-1]
    return template.format(type_needle_v=kind, context=context, query=query)


class NeedlesFamily:
    """Rows of one needle task and length."""

    def __init__(self, task: Needles, frame: Frame, essay: Sequence[str] = ()) -> None:
        """`essay`: the words of the haystack if it is one."""
        step = 25 if frame.max_length >= 4096 else 5
        if task.haystack == "essay":
            step = 500
        self._task, self._essay = task, essay
        self._frame = replace(frame, step=step, room=frame.max_length - TOKENS_TO_GENERATE)
        self._draws = Draws(frame.seed, quick=frame.measured)
        self._size = step
        self.state, self.restore = self._draws.state, self._draws.restore

    def settle(self) -> None:
        count = self._frame.tokenizer.count
        self._size = settled(lambda size: count(self.text(size).prompt), self._frame)

    def row(self, index: int) -> dict[str, Any]:  # noqa: ARG002 the place of the answer goes by that name here
        frame = self._frame
        count = frame.tokenizer.count
        text, tokens = drawn(self.text, self._size, frame)
        place = 0

        def position(asked: str) -> dict[str, int]:
            nonlocal place
            place = asked.find(text.outputs[0])
            return {"token_position_answer": count(asked[:place])}

        row = row_of(0, text, tokens + TOKENS_TO_GENERATE, ANSWER_PREFIX, position)
        return row | {"index": place}

    def text(self, size: int) -> Text:
        """Draws a text of `size` units: sentences of noise, words of an essay, or needles."""
        task = self._task
        keys, values, needles = [], [], []
        for _ in range(max(task.keys, task.queries)):
            keys.append(self._one(task.key))
            values.append([self._one(task.value) for _ in range(task.values)])
            needles += [
                NEEDLE.format(type_needle_v=task.value, key=keys[-1], value=value)
                for value in values[-1]
            ]
        self._draws.shuffle(needles)
        context = (
            self._in_essay(size, needles)
            if task.haystack == "essay"
            else self._in_lines(size, needles)
        )
        asked = self._draws.random.sample(range(len(keys)), task.queries)
        queries = [keys[n] for n in asked]
        query = f"{', '.join(queries[:-1])}, and {queries[-1]}" if len(queries) > 1 else queries[0]
        prompt = prompt_of(context, task.value, query, is_single=task.is_single)
        return Text(prompt, [value for n in asked for value in values[n]])

    def _in_lines(self, size: int, needles: Sequence[str]) -> str:
        task, one = self._task, self._one
        if task.haystack == "noise":
            lines = [NOISE] * size
        else:
            lines = [
                f"One of the special magic {task.value} for {one(task.key)} is: {one(task.value)}."
                for _ in range(size)
            ]
        places = sorted(self._draws.random.sample(range(size), len(needles)), reverse=True)
        for place, needle in zip(places, needles, strict=True):
            lines.insert(place, needle)
        return "\n".join(lines)

    def _in_essay(self, size: int, needles: Sequence[str]) -> str:
        words = self._essay
        repeated = words if size <= len(words) else [*words] * -(-size // len(words))
        sentences = _SENTENCE_END.split(" ".join(repeated[:size]).strip())
        depths = self._draws.random.sample(_DEPTHS, len(needles))
        places = [
            0,
            *sorted(int(len(sentences) * (depth / 100)) for depth in depths),
            len(sentences),
        ]
        parts = []
        for number, end in enumerate(places[1:]):
            parts.append(" ".join(sentences[places[number] : end]))
            parts += needles[number : number + 1]
        return " ".join(parts)

    @cached_property
    def _pairs(self) -> Sequence[str]:
        return word_pairs()

    def _one(self, kind: Kind) -> str:
        draw = self._draws.random
        if kind == "numbers":
            return str(draw.randint(10**6, 10**7 - 1))
        return draw.choice(self._pairs) if kind == "words" else _uuid(draw)


def _uuid(draw: random.Random) -> str:
    """A version 4 UUID of the next 128 bits, three times as fast as the standard class."""
    bits = draw.getrandbits(128)
    bits = bits & ~(0xC000 << 48) | 0x8000 << 48
    text = f"{bits & ~(0xF000 << 64) | 4 << 76:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


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
    words = [
        "the",
        _noun(draw),
        draw.choice(words_of("verblist")),
        "every",
        _noun(draw),
        "near",
        "the",
        _noun(draw),
    ]
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
        return Text(
            prompt_of("\n".join(lines), self._name, key, is_single=len(values) == 1), values
        )


_VT_TOKENS = 30
HOPS = 4
_VT_TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above."
)
_VT_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {num_v} variables are assigned "
    "the value {query}, they are: "
)

_EXAMPLE_VALUE = "12345"
_EXAMPLE_LENGTH = 500  # tokens


class VariablesFamily:
    """Rows of one length, each after an example with its answer."""

    def __init__(self, frame: Frame) -> None:
        self._frame = replace(
            frame, step=10 if frame.max_length >= 4096 else 5, room=frame.max_length - _VT_TOKENS
        )
        self._draws = Draws(frame.seed, quick=frame.measured)
        self._size = 0
        self._example = ""
        self.state, self.restore = self._draws.state, self._draws.restore

    def settle(self) -> None:
        count = self._frame.tokenizer.count
        self._example = self._drawn_example()
        self._size = settled(
            lambda size: count(self._text(size).prompt), self._frame, extra=count(self._example)
        )

    def row(self, index: int) -> dict[str, Any]:
        frame = self._frame
        text, tokens = drawn(self._with_example, self._size, frame)
        return row_of(index, text, tokens + _VT_TOKENS, _VT_PREFIX)

    def _text(self, size: int, *, is_example: bool = False) -> Text:
        """Draws a text with `size` sentences of noise."""
        names, draw = self._names(3 if is_example else 5), self._draws.random
        value = _EXAMPLE_VALUE if is_example else str(self._draws.numpy.randint(10000, 99999))
        chain = [f"VAR {names[0]} = {value}"]
        chain += [f"VAR {name} = VAR {before} " for before, name in pairwise(names)]
        lines = [NOISE] * size
        places = sorted(draw.sample(range(size), len(chain)))
        for number, (place, assignment) in enumerate(zip(places, chain, strict=True)):
            lines.insert(place + number, assignment)
        context = "\n".join(lines).replace(". \n", ".\n")
        return Text(
            (_VT_TEMPLATE + _VT_PREFIX).format(context=context, query=value, num_v=HOPS + 1), names
        )

    def _names(self, letters: int) -> list[str]:
        """Draws names until five are distinct; the first five are used, distinct or not."""
        names = [self._letters(letters) for _ in range(HOPS + 1)]
        while len(set(names)) < HOPS + 1:
            names.append(self._letters(letters))
        return names[: HOPS + 1]

    def _letters(self, count: int) -> str:
        return "".join(self._draws.random.choices(string.ascii_uppercase, k=count))

    def _drawn_example(self) -> str:
        frame = replace(
            self._frame, max_length=_EXAMPLE_LENGTH, measured=False, room=_EXAMPLE_LENGTH, step=5
        )
        count = frame.tokenizer.count

        def draw(size: int) -> Text:
            return self._text(size, is_example=True)

        size = settled(lambda size: count(draw(size).prompt), frame)
        text, _ = drawn(draw, size, frame)
        return f"{text.prompt} {' '.join(text.outputs)}\n"

    def _with_example(self, size: int) -> Text:
        text = self._text(size)
        return Text(f"{self._randomised()}\n{text.prompt}", text.outputs)

    def _randomised(self) -> str:
        """The example with other names and another value, replaced throughout."""
        example = self._example
        for name in example.strip().split()[-HOPS - 1 :]:
            example = example.replace(name, self._letters(len(name)))
        return example.replace(_EXAMPLE_VALUE, str(self._draws.numpy.randint(10000, 99999)))
