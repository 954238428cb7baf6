"""Questions of each kind about lines with a date, a user and a label: their wording, answers, and generated texts."""

from __future__ import annotations

import datetime
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from koderz.suites.tokens import CHARS_A_TOKEN
from koderz.systems.long_context.contexts import Reading, in_characters, recipe_digest
from koderz.systems.long_context.words import VERSION, words_of

APART = 0.02
"""The least difference of frequencies, as a share of all, for a question that compares them."""


class TextLine(NamedTuple):
    """A line of a text."""

    day: datetime.date
    user: str
    label: str


@dataclass(frozen=True)
class Kind:
    """A kind of question. `answer` returns None if the question has no clear answer."""

    group: str
    task: str
    answer_type: str
    wording: str  # with {a}, {b} for what it is about
    form: str  # of the answer
    answer: Callable[[Sequence[TextLine], str, str], Any]
    about: Callable[[Sequence[TextLine], Any], tuple[str, str]] = lambda _entries, _draw: ("", "")

    def question(self, a: str, b: str) -> str:
        return f"{self.wording.format(a=a, b=b)} Give your final answer in the form '{self.form}'."

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A pattern that finds the subjects of a question of this kind."""
        escaped = re.escape(self.wording)
        for name in "ab":
            escaped = escaped.replace(rf"\{{{name}\}}", f"(?P<{name}>.+?)", 1)
            escaped = escaped.replace(rf"\{{{name}\}}", f"(?P={name})")
        return re.compile(escaped)


def _ranked(counts: Mapping[str, int], place: int) -> str | None:
    """The value at a rank by frequency, if its neighbours are clearly more or less frequent."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    place %= len(ranked)
    apart = APART * sum(counts.values())
    near = [ranked[n][1] for n in (place - 1, place + 1) if 0 <= n < len(ranked)]
    if len(ranked) < 2 or any(abs(count - ranked[place][1]) < max(apart, 1) for count in near):
        return None
    return ranked[place][0]


def _labels(entries: Sequence[TextLine]) -> Counter[str]:
    return Counter(entry.label for entry in entries)


def _of_user(entries: Sequence[TextLine], user: str) -> list[TextLine]:
    return [entry for entry in entries if entry.user == user]


def _relative(one: int, other: int, total: int) -> str | None:
    if one == other:
        return "same frequency as"
    if abs(one - other) < APART * total:
        return None
    return "more common than" if one > other else "less common than"


def _label(entries: Sequence[TextLine], draw: Any) -> tuple[str, str]:
    return draw.choice(sorted(_labels(entries))), ""


def _two_labels(entries: Sequence[TextLine], draw: Any) -> tuple[str, str]:
    one, other = draw.sample(sorted(_labels(entries)), 2)
    return one, other


def _user(entries: Sequence[TextLine], draw: Any) -> tuple[str, str]:
    return draw.choice(sorted({entry.user for entry in entries})), ""


def _user_and_label(entries: Sequence[TextLine], draw: Any) -> tuple[str, str]:
    return _user(entries, draw)[0], _label(entries, draw)[0]


def _day_after(entries: Sequence[TextLine], draw: Any) -> tuple[str, str]:
    return draw.choice(sorted({entry.day for entry in entries})).isoformat(), _label(entries, draw)[
        0
    ]


def _times(entries: Sequence[TextLine], draw: Any) -> tuple[str, str]:
    return str(draw.choice([*Counter(entry.day for entry in entries).values()])), ""


def _first_month(entries: Sequence[TextLine], a: str, b: str) -> str | None:
    """The first month in which one label stands more often than another."""
    counts: dict[tuple[int, int], Counter[str]] = {}
    for entry in entries:
        counts.setdefault((entry.day.year, entry.day.month), Counter())[entry.label] += 1
    for year, month in sorted(counts):
        found = counts[year, month]
        if found[a] > found[b]:
            return f"{datetime.date(year, month, 1):%B %Y}"
        if found[a] == found[b]:
            return None
    return None


def _most_frequent_day(entries: Sequence[TextLine], _a: str, _b: str) -> Any:
    (day, most), *others = Counter(entry.day for entry in entries).most_common(2)
    return None if others and others[0][1] == most else day


_LABEL, _COMPARED = "Label: answer", "Answer: {a} is [X] {b}"
_NUMBER, _USER, _DATE = "Answer: number", "User: [X]", "Date: [YYYY-MM-DD]"

