"""What RULER's tasks have in common: where random numbers come from, how a size is found, what a row is."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from koderz.errors import KoderzError
from koderz.suites.tokens import Tokenizer

_MOST_TRIES = 200  # to draw a row that isn't too long

AIM = 0.999  # of the room, where a size is measured rather than searched: two texts of one size differ a little


class Text(NamedTuple):
    """One text that was drawn: the whole prompt with the beginning of its answer, and what belongs into the answer."""

    prompt: str
    outputs: list[str]


@dataclass(frozen=True, slots=True)
class Frame:
    """What rows of one task and length are made with."""

    max_length: int  # tokens, those of the answer included
    seed: int
    tokenizer: Tokenizer
    measured: bool = False  # the size of a text, by that of a short one, rather than searched as RULER does
    step: int = 0  # by how much a text grows or shrinks
    room: int = 0  # tokens for the prompt


class Family(Protocol):
    """Tasks of one kind. All of a task's rows are drawn one after the other, after a size was settled."""

    def settle(self) -> None:
        """Finds the size of a row's text. Raises NeedsMeasuring where a search needs what isn't there."""

    def row(self, index: int) -> dict[str, Any]:
        """Draws the next row, in the layout of RULER's files. Raises KoderzError where none fits."""

    def state(self) -> Any:
        """Where the random numbers are, for `restore`."""

    def restore(self, state: Any) -> None:
        """Goes back to where `state` was."""


class NeedsMeasuring(Exception):
    """A search would need words that nobody has given."""


@dataclass
class Draws:
    """Python's and numpy's stream of random numbers, both from one seed."""

    seed: int
    quick: bool = False  # whether shuffling may be done by numpy, in a tenth of the time
    random: random.Random = field(init=False)
    _numpy: Any = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 repeatable on purpose

    @property
    def numpy(self) -> Any:
        """numpy's legacy stream, which not all tasks draw from."""
        if self._numpy is None:
            from numpy.random import RandomState

            self._numpy = RandomState(self.seed)
        return self._numpy

    def shuffle(self, items: list[Any]) -> None:
        """Always in the same way, whatever was drawn before."""
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
    """The largest size that fits, by halving; each probe draws a whole text. None where none did."""
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
        return max(step, few + int((frame.room * AIM - extra - base) * (many - few) / (more - base)))
    each = tokens(step) / step
    high = max(int(frame.max_length / each * 3), 2 * step)
    return searched(lambda size: tokens(size) + extra <= frame.room, step, high) or step


def drawn(draw: Callable[[int], Text], size: int, frame: Frame) -> tuple[Text, int]:
    """A text of that size with its tokens, or of a smaller one where it is too long. KoderzError where none fits."""
    for _ in range(_MOST_TRIES):
        text = draw(size)
        if (tokens := frame.tokenizer.count(text.prompt)) <= frame.room:
            return text, tokens
        if size > frame.step:
            size -= max(frame.step, size // 500) if frame.measured else frame.step
    raise KoderzError(f"no text of this task is as short as {frame.max_length:,} tokens; raise --context-lengths")


def parted(prompt: str, answer_prefix: str) -> tuple[str, str]:
    """What is asked, and the beginning of the answer: from where its first ten characters stand last."""
    place = prompt.rfind(answer_prefix[:10])
    return prompt[:place], prompt[place:]


def row_of(
    index: int, text: Text, tokens: int, answer_prefix: str, more: Callable[[str], Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """A row as RULER writes it. `tokens`: of the whole prompt and the answer's room; `more`: fields by the input."""
    asked, prefix = parted(text.prompt, answer_prefix)
    row = {
        "index": index,
        "input": asked,
        "outputs": text.outputs,
        "length": tokens,
        "length_w_model_temp": tokens,
        "answer_prefix": prefix,
    }
    return {**row, **(more(asked) if more else {})}
