"""A question as a task's payload, and what its row says."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.suites.dataset import Row, misspelt
from koderz.suites.scorers import squad_normalised
from koderz.types import Message
from koderz_tracker.messages import text_of

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
        return "\n".join(
            " ".join(each.casefold().split())
            for each in (self.text, *sorted(self.options.values()))
        )


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
    usual = next(
        (each for each in names if each.strip().casefold() in _USUAL.get(flag, (name,))), "NAME"
    )
    return f"; there are {', '.join(names)}: name the one that is meant with {flag} {quote(usual)}"


def as_text(row: Row, name: str, value: Any) -> str:
    """A text or number as text. Raises KoderzError for another value, naming the field."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        try:
            return str(value)
        except ValueError:  # more than 4,300 digits
            raise row.error(f"the field {name!r} has too many digits") from None
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 1 << 53 else repr(value)
    return Row(row.where, {name: value}).text(name)


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
            raise row.error(
                f"two rows have the id {question.id!r:.80}; name another column with --id"
            )
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


Writing = Callable[[Question], str]
"""What is written of an example."""


class Examples:
    """Worked examples, the same for all questions of a group except for a question's own equals."""

    def __init__(
        self,
        count: int,
        pool: Sequence[Question],
        source: str,
        *,
        user: Writing,
        reply: Writing,
        seed: int | None,
    ) -> None:
        """`source`: where the pool is from; `seed`: None if the first of each group are taken."""
        self.count, self._source, self._is_drawn = count, source, seed is not None
        self._user, self._reply = user, reply
        self._pool = [*pool] if count else []
        if seed is not None:
            self._pool.sort(
                key=lambda each: hashlib.sha256(each.content.encode("utf-8", "replace")).digest()
            )
            random.Random(f"{seed} examples").shuffle(self._pool)  # noqa: S311 repeatable on purpose
        self._groups: dict[str, list[Question]] = {}
        for each in self._pool:
            self._groups.setdefault(each.group, []).append(each)

    def before(self, question: Question) -> list[Question]:
        """The examples of a question: of its group first, never the question itself nor an equal one.

        Raises KoderzError if there are too few.
        """
        own = question.content
        others = (each for each in self._in_order(question.group) if each.content != own)
        found = [*islice(others, self.count)]
        if len(found) < self.count:
            raise KoderzError(
                f"--few-shot {self.count}: {self._source} has {len(found)} examples other than {question.id}; "
                "lower the number, or name a file with --few-shot-from"
            )
        return found

    def messages(self, question: Question) -> tuple[Message, ...]:
        """The examples of a question as messages of user and assistant."""
        pairs = (
            (("user", self._user(each)), ("assistant", self._reply(each)))
            for each in self.before(question)
        )
        return tuple({"role": role, "content": text} for role, text in chain.from_iterable(pairs))

    @property
    def record(self) -> Mapping[str, Any]:
        """The plan's record: how many, from where, and by group which; without their texts."""
        if not self.count:
            return {"count": 0}
        texts = "\0".join(f"{self._user(each)}\0{self._reply(each)}" for each in self._pool)
        return {
            "count": self.count,
            "source": self._source,
            "chosen": "drawn by --seed" if self._is_drawn else "the first",
            "examples": {
                group: [each.id for each in islice(self._in_order(group), self.count)]
                for group in self._groups
            },
            "digest": hashlib.sha256(texts.encode("utf-8", "replace")).hexdigest()[:16],
        }

    def _in_order(self, group: str) -> Iterator[Question]:
        """The pool, those of the group first."""
        yield from self._groups.get(group, ())
        yield from (each for each in self._pool if each.group != group)


_RIGHT, _UNREAD = 0.6, 0.05  # chances of a right answer, and of one that can't be read
_MARK = re.compile(r"a line `BEGIN ([0-9a-f]{16})`")
_WRONG = "I am quite sure of it: 1."


class SimulatedAnswers:
    """Replies to questions by what they were asked with, right with a fixed chance."""

    def __init__(
        self, asked: Mapping[str, Question], demonstrated: Callable[[Question], str]
    ) -> None:
        """`asked`: the questions by the last message that asks them."""
        self._asked, self._demonstrated = asked, demonstrated

    def reply(self, messages: Sequence[Message], sampling: Any) -> str:
        """The reply, a pure function of messages and sampling."""
        if mark := _MARK.search(text_of(messages[0])):
            return _judgement(text_of(messages[0]), text_of(messages[-1]), mark[1])
        asked = text_of(messages[-1])
        seed = hashlib.sha256(
            f"{getattr(sampling, 'seed', 0)} {asked}".encode("utf-8", "replace")
        ).hexdigest()
        draw = random.Random(seed)  # noqa: S311 repeatable on purpose
        question, chance = self._asked.get(asked), draw.random()
        if question is None or chance > 1 - _UNREAD:
            return "I would rather not say."
        if chance < _RIGHT:
            return self._demonstrated(question) or _WRONG
        others = [label for label in question.options if label not in question.targets]
        return f"Answer: {draw.choice(others)}" if others else _WRONG


def _judgement(system: str, shown: str, mark: str) -> str:
    """A grade by whether one of the right answers stands in the reply."""
    parts = re.findall(rf"# ([^\n]+)\nBEGIN {mark}\n(.*?)\nEND {mark}", shown, re.DOTALL)
    texts: dict[str, str] = dict(parts)
    right = texts.get("Right answer") or texts.get("Right answers", "")
    reply = squad_normalised(texts.get("Reply", ""))
    is_right = any(
        squad_normalised(each) in reply for each in right.splitlines() if squad_normalised(each)
    )
    if "the letter A, B or C" not in system:
        return json.dumps({"mark": mark, "reason": "simulated", "score": float(is_right)})
    if is_right:
        return "A"
    return "C" if "rather not" in reply else "B"