KINDS: Sequence[Kind] = (
    Kind("counting", "MOST_FREQ", "LABEL", "Which of the labels is the most common?", _LABEL,
         lambda e, _a, _b: _ranked(_labels(e), 0)),
    Kind("counting", "LEAST_FREQ", "LABEL", "Which of the labels is the least common?", _LABEL,
         lambda e, _a, _b: _ranked(_labels(e), -1)),
    Kind("counting", "RELATIVE_FREQ", "COMPARISON",
         "Is label '{a}' more common than, less common than, or of the same frequency as label '{b}'?",
         "Answer: more common than | less common than | same frequency as",
         lambda e, a, b: _relative(_labels(e)[a], _labels(e)[b], len(e)), _two_labels),
    Kind("counting", "NUMERIC_ONE_CLASS", "NUMERIC", "How many lines have the label '{a}'?", _NUMBER,
         lambda e, a, _b: _labels(e)[a], _label),
    Kind("counting", "SECOND_MOST_FREQ", "LABEL", "Which of the labels is the second most common?", _LABEL,
         lambda e, _a, _b: _ranked(_labels(e), 1)),
    Kind("user", "MOST_FREQ", "USER", "Which user has the most lines?", _USER,
         lambda e, _a, _b: _ranked(Counter(each.user for each in e), 0)),
    Kind("user", "MOST_FREQ", "LABEL", "Which of the labels is the most common among the lines of user {a}?", _LABEL,
         lambda e, a, _b: _ranked(_labels(_of_user(e, a)), 0) if _of_user(e, a) else None, _user),
    Kind("user", "NUMERIC_ONE_CLASS", "NUMERIC", "How many lines of user {a} have the label '{b}'?", _NUMBER,
         lambda e, a, b: _labels(_of_user(e, a))[b], _user_and_label),
    Kind("timeline", "MOST_FREQ", "DATE", "Which date has the most lines?", _DATE, _most_frequent_day),
    Kind("timeline", "REPRESENTED_N_TIMES", "NUMERIC", "How many dates have exactly {a} lines?", _NUMBER,
         lambda e, a, _b: sum(n == int(a) for n in Counter(each.day for each in e).values()), _times),
    Kind("timeline", "NUMERIC_ONE_CLASS", "NUMERIC", "How many lines after {a} have the label '{b}'?", _NUMBER,
         lambda e, a, b: sum(each.label == b and each.day.isoformat() > a for each in e), _day_after),
    Kind("timeline", "RELATIVE_FREQ", "MONTH_YEAR",
         "In which month did the label '{a}' first stand in more lines than the label '{b}'?", "Answer: Month YYYY",
         _first_month, _two_labels),
)  # fmt: skip


# Generated texts can be told apart by regular expressions: they are easier than the published ones, whose labels take
# reading.

TEMPLATES: Mapping[str, Sequence[str]] = {
    "abbreviation": (
        "What does the abbreviation {upper} stand for ?",
        "What is the full form of {upper} ?",
    ),
    "description and abstract concept": (
        "Why does a {noun} {verb} ?",
        "What is the meaning of the word {noun} ?",
    ),
    "entity": (
        "What kind of {noun} is called a {other} ?",
        "Which product is made of {noun} and {other} ?",
    ),
    "human being": ("Who invented the {noun} ?", "Which person was the first to {verb} a {noun} ?"),
    "location": ("Where can a {noun} be seen ?", "Which country has the oldest {noun} ?"),
    "numeric value": (
        "How many {noun} parts are in a {other} ?",
        "When was the first {noun} sold ?",
    ),
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
        # all kinds, as there always were at first
        of_text = () if self.per_text == len(KINDS) else (self.per_text,)
        return recipe_digest(
            _FORMAT, VERSION, self.windows.seed, self.length, self.number, *of_text
        )

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
    shown = (
        f"[datetime.date({right.year}, {right.month}, {right.day})]"
        if isinstance(right, datetime.date)
        else None
    )
    return {
        "id": number,
        "question": kind.question(*about),
        "task_group": kind.group,
        "task": f"TASK_TYPE.{kind.task}",
        "answer": shown or repr([right]),
        "answer_type": f"ANSWER_TYPE.{kind.answer_type}",
    }
