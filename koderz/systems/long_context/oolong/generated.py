"""Generated texts like OOLONG's, from templates that determine the labels, so that answers are known.

Templates can be told apart by regular expressions: it is easier than the published texts, whose labels take reading.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from koderz.suites.tokens import CHARS_A_TOKEN
from koderz.systems.long_context.contexts import Reading, in_characters, recipe_digest
from koderz.systems.long_context.oolong.questions import KINDS, Kind, TextLine
from koderz.systems.long_context.words import VERSION, words_of

TEMPLATES: Mapping[str, Sequence[str]] = {
    "abbreviation": ("What does the abbreviation {upper} stand for ?", "What is the full form of {upper} ?"),
    "description and abstract concept": ("Why does a {noun} {verb} ?", "What is the meaning of the word {noun} ?"),
    "entity": ("What kind of {noun} is called a {other} ?", "Which product is made of {noun} and {other} ?"),
    "human being": ("Who invented the {noun} ?", "Which person was the first to {verb} a {noun} ?"),
    "location": ("Where can a {noun} be seen ?", "Which country has the oldest {noun} ?"),
    "numeric value": ("How many {noun} parts are in a {other} ?", "When was the first {noun} sold ?"),
}
_HEADER = (
    "The following lines contain general-knowledge questions, one a line, each with a date and a user. Every question "
    "asks for one of these kinds of answers, which is its label: {labels}.\n"
)
_FIRST_DAY = datetime.date(2022, 1, 1)
_DAYS = 500
_FORMAT = "oolong-generated 1"


class Window:
    """A text with the date, user and label of each line."""

    __slots__ = ("__weakref__", "entries", "text")

    def __init__(self, length: int, seed: int) -> None:
        """`length` in tokens, with some room for a question."""
        draw = random.Random(seed)  # noqa: S311 repeatable on purpose
        labels, weights = list(TEMPLATES), [8, 6, 4.5, 3, 2, 1]
        draw.shuffle(labels)
        lines, room = [_HEADER.format(labels=", ".join(TEMPLATES))], length * CHARS_A_TOKEN - 400
        room -= len(lines[0])
        users = [str(draw.randint(10000, 99999)) for _ in range(min(40, max(4, length // 1500)))]
        user_weights = [1 / (n + 1) for n in range(len(users))]
        drawn = draw.choices(labels, weights, k=max(8, room // 50))
        by_users = iter(draw.choices(users, user_weights, k=len(drawn)))
        self.entries: list[TextLine] = []
        choice, nouns, verbs = draw.choice, words_of("nounlist"), words_of("verblist")
        days = [_FIRST_DAY + datetime.timedelta(n) for n in range(_DAYS)]
        spelled = {day: f"{day:%b %d, %Y}" for day in days}
        for label in drawn:
            noun, other = choice(nouns), choice(nouns)
            words = {"noun": noun, "other": other, "verb": choice(verbs), "upper": noun[:4].upper()}
            entry = TextLine(choice(days), next(by_users), label)
            text = choice(TEMPLATES[label]).format(**words)
            line = f"Date: {spelled[entry.day]} || User: {entry.user} || Instance: {text}\n"
            room -= len(line)
            if room < 0:
                break
            lines.append(line)
            self.entries.append(entry)
        self.text = "".join(lines)


@dataclass(frozen=True)
class Windows:
    """The texts in use, by length and number."""

    seed: int
    held: WeakValueDictionary[tuple[int, int], Window] = field(default_factory=WeakValueDictionary)

    def window(self, length: int, number: int) -> Window:
        found = self.held.get((length, number))
        if found is None:
            found = Window(length, int(recipe_digest(_FORMAT, self.seed, length, number)[:12], 16))
            self.held[length, number] = found
        return found


@dataclass(frozen=True)
class GeneratedQuestion:
    """A recipe: one of the questions about a text. The kinds of questions take turns."""

    windows: Windows
    length: int
    number: int
    per_text: int  # questions about one text

    @property
    def text(self) -> int:
        """The number of the question's text."""
        return self.number // self.per_text

    @property
    def digest(self) -> str:
        of_text = () if self.per_text == len(KINDS) else (self.per_text,)  # which there always were, at first
        return recipe_digest(_FORMAT, VERSION, self.windows.seed, self.length, self.number, *of_text)

    def make(self) -> tuple[Reading, Any]:
        row, window = self.row()
        made = in_characters(window.text, row["question"], generator="generated", kind=row["task"])
        return replace(made, shared=window), row

    def row(self) -> tuple[dict[str, Any], Window]:
        """The question in the published layout, without its text."""
        window = self.windows.window(self.length, self.text)
        draw = random.Random(self.digest)  # noqa: S311 repeatable on purpose
        for kind in self._kinds():
            for _ in range(20):
                about = kind.about(window.entries, draw)
                right = kind.answer(window.entries, *about)
                if right is not None:
                    return _row(self.number, kind, about, right), window
        raise AssertionError("a number of lines can always be asked for")

    def _kinds(self) -> Iterator[Kind]:
        """The kind whose turn it is, else the next one that has a clear answer."""
        for step in range(len(KINDS)):
            yield KINDS[(self.number + step) % len(KINDS)]


def _row(number: int, kind: Kind, about: tuple[str, str], right: Any) -> dict[str, Any]:
    shown = f"[datetime.date({right.year}, {right.month}, {right.day})]" if isinstance(right, datetime.date) else None
    return {
        "id": number,
        "question": kind.question(*about),
        "task_group": kind.group,
        "task": f"TASK_TYPE.{kind.task}",
        "answer": shown or repr([right]),
        "answer_type": f"ANSWER_TYPE.{kind.answer_type}",
    }
