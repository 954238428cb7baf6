"""Shared parts of RULER's tasks: random numbers, the search for a size, and the format of rows."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from koderz.errors import KoderzError
from koderz.suites.tokens import Tokenizer

_MOST_TRIES = 200  # to draw a row that isn't too long

# of the room, where a size is measured rather than searched: two texts of one size differ a little
AIM = 0.999


class Text(NamedTuple):
    """One drawn text: the whole prompt with the beginning of its answer, and the expected answer."""

    prompt: str
    outputs: list[str]


@dataclass(frozen=True, slots=True)
class Frame:
    """The parameters of rows of one task and length."""

    max_length: int  # tokens, those of the answer included
    seed: int
    tokenizer: Tokenizer
    # the size of a text, by that of a short one, rather than searched as RULER does
    measured: bool = False
    step: int = 0  # by how much a text grows or shrinks
    room: int = 0  # tokens for the prompt


class Family(Protocol):
    """Tasks of one kind. All rows of a task are drawn one after the other, after the size is settled."""

    def settle(self) -> None:
        """Finds the size of a row's text. Raises NeedsMeasuring if the search lacks words."""

    def row(self, index: int) -> dict[str, Any]:
        """Draws the next row, in the layout of RULER's files. Raises KoderzError if none fits."""

    def state(self) -> Any:
        """The state of the random numbers, for `restore`."""

    def restore(self, state: Any) -> None:
        """Restores the random numbers to `state`."""


class NeedsMeasuring(Exception):
    """A search would need words that are not given."""


@dataclass
class Draws:
    """The random streams of Python and numpy, both from one seed."""

    seed: int
    quick: bool = False  # whether shuffling may be done by numpy, in a tenth of the time
    random: random.Random = field(init=False)
    _numpy: Any = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 repeatable on purpose

    @property
    def numpy(self) -> Any:
        """The legacy stream of numpy, which not all tasks use."""
        if self._numpy is None:
            from numpy.random import RandomState

            self._numpy = RandomState(self.seed)
        return self._numpy

    def shuffle(self, items: list[Any]) -> None:
        """Shuffles in the same way whatever was drawn before."""
        if self.quick:
            import numpy as np

            places = np.random.RandomState(self.seed).permutation(len(items))
            items[:] = np.array(items, dtype=object).take(places).tolist()
            return
        random.Random(self.seed).shuffle(items)  # noqa: S311 repeatable on purpose

    def state(self) -> Any:
        version, numbers, gauss = self.random.getstate()
        return version, array("L", numbers), gauss, self._numpy and self._numpy.get_state()

    def restore(self, state: Any) -> None:
        version, numbers, gauss, of_numpy = state
        self.random.setstate((version, tuple(numbers), gauss))
        if of_numpy is None:
            self._numpy = None
        else:
            self.numpy.set_state(of_numpy)


def searched(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest size that fits, by halving; each probe draws a whole text. None if none does."""
    best = None
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best


def settled(tokens: Callable[[int], int], frame: Frame, extra: int = 0) -> int:
    """The size of a row's text. `tokens` draws a text of a size and counts it; `extra` tokens stand before each."""
    step = frame.step
    if frame.measured:  # by what a piece takes in two short texts
        few, many = step, 100 * step
        base, more = tokens(few), tokens(many)
        return max(
            step, few + int((frame.room * AIM - extra - base) * (many - few) / (more - base))
        )
    each = tokens(step) / step
    high = max(int(frame.max_length / each * 3), 2 * step)
    return searched(lambda size: tokens(size) + extra <= frame.room, step, high) or step


def drawn(draw: Callable[[int], Text], size: int, frame: Frame) -> tuple[Text, int]:
    """A text of that size with its tokens, or of a smaller one if it is too long. Raises KoderzError if none fits."""
    for _ in range(_MOST_TRIES):
        text = draw(size)
        if (tokens := frame.tokenizer.count(text.prompt)) <= frame.room:
            return text, tokens
        if size > frame.step:
            size -= max(frame.step, size // 500) if frame.measured else frame.step
    raise KoderzError(
        f"no text of this task is as short as {frame.max_length:,} tokens; raise --context-lengths"
    )


def question_and_prefix(prompt: str, answer_prefix: str) -> tuple[str, str]:
    """The question, and the beginning of the answer: from the last place of its first ten characters."""
    place = prompt.rfind(answer_prefix[:10])
    return prompt[:place], prompt[place:]


def row_of(
    index: int,
    text: Text,
    tokens: int,
    answer_prefix: str,
    more: Callable[[str], Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """A row as RULER writes it. `tokens`: of the whole prompt and the answer's room; `more`: fields by the input."""
    asked, prefix = question_and_prefix(text.prompt, answer_prefix)
    row = {
        "index": index,
        "input": asked,
        "outputs": text.outputs,
        "length": tokens,
        "length_w_model_temp": tokens,
        "answer_prefix": prefix,
    }
    return {**row, **(more(asked) if more else {})}
