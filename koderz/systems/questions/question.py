"""A question as a task's payload, and what its row says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.suites.dataset import Row
from koderz.suites.keys import misspelt
from koderz.suites.tables import KINDS, kind_of, read_rows

IDS = ("id", "key", "question_id", "unique_id")
"""The columns that may hold a question's own name."""

_USUAL = {
    "--input": ("input", "question", "prompt", "problem", "query"),
    "--target": ("target", "answer", "expected", "label", "solution", "reference"),
}
_SHOWN = 20  # names of columns
_LONGEST_ID = 200  # characters
_MOST_CHARACTERS = 1_000_000  # of a question


class Instruction(NamedTuple):
    """A verifiable instruction of IFEval, with its arguments."""

    id: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, what is right, and what a prompt may show of its row."""

    id: str
    text: str
    targets: tuple[str, ...]  # right answers; of a choice, labels
    options: Mapping[str, str] = field(default_factory=dict)  # texts by label
    columns: Mapping[str, str] = field(default_factory=dict, repr=False)
    system: str = ""
    group: str = ""
    worked: str = ""  # a right reply with its reasoning, as published
    instructions: tuple[Instruction, ...] = ()
    cluster: str = ""  # the passage or the like that it shares with others

    @property
    def gold(self) -> str:
        """The first of the right answers; empty if there is none."""
        return self.targets[0] if self.targets else ""

    @property
    def content(self) -> str:
        """The question's text with its options in no order, by which equal questions are found."""
        return "\n".join(" ".join(each.casefold().split()) for each in (self.text, *sorted(self.options.values())))


def rows_in(path: Path) -> Iterator[Row]:
    """The rows of a file, or of all tables in a folder. Raises KoderzError naming file and line."""
    if not path.is_dir():
        yield from read_rows(path)
        return
    files = sorted(each for each in path.rglob("*") if each.is_file() and kind_of(each))
    if not files:
        raise KoderzError(f"{path}: there is no {', '.join(KINDS)} file in this folder")
    for file in files:
        yield from read_rows(file)


def text_in(row: Row, name: str, flag: str = "") -> str:
    """The value of a column, which the option `flag` names, as text.

    Raises KoderzError where it lacks, or is neither text nor a number.
    """
    value = row.value(name)
    if value is None:
        raise row.error(f"the field {name!r} is missing{_remedy(row, name, flag)}")
    return as_text(row, name, value)


def _remedy(row: Row, name: str, flag: str) -> str:
    """The remedy for a column that lacks, to be put behind the message."""
    if not flag or name in row.fields:
        return misspelt(name, row.fields.keys())
    names = [*row.fields][:_SHOWN]
    usual = next((each for each in names if each.strip().casefold() in _USUAL.get(flag, (name,))), "NAME")
    return f"; there are {', '.join(names)}: name the one that is meant with {flag} {quote(usual)}"


def as_text(row: Row, name: str, value: Any) -> str:
    """A text or number as text. Raises KoderzError for another value, naming the field."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _digits(row, name, value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1 << 53 else repr(value)
    return Row(row.where, {name: value}).text(name)


def _digits(row: Row, name: str, value: int) -> str:
    try:
        return str(value)
    except ValueError:  # more than 4,300 digits
        raise row.error(f"the field {name!r} has too many digits") from None


def id_of(row: Row, suite: str, number: int, name: str | None = None) -> str:
    """The row's own id, else SUITE/NUMBER. Raises KoderzError for one that can't be a task's."""
    known = name or next((each for each in IDS if row.fields.get(each) not in (None, "")), None)
    if known is None:
        return f"{suite}/{number}"
    found = text_in(row, known)
    if not found or found != found.strip() or len(found) > _LONGEST_ID or not found.isprintable():
        raise row.error(f"the field {known!r} can't be a task's name: {found!r:.80}")
    return found


def checked(questions: Iterable[tuple[Row, Question]], source: Path) -> tuple[Question, ...]:
    """The questions. Raises KoderzError where two have one id, one is too long, or there is none."""
    found: dict[str, Question] = {}
    for row, question in questions:
        if question.id in found:
            raise row.error(f"two rows have the id {question.id!r:.80}; name another column with --id")
        if not question.text.strip():
            raise row.error("the question is empty")
        if len(question.text) > _MOST_CHARACTERS:
            raise row.error(f"a question of more than {_MOST_CHARACTERS:,} characters isn't read")
        found[question.id] = question
    if not found:
        raise KoderzError(f"{source} holds no row")
    return tuple(found.values())


def shown_columns(row: Row) -> dict[str, str]:
    """Columns that a template may show: texts and numbers, nested ones by their dotted names."""
    found: dict[str, str] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, each in value.items():
                add(f"{name}.{key}" if name else str(key), each)
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            found[name] = as_text(row, name, value) if not isinstance(value, float) else repr(value)

    add("", row.fields)
    return found
