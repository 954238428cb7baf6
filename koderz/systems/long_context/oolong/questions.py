"""Questions of each kind about lines with a date, a user and a label: their wording and their answers."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

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
    return draw.choice(sorted({entry.day for entry in entries})).isoformat(), _label(entries, draw)[0]


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
