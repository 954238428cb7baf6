"""Variable tracking: a chain of assignments among noise; all names with one value are asked for."""

from __future__ import annotations

import string
from dataclasses import replace
from itertools import pairwise
from typing import Any

from koderz.systems.long_context.ruler.drawing import Draws, Frame, Text, drawn, row_of, settled
from koderz.systems.long_context.ruler.niah import NOISE

TOKENS_TO_GENERATE = 30
HOPS = 4
TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above."
)
ANSWER_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {num_v} variables are assigned "
    "the value {query}, they are: "
)

_EXAMPLE_VALUE = "12345"
_EXAMPLE_LENGTH = 500  # tokens


class VariablesFamily:
    """Rows of one length, each after an example with its answer."""

    def __init__(self, frame: Frame) -> None:
        self._frame = replace(
            frame, step=10 if frame.max_length >= 4096 else 5, room=frame.max_length - TOKENS_TO_GENERATE
        )
        self._draws = Draws(frame.seed, quick=frame.measured)
        self._size = 0
        self._example = ""
        self.state, self.restore = self._draws.state, self._draws.restore

    def settle(self) -> None:
        count = self._frame.tokenizer.count
        self._example = self._drawn_example()
        self._size = settled(lambda size: count(self._text(size).prompt), self._frame, extra=count(self._example))

    def row(self, index: int) -> dict[str, Any]:
        frame = self._frame
        text, tokens = drawn(self._with_example, self._size, frame)
        return row_of(index, text, tokens + TOKENS_TO_GENERATE, ANSWER_PREFIX)

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
        return Text((TEMPLATE + ANSWER_PREFIX).format(context=context, query=value, num_v=HOPS + 1), names)

    def _names(self, letters: int) -> list[str]:
        """Draws names until five are distinct; the first five are used, distinct or not."""
        names = [self._letters(letters) for _ in range(HOPS + 1)]
        while len(set(names)) < HOPS + 1:
            names.append(self._letters(letters))
        return names[: HOPS + 1]

    def _letters(self, count: int) -> str:
        return "".join(self._draws.random.choices(string.ascii_uppercase, k=count))

    def _drawn_example(self) -> str:
        frame = replace(self._frame, max_length=_EXAMPLE_LENGTH, measured=False, room=_EXAMPLE_LENGTH, step=5)
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
